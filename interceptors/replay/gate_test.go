package replay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/dedupdtest"
	"github.com/dedupd/dedupd/interceptors/replay"
)

// One answer that names its record shows that the service looks at keys.
func TestTheFirstEntryIsSentAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.takes = time.Second })
		var ids [][]byte
		for n := range 9 {
			ids = append(ids, w.park(fmt.Sprint("order ", n)))
		}
		began := time.Now()
		w.replayed(w.replayer(replay.Config{Concurrency: 4}), ids...)
		require.Len(t, w.sent, len(ids))
		for n, at := range w.sent {
			require.Equal(t, (n+3)/4, int(at.Sub(began)/time.Second), "the %dth of 1, 4 and 4", n)
		}
	})
}

// An error says nothing of keys: neither that of a service that fails, nor that of
// one that is the wrong one and did a part of the work.
func TestEntriesAreSentOneByOneUntilTheServiceHasLookedAtAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		runs := 0
		w.set(func() {
			w.takes = time.Second
			w.fault = func(int) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				if runs++; runs <= 3 {
					return status.Error(codes.Internal, "it broke")
				}
				return nil
			}
		})
		var ids [][]byte
		for n := range 9 {
			ids = append(ids, w.park(fmt.Sprint("order ", n)))
		}
		r, err := replay.New(replay.Config{
			DeadLetters: w.kit.DeadLetters(), Conn: keyless{w}, Namespace: dedupdtest.Namespace, Concurrency: 4, Rate: 1000,
		})
		require.NoError(t, err)
		count := map[replay.Outcome]int{}
		for _, res := range w.replayed(r, ids...) {
			count[res.Outcome]++
		}
		require.Equal(t, map[replay.Outcome]int{replay.Failed: 8, replay.Unprotected: 1}, count)
		require.Equal(t, 4, runs, "3 that failed, and the one that showed it")
		require.Equal(t, 1, w.crowd)
	})
}

func TestOfManyWorkersOneShowsThatTheServiceLooksAtNoKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.set(func() { w.takes = time.Second })
		for n := range 9 {
			w.park(fmt.Sprint("order ", n))
		}
		r, err := replay.New(replay.Config{
			DeadLetters: w.kit.DeadLetters(), Conn: keyless{w}, Namespace: dedupdtest.Namespace, Concurrency: 4, Rate: 1000,
		})
		require.NoError(t, err)
		require.ErrorContains(t, r.Run(t.Context()), "does not look at keys")
		require.Len(t, w.runs, 1)
	})
}
