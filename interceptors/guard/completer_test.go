package guard_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

func order(n int) guard.Call {
	c := call()
	c.Key = fmt.Append(nil, "order ", n)
	return c
}

func TestAStoreThatTurnsReadOnlyRepeatsNoEffect(t *testing.T) { // A02, H02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, other := w.join(t, guard.Observer{})
		var e effect
		res, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, a guard.Attempt) guard.Ending {
			w.store.lock(true) // after the Reserve, before the Complete
			return e.run(ctx, a)
		})
		requireOwn(t, res, err)
		pass(31 * time.Second) // the lease is over
		for range 100 {
			res, err := w.engine.Do(t.Context(), call(), e.run)
			requireStored(t, res, err, "done")
			_, err = other.Do(t.Context(), call(), e.run)
			requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
			_, err = other.Do(t.Context(), order(2), e.run)
			requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
			pass(time.Minute)
		}
		require.Equal(t, 1, e.count())

		w.store.lock(false)
		pass(30 * time.Second)
		res, err = other.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
		require.Equal(t, 1, e.count())
	})
}

func TestOnlyTheSameRequestIsAnsweredFromTheCompleter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Complete", always(fault{err: errCut}))
		var e effect
		_, err := w.engine.Do(t.Context(), call(), e.run)
		require.NoError(t, err)
		pass(31 * time.Second)
		reused := call()
		reused.Fingerprints = []*dedupv1.Fingerprint{{Version: 1, Digest: []byte("another request")}}
		_, err = w.engine.Do(t.Context(), reused, e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_KEY_REUSED, false)
	})
}

func TestARepeatDeliversTheOutcomeThatItsProcessStillHas(t *testing.T) {
	t.Parallel()
	calls := map[string]guard.Call{
		"refuse": call(), "rerun": call(),
		"reconcile": reconciling(bounded, guard.NotApplied(), nil), // it would run again if it were asked
	}
	rerun := calls["rerun"]
	rerun.RerunSafe = true
	calls["rerun"] = rerun
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.on("Complete", always(fault{err: errCut}))
				var e effect
				_, _ = w.engine.Do(t.Context(), c, e.run)
				pass(20 * time.Minute) // long after the lease; between two tries in the background
				w.on("Complete", nil)
				res, err := w.engine.Do(t.Context(), c, e.run)
				requireStored(t, res, err, "done")
				require.Equal(t, 1, e.count())
			})
		})
	}
}

// gauge remembers what it was told.
type gauge struct {
	mu                  sync.Mutex
	messages            int
	size                int64
	most, full, givenUp int
}

func (g *gauge) observer() guard.Observer {
	locked := func(f func()) {
		g.mu.Lock()
		defer g.mu.Unlock()
		f()
	}
	return guard.Observer{
		Pending: func(n int, size int64) {
			locked(func() { g.messages, g.size, g.most = n, size, max(g.most, n) })
		},
		CompleterFull: func(string) { locked(func() { g.full++ }) },
		Undelivered:   func(string) { locked(func() { g.givenUp++ }) },
	}
}

func TestTheCompleterIsBoundedAndSaysWhenItIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var g gauge
		way, engine := w.join(t, g.observer())
		way.on("Complete", always(fault{err: errCut}))
		const size = 1 << 20
		var calls sync.WaitGroup
		for n := range 70 {
			calls.Go(func() {
				_, err := engine.Do(t.Context(), order(n), func(context.Context, guard.Attempt) guard.Ending {
					return guard.Ending{Outcome: answerOf(strings.Repeat("x", size))}
				})
				require.NoError(t, err)
			})
		}
		calls.Wait()
		g.mu.Lock()
		require.Equal(t, 63, g.most, "64 MiB of messages of a little over 1 MiB")
		require.Equal(t, 7, g.full)
		require.Equal(t, 7, g.givenUp)
		require.LessOrEqual(t, g.size, int64(guard.MaxPendingBytes))
		g.mu.Unlock()

		way.on("Complete", nil)
		pass(time.Minute)
		g.mu.Lock()
		defer g.mu.Unlock()
		require.Zero(t, g.messages)
		require.Zero(t, g.size)
		require.Equal(t, 7, g.givenUp)
	})
}

func TestGrantsGivenBackUnreadDoNotCrowdOutOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var g gauge
		way, engine := w.join(t, g.observer())
		way.on("Reserve", func(n int) fault { // too few fail for dedupd not to be asked any more
			if n%3 == 1 {
				return fault{err: errCut}
			}
			return fault{}
		})
		way.on("Release", always(fault{err: errCut}))
		var e effect
		for n := range 1030 {
			c := order(n)
			c.Attempt = 3
			_, err := engine.Do(t.Context(), c, nil)
			requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
			for range 2 {
				_, err = engine.Do(t.Context(), call(), e.run)
				require.NoError(t, err)
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		require.Equal(t, 1024, g.messages)
		require.Equal(t, 6, g.full)
	})
}

func TestAMessageThatAlwaysFailsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		way, engine := w.join(t, guard.Observer{})
		way.on("Complete", firstly(5, fault{err: errCut}))
		way.on("Release", always(fault{err: errCut}))
		var e effect
		_, err := engine.Do(t.Context(), order(1), func(context.Context, guard.Attempt) guard.Ending { return guard.Ending{} })
		require.NoError(t, err)
		_, err = engine.Do(t.Context(), order(2), e.run)
		require.NoError(t, err)
		pass(time.Minute)
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, order(2)))
		require.Less(t, way.count("Release"), 60, "and it is not sent in a tight loop")
	})
}

func TestClosingTheEngineDeliversWhatItCan(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]bool{"dedupd is back": true, "dedupd stays away": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var g gauge
				way, engine := w.join(t, g.observer())
				way.on("Complete", always(fault{err: errCut}))
				var e effect
				_, err := engine.Do(t.Context(), call(), e.run)
				require.NoError(t, err)
				pass(20 * time.Minute) // the next try is far away
				if back {
					way.on("Complete", nil)
				}
				at := time.Now()
				engine.Close()
				g.mu.Lock()
				defer g.mu.Unlock()
				if back {
					require.Zero(t, time.Since(at))
					require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, call()))
					require.Zero(t, g.givenUp)
				} else {
					require.Equal(t, guard.DefaultCloseTime, time.Since(at))
					require.Equal(t, 1, g.givenUp)
				}
				require.Zero(t, g.messages)
			})
		})
	}
}
