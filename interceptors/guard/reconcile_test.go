package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

const (
	bounded = dedupv1.Basis_BASIS_BOUNDED
	fenced  = dedupv1.Basis_BASIS_FENCED
	inbox   = dedupv1.Basis_BASIS_INBOX
)

func TestAnOrphanedKeyIsSettledByItsReconciler(t *testing.T) { // A05, A06
	t.Parallel()
	cases := map[string]struct {
		call  guard.Call
		after time.Duration // since the crash
		runs  int
		text  string        // of the answer, where there is one
		retry bool          // else: is it worth asking again?
		state dedupv1.State // afterwards
		note  string
	}{
		"applied":                          {call: reconciling(bounded, guard.Applied(answerOf("found")), nil), text: "found", state: dedupv1.State_STATE_COMPLETED},
		"not applied":                      {call: reconciling(fenced, guard.NotApplied(), nil), runs: 1, state: dedupv1.State_STATE_COMPLETED},
		"not seen, a late effect may land": {call: reconciling(bounded, guard.NotSeen(), nil), retry: true, state: dedupv1.State_STATE_UNKNOWN},
		"not seen, long quiet":             {call: reconciling(bounded, guard.NotSeen(), nil), after: 91 * time.Second, runs: 1, state: dedupv1.State_STATE_COMPLETED},
		"not seen, on another basis":       {call: reconciling(inbox, guard.NotSeen(), nil), after: 91 * time.Second, retry: true, state: dedupv1.State_STATE_UNKNOWN},
		"partial":                          {call: reconciling(bounded, guard.Partial("half"), nil), state: dedupv1.State_STATE_UNKNOWN, note: "partial: half"},
		"still unknown":                    {call: reconciling(bounded, guard.StillUnknown(), nil), retry: true, state: dedupv1.State_STATE_UNKNOWN},
		"an error, whatever it rules":      {call: reconciling(bounded, guard.NotApplied(), errors.New("no answer")), retry: true, state: dedupv1.State_STATE_UNKNOWN},
		"nobody to ask":                    {call: call(), retry: true, state: dedupv1.State_STATE_UNKNOWN},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.crash(t, c.call)
				pass(max(c.after, 31*time.Second))
				var e effect
				res, err := w.engine.Do(t.Context(), c.call, e.run)
				switch {
				case c.text != "":
					requireStored(t, res, err, c.text)
					require.True(t, res.Applied)
				case c.runs == 1:
					requireOwn(t, res, err)
				default:
					retryAfter := requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
					require.Equal(t, c.retry, retryAfter > 0)
				}
				require.Equal(t, c.runs, e.count())
				require.Equal(t, c.state.String(), w.state(t, c.call).String())
				if c.note != "" {
					require.Equal(t, c.note, w.lookup(t, c.call).GetNote())
				}
			})
		})
	}
}

func TestAReconcilerThatPanicsOrHangsSettlesNothing(t *testing.T) {
	t.Parallel()
	looks := map[string]guard.Reconciler{
		"panics": func(context.Context, guard.Attempt) (guard.Verdict, error) { panic("boom") }, //nolint:forbidigo // the case
		"hangs": func(ctx context.Context, _ guard.Attempt) (guard.Verdict, error) {
			<-ctx.Done()
			return guard.NotApplied(), ctx.Err()
		},
	}
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				c := call()
				c.Basis, c.Reconciler = bounded, look
				w.crash(t, c)
				pass(31 * time.Second)
				var e effect
				start := time.Now()
				_, err := w.engine.Do(t.Context(), c, e.run)
				retryAfter := requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
				require.Positive(t, retryAfter)
				require.LessOrEqual(t, time.Since(start), 31*time.Second)
				require.Zero(t, e.count())
			})
		})
	}
}

func TestTheReconcilerIsToldOfTheRunBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := call()
		c.Basis = fenced
		c.Reconciler = func(ctx context.Context, a guard.Attempt) (guard.Verdict, error) {
			fence, ok := guard.FenceFrom(ctx)
			require.True(t, ok)
			require.Equal(t, a.Fence, fence)
			require.EqualValues(t, 1, a.EarlierGrants)
			require.Equal(t, 10*time.Second, a.LastRunEnded)
			guard.MarkEffect(ctx) // what it does to find out is not the run's doing
			return guard.NotApplied(), nil
		}
		w.crash(t, c)
		pass(40 * time.Second)
		var e effect
		_, err := w.engine.Do(t.Context(), c, func(ctx context.Context, a guard.Attempt) guard.Ending {
			require.Equal(t, guard.LeftClean, guard.LeftBehind(ctx))
			guard.MarkEffect(ctx)
			require.Equal(t, guard.LeftApplied, guard.LeftBehind(ctx))
			return e.run(ctx, a)
		})
		require.NoError(t, err)
		require.Equal(t, 1, e.count())
	})
}

func TestALostBeginRunReplyIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("BeginRun", firstly(2, fault{lost: true}))
		c := reconciling(fenced, guard.NotApplied(), nil)
		w.crash(t, c)
		pass(31 * time.Second)
		var e effect
		res, err := w.engine.Do(t.Context(), c, e.run)
		requireOwn(t, res, err)
		require.Equal(t, 3, w.count("BeginRun"))
	})
}

func TestNothingRunsBeforeBeginRunIsAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("BeginRun", always(fault{lost: true}))
		c := reconciling(fenced, guard.NotApplied(), nil)
		w.crash(t, c)
		pass(31 * time.Second)
		var e effect
		_, err := w.engine.Do(t.Context(), c, e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
		require.Zero(t, e.count())
	})
}

func TestALateCompleteOfTheEarlierRunWinsOverItsReconciler(t *testing.T) { // A11
	t.Parallel()
	verdicts := map[string]guard.Verdict{"not applied": guard.NotApplied(), "applied": guard.Applied(answerOf("another"))}
	for name, v := range verdicts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				way, paused := w.join(t, guard.Observer{})
				way.on("Extend", always(fault{err: errCut}))
				c := call()
				c.Basis = fenced
				c.Reconciler = func(context.Context, guard.Attempt) (guard.Verdict, error) {
					pass(10 * time.Second) // meanwhile the earlier run gets through
					return v, nil
				}
				var e effect
				go paused.Do(t.Context(), c, func(ctx context.Context, a guard.Attempt) guard.Ending { //nolint:errcheck // the reconciler's answer shows its
					pass(35 * time.Second)
					return e.run(ctx, a)
				})
				pass(31 * time.Second)
				res, err := w.engine.Do(t.Context(), c, e.run)
				requireStored(t, res, err, "done")
				require.False(t, res.Applied)
				require.Equal(t, 1, e.count())
			})
		})
	}
}

func TestAnAppliedVerdictIsGivenOnlyOnceItIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Complete", always(fault{err: errCut}))
		c := reconciling(bounded, guard.Applied(answerOf("found")), nil)
		w.crash(t, c)
		pass(31 * time.Second)
		var e effect
		_, err := w.engine.Do(t.Context(), c, e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, true)
		require.Zero(t, e.count())
	})
}
