package guard_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// leave lets an engine with a journal in dir end while dedupd takes no
// outcomes, after it has run each of the calls.
func (w *world) leave(t *testing.T, dir string, e *effect, calls ...guard.Call) {
	t.Helper()
	way, engine := w.joinWith(t, guard.Config{Journal: dir, Observer: guard.Observer{
		Undelivered: func(string) { t.Error("what is in the journal is not given up") },
	}})
	way.on("Complete", always(fault{err: errCut}))
	for _, c := range calls {
		_, err := engine.Do(t.Context(), c, e.run)
		require.NoError(t, err)
	}
	engine.Close()
}

func TestAnOutcomeInTheJournalSurvivesARestartOfTheService(t *testing.T) { // A02
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		w.leave(t, dir, &e, order(1), order(2))
		pass(time.Minute) // the leases are over
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, order(1)))

		// dedupd is still away: its repeats are answered from the journal.
		w.store.lock(true)
		_, engine := w.joinWith(t, guard.Config{Journal: dir})
		res, err := engine.Do(t.Context(), order(2), e.run)
		requireStored(t, res, err, "done")

		w.store.lock(false)
		pass(30 * time.Second)
		for _, c := range []guard.Call{order(1), order(2)} {
			res, err := w.engine.Do(t.Context(), c, e.run)
			requireStored(t, res, err, "done")
		}
		require.Equal(t, 2, e.count())
		require.Zero(t, sizeOf(t, dir), "a journal with nothing in it is empty")
	})
}

func sizeOf(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "completions"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it holds keys and responses")
	return info.Size()
}

func TestATornEndOfTheJournalCostsOnlyItself(t *testing.T) {
	t.Parallel()
	spoil := map[string]func(data []byte) []byte{
		"cut in the last entry":          func(data []byte) []byte { return data[:len(data)-3] },
		"cut in the last entry's length": func(data []byte) []byte { return data[:len(data)/2+3] },
		"garbage behind the last entry":  func(data []byte) []byte { return append(data, 0, 0, 1, 0, 9, 9) },
		"a bit of the last entry":        func(data []byte) []byte { data[len(data)-1] ^= 1; return data },
		"nothing":                        func(data []byte) []byte { return data },
	}
	for name, f := range spoil {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var e effect
				w.leave(t, dir, &e, order(1), order(2))
				path := filepath.Join(dir, "completions")
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(path, f(data), 0o600))

				// The next process goes on where the good part ends.
				w.leave(t, dir, &e, order(3))
				_, engine := w.joinWith(t, guard.Config{Journal: dir})
				pass(time.Minute)
				engine.Close()
				whole := name == "nothing" || name == "garbage behind the last entry"
				for n, delivered := range map[int]bool{1: true, 2: whole, 3: true} {
					require.Equal(t, delivered, w.state(t, order(n)) == dedupv1.State_STATE_COMPLETED, n)
				}
			})
		})
	}
}

func TestWhatIsDeliveredIsNotDeliveredAgainByTheNextProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		w.leave(t, dir, &e, order(1), order(2))
		way, engine := w.joinWith(t, guard.Config{Journal: dir})
		way.on("Complete", func(n int) fault {
			if n > 1 {
				return fault{err: errCut}
			}
			return fault{}
		})
		pass(time.Second)
		engine.Close()
		way, _ = w.joinWith(t, guard.Config{Journal: dir})
		synctest.Wait()
		require.Equal(t, 1, way.count("Complete"))
	})
}

func TestAJournalBelongsToOneProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, engine := w.joinWith(t, guard.Config{Journal: dir})
		c := guard.Config{Dedup: dedupv1.NewDedupServiceClient(w.wire), Namespace: "test", Journal: dir}
		_, err := guard.New(c)
		require.ErrorContains(t, err, "another process")
		engine.Close()
		next, err := guard.New(c)
		require.NoError(t, err)
		next.Close()
	})
}
