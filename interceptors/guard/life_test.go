package guard_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/storage"
)

func TestARepeatGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err)
		require.NotNil(t, res.Ends)
		id := storage.Identity{Namespace: "test", Operation: "/pay.v1.Pay/Charge", Caller: "ada", Key: "order 1"}.RecordID()
		require.Equal(t, id[:], res.RecordID)

		res, err = w.engine.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
		require.Equal(t, 1, e.count())
	})
}

func TestACallerThatLeavesChangesNothing(t *testing.T) { // A01
	t.Parallel()
	leave := map[string]func(context.Context) (context.Context, context.CancelFunc){
		"it cancels": context.WithCancel,
		"its deadline passes": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 2*time.Second)
		},
	}
	for name, limit := range leave {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var e effect
				ctx, cancel := limit(t.Context())
				time.AfterFunc(2*time.Second, cancel)
				res, err := w.engine.Do(ctx, call(), func(ctx context.Context, a guard.Attempt) guard.Ending {
					deadline, ok := guard.CallerDeadline(ctx)
					require.Equal(t, name == "its deadline passes", ok)
					require.Equal(t, ok, time.Until(deadline) == 2*time.Second)
					return e.lasting(5*time.Second)(ctx, a)
				})
				requireOwn(t, res, err)
				require.Error(t, ctx.Err())

				res, err = w.engine.Do(t.Context(), call(), e.run)
				requireStored(t, res, err, "done")
				require.Equal(t, 1, e.count())
			})
		})
	}
}

func TestARepeatWaitsForTheRun(t *testing.T) { // C05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		go w.engine.Do(t.Context(), call(), e.lasting(4*time.Second)) //nolint:errcheck // its answer is read by the repeat
		synctest.Wait()

		at := time.Now()
		atOnce := call()
		atOnce.RefuseAtOnce = true
		_, err := w.engine.Do(t.Context(), atOnce, e.run)
		retryAfter := requireRefused(t, err, dedupv1.Reason_REASON_IN_PROGRESS, false)
		require.Positive(t, retryAfter)
		require.Zero(t, time.Since(at))

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = w.engine.Do(short, call(), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_IN_PROGRESS, false)
		require.NoError(t, short.Err(), "answered before the caller's deadline, never after it")

		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
		require.Equal(t, 4*time.Second, time.Since(at))
		require.Equal(t, 1, e.count())
	})
}

func TestARunMayLastLongerThanItsLease(t *testing.T) { // A09 a, c
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		c := call()
		c.Lease = 2 * time.Second
		go w.engine.Do(t.Context(), c, e.lasting(6*time.Second)) //nolint:errcheck // its answer is read by the repeat
		pass(4 * time.Second)
		require.Equal(t, dedupv1.State_STATE_RESERVED, w.state(t, c))
		require.LessOrEqual(t, w.lookup(t, c).GetLeaseLeft().AsDuration(), 2*time.Second)

		res, err := w.engine.Do(t.Context(), c, e.run)
		requireStored(t, res, err, "done")
		require.Equal(t, 1, e.count())
	})
}

func TestARunThatNamesNoLeaseHasTheDefaultAndIsNotTakenForAbandoned(t *testing.T) { // A08
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, other := w.join(t, guard.Observer{})
		var e effect
		c := call()
		c.Lease, c.RefuseAtOnce, c.RerunSafe = 0, true, true // what is abandoned would run again
		finish := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := w.engine.Do(t.Context(), c, func(ctx context.Context, a guard.Attempt) guard.Ending {
				<-finish
				return e.run(ctx, a)
			})
			done <- err
		}()
		synctest.Wait()
		require.Equal(t, guard.DefaultLease, w.lookup(t, c).GetLeaseLeft().AsDuration())
		for range 10 {
			pass(11 * time.Second)
			_, err := other.Do(t.Context(), c, e.run)
			requireRefused(t, err, dedupv1.Reason_REASON_IN_PROGRESS, false)
		}
		close(finish)
		require.NoError(t, <-done)
		require.Equal(t, 1, e.count())
	})
}

func TestALeaseThatCannotBeExtendedEndsTheRunInTime(t *testing.T) { // A09 b
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		lost := 0
		var log bytes.Buffer
		way, engine := w.joinWith(t, guard.Config{
			Observer: guard.Observer{LeaseLost: func(string) { lost++ }}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		way.on("Extend", always(fault{err: errCut}))
		c := call()
		c.Lease = 10 * time.Second
		start := time.Now()
		res, err := engine.Do(t.Context(), c, func(ctx context.Context, _ guard.Attempt) guard.Ending {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), guard.ErrLeaseLost)
			require.Equal(t, 9*time.Second, time.Since(start), "the margin is a tenth of the lease")
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN}
		})
		requireOwn(t, res, err)
		require.Equal(t, 1, lost)
		require.Contains(t, log.String(), "level=ERROR msg=\"the lease could not be extended")
		require.Greater(t, way.count("Extend"), 3, "tried again until the margin")
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, c))
	})
}

func TestARunWhoseRecordIsNoLongerItsOwnEndsAtOnceAndIsToldOnce(t *testing.T) { // A09 b, A11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		lost := 0
		way, engine := w.join(t, guard.Observer{LeaseLost: func(string) { lost++ }})
		way.on("Extend", func(int) fault {
			w.store.forget() // dedupd answers STALE_HOLDER
			return fault{}
		})
		start := time.Now()
		_, err := engine.Do(t.Context(), call(), func(ctx context.Context, _ guard.Attempt) guard.Ending {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), guard.ErrLeaseLost)
			require.Equal(t, guard.DefaultLease/3, time.Since(start), "at the first Extend, long before the lease is over")
			pass(guard.DefaultLease) // it takes its time to stop, and looks again
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN}
		})
		require.NoError(t, err)
		require.Equal(t, 1, lost, "told once")
		require.Equal(t, 1, way.count("Extend"), "who has lost the lease does not ask for more")
	})
}

func TestAHangingExtendDoesNotHideTheEndOfTheLease(t *testing.T) { // A09 b
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Extend", always(fault{after: time.Hour}))
		start := time.Now()
		_, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, _ guard.Attempt) guard.Ending {
			<-ctx.Done()
			require.Equal(t, 27*time.Second, time.Since(start))
			return guard.Ending{}
		})
		require.NoError(t, err)
	})
}

func TestARunThatLooksAfterItsLeaseIsToldAtOnce(t *testing.T) { // A09 b
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		lost := 0
		way, engine := w.join(t, guard.Observer{LeaseLost: func(string) { lost++ }})
		way.on("Extend", always(fault{after: time.Minute, deaf: true})) // the keeper stands still
		res, err := engine.Do(t.Context(), call(), func(ctx context.Context, _ guard.Attempt) guard.Ending {
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			pass(26 * time.Second)
			require.NoError(t, ctx.Err(), "the lease less its margin is not over")
			pass(time.Second)
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(ctx), guard.ErrLeaseLost)
			<-ctx.Done()
			require.ErrorIs(t, derived.Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(derived), guard.ErrLeaseLost)
			require.Equal(t, 1, lost)
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN}
		})
		requireOwn(t, res, err)
		require.Equal(t, 1, lost, "told once")
	})
}

func TestARunWhoseLeaseWasExtendedOrThatHasEndedIsNotTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		way, engine := w.join(t, guard.Observer{LeaseLost: func(string) { t.Error("the lease was not lost") }})
		way.on("Extend", func(n int) fault {
			if n == 1 {
				return fault{} // in time
			}
			return fault{after: time.Minute, deaf: true}
		})
		way.on("Complete", firstly(1, fault{after: 30 * time.Second, deaf: true}))
		var look func() error
		time.AfterFunc(50*time.Second, func() {
			require.NoError(t, look(), "it has ended, and is on its way to dedupd")
		})
		var e effect
		_, err := engine.Do(t.Context(), call(), func(ctx context.Context, a guard.Attempt) guard.Ending {
			look = ctx.Err
			pass(30 * time.Second)
			require.NoError(t, ctx.Err(), "extended after ten seconds")
			return e.run(ctx, a)
		})
		require.NoError(t, err)
	})
}

func TestARunEndsByItsMaximumTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := call()
		c.MaxRun = 3 * time.Minute
		start := time.Now()
		_, err := w.engine.Do(t.Context(), c, func(ctx context.Context, _ guard.Attempt) guard.Ending {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), guard.ErrMaxRun)
			require.Equal(t, c.MaxRun, time.Since(start))
			pass(time.Minute) // it does not stop: the key must not be held for ever
			require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, c))
			return guard.Ending{}
		})
		require.NoError(t, err)
	})
}

func TestClosingTheEngineEndsItsRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		time.AfterFunc(time.Second, w.engine.Close)
		var e effect
		res, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, a guard.Attempt) guard.Ending {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), guard.ErrClosed)
			return e.run(ctx, a) // it finishes its work all the same
		})
		requireOwn(t, res, err)
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, call()), "what it did is on record")
		own := res.RecordID
		res, err = w.engine.Do(t.Context(), call(), e.run)
		require.ErrorIs(t, err, guard.ErrClosed)
		require.Equal(t, own, res.RecordID, "every keyed answer names its record")
	})
}

func TestAPanicIsRecordedAndGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		require.PanicsWithValue(t, "boom", func() {
			_, _ = w.engine.Do(t.Context(), call(), func(context.Context, guard.Attempt) guard.Ending {
				panic("boom") //nolint:forbidigo // the case
			})
		})
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, call()))
		var e effect
		_, err := w.engine.Do(t.Context(), call(), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		require.Zero(t, e.count())
	})
}

func TestAReleasedRunMayRunAgain(t *testing.T) { // A04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		fails := func(context.Context, guard.Attempt) guard.Ending {
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE}
		}
		_, err := w.engine.Do(t.Context(), call(), fails)
		require.NoError(t, err)
		var e effect
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err)
		require.Equal(t, 1, e.count())
	})
}

func TestTheLeaseEndIsToldToBoundedRunsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		look := func(told bool) guard.Run {
			return func(ctx context.Context, a guard.Attempt) guard.Ending {
				end, ok := guard.LeaseEnd(ctx)
				require.Equal(t, told, ok)
				fence, _ := guard.FenceFrom(ctx)
				require.Equal(t, a.Fence, fence)
				if told {
					require.Equal(t, 27*time.Second, time.Until(end))
					pass(11 * time.Second) // one extension later
					moved, _ := guard.LeaseEnd(ctx)
					require.Equal(t, 10*time.Second, moved.Sub(end))
				}
				return guard.Ending{}
			}
		}
		_, err := w.engine.Do(t.Context(), call(), look(false))
		require.NoError(t, err)
		bounded := reconciling(dedupv1.Basis_BASIS_BOUNDED, guard.NotApplied(), nil)
		bounded.Key = []byte("order 2")
		_, err = w.engine.Do(t.Context(), bounded, look(true))
		require.NoError(t, err)
		_, ok := guard.LeaseEnd(t.Context())
		require.False(t, ok)
	})
}

func TestAMalformedCallReachesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cases := map[string]func(*guard.Call){
			"no operation":              func(c *guard.Call) { c.Operation = "" },
			"no fingerprint":            func(c *guard.Call) { c.Fingerprints = nil },
			"lease too short":           func(c *guard.Call) { c.Lease = time.Millisecond },
			"lease too long":            func(c *guard.Call) { c.Lease = time.Hour },
			"reconciler without basis":  func(c *guard.Call) { c.Reconciler = reconciling(0, guard.Verdict{}, nil).Reconciler },
			"a basis for no reconciler": func(c *guard.Call) { c.Basis = dedupv1.Basis_BASIS_INBOX },
		}
		var e effect
		for name, spoil := range cases {
			c := call()
			spoil(&c)
			_, err := w.engine.Do(t.Context(), c, e.run)
			require.Error(t, err, name)
		}
		require.Zero(t, w.count("Reserve")+e.count())
	})
}

func TestARunThatSaysNothingOfItsEffectLeavesItUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, err := w.engine.Do(t.Context(), call(), func(context.Context, guard.Attempt) guard.Ending { return guard.Ending{} })
		require.NoError(t, err)
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, call()))
	})
}
