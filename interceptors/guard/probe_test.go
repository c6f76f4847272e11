package guard_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// looks is a reconciler that rules as told, by the number of the look.
type looks struct {
	n     atomic.Int64
	rules func(n int64) (guard.Verdict, error)
}

func (l *looks) look(context.Context, guard.Attempt) (guard.Verdict, error) {
	return l.rules(l.n.Add(1))
}

func (l *looks) call(basis dedupv1.Basis) guard.Call {
	c := call()
	c.Basis, c.Reconciler = basis, l.look
	return c
}

// told counts what the background reconciler came to.
type told struct{ settled, left, partial atomic.Int64 }

func (o *told) observer() guard.Observer {
	return guard.Observer{
		Reconciled:   func(string) { o.settled.Add(1) },
		Unreconciled: func(string) { o.left.Add(1) },
		Partial:      func(string) { o.partial.Add(1) },
	}
}

func TestAnUnknownOutcomeIsAskedForAgainInTheBackground(t *testing.T) { // A05, A06
	t.Parallel()
	cases := map[string]struct {
		later guard.Verdict
		state dedupv1.State
	}{
		"applied":     {guard.Applied(answerOf("found")), dedupv1.State_STATE_COMPLETED},
		"not applied": {guard.NotApplied(), dedupv1.State_STATE_RELEASED},
		"partial":     {guard.Partial("half"), dedupv1.State_STATE_UNKNOWN},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var o told
				_, engine := w.join(t, o.observer())
				l := looks{rules: func(n int64) (guard.Verdict, error) {
					if n < 3 {
						return guard.StillUnknown(), nil
					}
					return c.later, nil
				}}
				w.crash(t, l.call(fenced))
				pass(31 * time.Second)
				var e effect
				_, err := engine.Do(t.Context(), l.call(fenced), e.run)
				require.Positive(t, requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true))
				pass(time.Hour)
				require.EqualValues(t, 3, l.n.Load(), "one by the call, the rest in the background")
				require.Equal(t, c.state.String(), w.state(t, l.call(fenced)).String())
				require.Zero(t, e.count(), "nobody is there to run it for")
				require.Equal(t, c.state != dedupv1.State_STATE_UNKNOWN, o.settled.Load() == 1)
				require.Equal(t, name == "partial", o.partial.Load() == 1)
				require.Zero(t, o.left.Load())
			})
		})
	}
}

func TestTheBackgroundReconcilerAsksFiveTimes(t *testing.T) { // A06
	t.Parallel()
	rules := map[string]func(int64) (guard.Verdict, error){
		"it cannot tell":    func(int64) (guard.Verdict, error) { return guard.StillUnknown(), nil },
		"it fails":          func(int64) (guard.Verdict, error) { return guard.NotApplied(), errors.New("no answer") },
		"it panics":         func(int64) (guard.Verdict, error) { panic("boom") }, //nolint:forbidigo // the case
		"it takes too long": func(int64) (guard.Verdict, error) { pass(31 * time.Second); return guard.NotApplied(), nil },
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var o told
				_, engine := w.join(t, o.observer())
				l := looks{rules: rule}
				w.crash(t, l.call(fenced))
				pass(31 * time.Second)
				var e effect
				_, err := engine.Do(t.Context(), l.call(fenced), e.run)
				require.Positive(t, requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true), "probes are left")
				pass(30 * time.Minute)
				require.EqualValues(t, 1+guard.Probes, l.n.Load())
				require.EqualValues(t, 1, o.left.Load())

				_, err = engine.Do(t.Context(), l.call(fenced), e.run)
				require.Zero(t, requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true), "waiting does not help")
				pass(time.Minute)
				require.EqualValues(t, 2+guard.Probes, l.n.Load(), "the call itself asks, nobody after it")
				require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, l.call(fenced)))
				require.Zero(t, e.count())
			})
		})
	}
}

func TestWhatWasNotSeenIsFreedOnceItHasBeenQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := looks{rules: func(int64) (guard.Verdict, error) { return guard.NotSeen(), nil }}
		w.crash(t, l.call(bounded))
		pass(31 * time.Second)
		var e effect
		_, err := w.engine.Do(t.Context(), l.call(bounded), e.run)
		quiet := requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		require.Equal(t, 59*time.Second, quiet, "two leases after the first one's end")
		pass(quiet - time.Second)
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, l.call(bounded)))
		pass(10 * time.Second)
		require.Equal(t, dedupv1.State_STATE_RELEASED, w.state(t, l.call(bounded)))
		res, err := w.engine.Do(t.Context(), l.call(bounded), e.run)
		requireOwn(t, res, err)
		require.Equal(t, 1, e.count())
	})
}

func TestAnOutageOfDedupdUsesUpNoProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := looks{rules: func(n int64) (guard.Verdict, error) {
			if n == 1 {
				return guard.StillUnknown(), nil
			}
			return guard.Applied(answerOf("found")), nil
		}}
		w.crash(t, l.call(fenced))
		pass(31 * time.Second)
		var e effect
		_, err := w.engine.Do(t.Context(), l.call(fenced), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		w.on("Reserve", always(fault{err: errCut}))
		pass(time.Hour)
		w.on("Reserve", nil)
		pass(time.Minute)
		require.EqualValues(t, 2, l.n.Load())
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, l.call(fenced)))
	})
}

func TestARecordIsProbedOnceHoweverManyCallsMeetIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := looks{rules: func(int64) (guard.Verdict, error) { return guard.StillUnknown(), nil }}
		w.crash(t, l.call(fenced))
		pass(31 * time.Second)
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				var e effect
				_, err := w.engine.Do(t.Context(), l.call(fenced), e.run)
				requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
			})
		}
		calls.Wait()
		pass(time.Hour)
		require.EqualValues(t, 10+guard.Probes, l.n.Load())
	})
}

func TestClosingTheEngineEndsTheBackgroundReconciler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := call()
		c.Basis = fenced
		c.Reconciler = func(ctx context.Context, _ guard.Attempt) (guard.Verdict, error) {
			<-ctx.Done() // by the engine's end, if it is one in the background
			return guard.StillUnknown(), context.Cause(ctx)
		}
		w.crash(t, c)
		pass(31 * time.Second)
		var e effect
		_, err := w.engine.Do(t.Context(), c, e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		pass(10 * time.Second) // a look is going on
		require.Equal(t, dedupv1.State_STATE_RESERVED, w.state(t, c))
		at := time.Now()
		w.engine.Close()
		require.Zero(t, time.Since(at))
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, c), "its grant was given back")
	})
}

func TestAReconcilerThatDoesNotStopHoldsUpNoClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := looks{rules: func(n int64) (guard.Verdict, error) {
			if n > 1 {
				pass(time.Hour)
			}
			return guard.StillUnknown(), nil
		}}
		w.crash(t, l.call(fenced))
		pass(31 * time.Second)
		var e effect
		_, err := w.engine.Do(t.Context(), l.call(fenced), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		pass(10 * time.Second)
		at := time.Now()
		w.engine.Close()
		require.Equal(t, guard.DefaultCloseTime/2, time.Since(at))
		pass(time.Hour) // until it returns
	})
}
