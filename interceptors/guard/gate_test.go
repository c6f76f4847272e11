package guard_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// H01 H02: while dedupd hangs, or its store takes no writes, calls are not kept
// waiting for it one by one; the few that probe find it back.
func TestADedupdThatIsAwayIsNotWaitedForByEveryCall(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(w *world, on bool){
		"it hangs": func(w *world, on bool) {
			w.on("Reserve", nil)
			if on {
				w.on("Reserve", always(fault{after: time.Hour}))
			}
		},
		"its store takes no writes": func(w *world, on bool) { w.store.lock(on) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var e effect
				ask := func(n int) (time.Duration, error) {
					c := order(n)
					c.Attempt = 5 // each asks dedupd once
					began := time.Now()
					_, err := w.engine.Do(t.Context(), c, e.run)
					return time.Since(began), err
				}
				away(w, true)
				for n := range 20 {
					go ask(n) //nolint:errcheck // only the count matters
				}
				pass(20 * time.Second)
				synctest.Wait()
				away(w, true) // counts anew
				before := w.count("Reserve")
				for n := range 3 { // the probes: they wait as long as one must
					go ask(n) //nolint:errcheck // only the count matters
				}
				synctest.Wait()
				took, err := ask(100)
				require.Zero(t, took, "held back, not kept waiting")
				require.LessOrEqual(t, requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false), time.Second)
				require.LessOrEqual(t, w.count("Reserve")-before, 3, "no more than the probes ask")
				require.Zero(t, e.count())
				pass(time.Minute)

				away(w, false)
				for n := range 3 { // no restart is needed
					_, err = ask(200 + n)
					require.NoError(t, err)
				}
				for n := range 20 {
					_, err = ask(300 + n)
					require.NoError(t, err)
				}
				require.Equal(t, 23, e.count())
			})
		})
	}
}

func TestWhatEndsAGrantIsNeverHeldBack(t *testing.T) { // A02, H02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		_, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, a guard.Attempt) guard.Ending {
			w.on("Reserve", always(fault{err: errCut}))
			for n := range 30 {
				c := order(n)
				c.Attempt = 5
				_, err := w.engine.Do(t.Context(), c, nil)
				ownRun := n == 1 // of whose key it is not said that nothing was applied
				requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, ownRun)
			}
			require.Less(t, w.count("Reserve"), 30, "the rest was held back")
			pass(time.Minute) // extended all the while
			return e.run(ctx, a)
		})
		require.NoError(t, err)
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, call()))
	})
}

func TestCallersThatLeaveDoNotHoldOthersBack(t *testing.T) { // F01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Reserve", always(fault{after: time.Hour}))
		for n := range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := w.engine.Do(ctx, order(n), nil)
			require.Error(t, err)
			cancel()
		}
		w.on("Reserve", nil)
		var e effect
		_, err := w.engine.Do(t.Context(), call(), e.run)
		require.NoError(t, err)
	})
}
