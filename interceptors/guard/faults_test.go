package guard_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

func TestALostReserveReplyIsAskedForAgain(t *testing.T) { // B01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Reserve", firstly(2, fault{lost: true}))
		var e effect
		res, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, a guard.Attempt) guard.Ending {
			require.Zero(t, a.EarlierGrants, "one attempt id, one grant")
			return e.run(ctx, a)
		})
		requireOwn(t, res, err)
		require.Equal(t, 3, w.count("Reserve"))
		require.Equal(t, 1, e.count())
	})
}

func TestAGrantThatWasNeverReadBlocksNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Reserve", firstly(3, fault{lost: true}))
		w.on("Release", firstly(2, fault{err: errCut}))
		var e effect
		_, err := w.engine.Do(t.Context(), call(), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
		require.Equal(t, dedupv1.State_STATE_RESERVED, w.state(t, call()), "granted to nobody")

		at := time.Now()
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err)
		require.Less(t, time.Since(at), 2*time.Second, "not after the lease")
		require.Equal(t, 1, e.count())
		require.Equal(t, 3, w.count("Release"))
	})
}

func TestACallerThatLeavesTheQueueGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		w.on("Reserve", firstly(1, fault{after: time.Hour}))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := w.engine.Do(ctx, call(), e.run)
		require.Equal(t, codes.Canceled, status.Code(err))
		synctest.Wait()
		require.Equal(t, 1, w.count("Release"))
		require.Zero(t, e.count())
	})
}

func TestALostCompleteReplyIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Complete", firstly(2, fault{lost: true}))
		var e effect
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err)
		require.NotNil(t, res.Ends)
		require.Equal(t, 3, w.count("Complete"))
		res, err = w.engine.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
	})
}

func TestALostReleaseReplyIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Release", firstly(1, fault{lost: true}))
		_, err := w.engine.Do(t.Context(), call(), func(context.Context, guard.Attempt) guard.Ending {
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE}
		})
		require.NoError(t, err)
		require.Equal(t, 2, w.count("Release"))
		require.Equal(t, dedupv1.State_STATE_RELEASED, w.state(t, call()))
	})
}

func TestAnOutcomeThatCannotBeDeliveredIsNeverRunAgain(t *testing.T) { // A02, H02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		undelivered, unacknowledged := 0, 0
		way, engine := w.join(t, guard.Observer{
			Undelivered: func(string) { undelivered++ }, Unacknowledged: func(string) { unacknowledged++ },
		})
		way.on("Complete", always(fault{err: errCut}))
		var e effect
		res, err := engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err) // REFUSE: no later run can answer otherwise
		require.Nil(t, res.Ends)
		require.Equal(t, 1, unacknowledged, "counted at once")

		_, err = w.engine.Do(t.Context(), call(), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_IN_PROGRESS, false)
		pass(30 * time.Second)
		_, err = w.engine.Do(t.Context(), call(), e.run)
		retryAfter := requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		require.Positive(t, retryAfter, "it may settle by itself: somebody goes on trying")
		pass(25 * time.Hour)
		_, err = w.engine.Do(t.Context(), call(), e.run)
		retryAfter = requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		require.Zero(t, retryAfter)
		synctest.Wait()
		require.Equal(t, 1, e.count())
		require.Equal(t, 1, undelivered)
	})
}

func TestAnOutcomeIsDeliveredOnceDedupdIsBack(t *testing.T) { // A02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Complete", firstly(12, fault{err: errCut}))
		var e effect
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err)
		pass(time.Minute)
		res, err = w.engine.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
		require.Equal(t, 1, e.count())
	})
}

func TestAnUndeliveredAnswerIsWithheldWhereALaterRunMayAnswerOtherwise(t *testing.T) {
	t.Parallel()
	rerun, shared := call(), call()
	rerun.RerunSafe = true
	shared.SharedWithRerun = true
	calls := map[string]guard.Call{
		"rerun": rerun, "shared": shared,
		"reconcile": reconciling(dedupv1.Basis_BASIS_BOUNDED, guard.StillUnknown(), nil),
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.on("Complete", always(fault{err: errCut}))
				var e effect
				_, err := w.engine.Do(t.Context(), c, e.run)
				requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, true)
				require.Equal(t, 1, e.count())
			})
		})
	}
}

func TestAPausedHolderGivesTheAnswerOfTheOneThatTookOver(t *testing.T) { // A11, A08
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		superseded := 0
		way, paused := w.join(t, guard.Observer{Superseded: func(string) { superseded++ }})
		way.on("Extend", always(fault{err: errCut}))
		c := call()
		c.RerunSafe = true
		var e effect
		var late guard.Result
		var lateErr error
		go func() {
			late, lateErr = paused.Do(t.Context(), c, func(context.Context, guard.Attempt) guard.Ending {
				pass(time.Minute) // it stands still, past its lease, and does not look at its context
				e.add()
				return guard.Ending{Outcome: answerOf("late")}
			})
		}()
		pass(31 * time.Second)
		res, err := w.engine.Do(t.Context(), c, e.run)
		requireOwn(t, res, err)
		pass(time.Minute)
		synctest.Wait()
		requireStored(t, late, lateErr, "done")
		require.Equal(t, 1, superseded)
		require.Equal(t, 2, e.count(), "both ran, as the policy allows; there is one answer")
	})
}

func TestAPausedHolderWithoutAnAnswerToGiveSaysUnknown(t *testing.T) { // A11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		way, paused := w.join(t, guard.Observer{})
		way.on("Extend", always(fault{err: errCut}))
		c := call()
		c.RerunSafe = true
		var e effect
		var lateErr error
		go func() {
			_, lateErr = paused.Do(t.Context(), c, func(context.Context, guard.Attempt) guard.Ending {
				pass(40 * time.Second)
				return guard.Ending{Outcome: answerOf("late")}
			})
		}()
		pass(31 * time.Second)
		res, err := w.engine.Do(t.Context(), c, e.lasting(time.Minute))
		requireOwn(t, res, err)
		synctest.Wait()
		retryAfter := requireRefused(t, lateErr, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		require.Positive(t, retryAfter)
	})
}

func TestAnErrorOfARunThatFollowedAnUnknownOneSettlesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := call()
		c.RerunSafe = true
		w.crash(t, c)
		pass(31 * time.Second)
		_, err := w.engine.Do(t.Context(), c, func(context.Context, guard.Attempt) guard.Ending {
			return guard.Ending{Outcome: &dedupv1.Outcome{Status: []byte{8, 9}}} // FAILED_PRECONDITION
		})
		requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.state(t, c))
	})
}

func TestNothingRunsWithoutDedupd(t *testing.T) { // H01, E09
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Reserve", always(fault{err: errCut}))
		var e effect
		for attempt := 1; attempt <= 5; attempt++ {
			c := call()
			c.Attempt = attempt
			_, err := w.engine.Do(t.Context(), c, e.run)
			retryAfter := requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
			require.Positive(t, retryAfter)
		}
		require.Zero(t, e.count())
		require.Equal(t, 3+2+1+1+1, w.count("Reserve"), "the layers' retries add up, they do not multiply")

		w.on("Reserve", nil)
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err)
	})
}

func TestAHangingDedupdIsGivenUpInTime(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Reserve", always(fault{after: time.Hour}))
		c := call()
		c.RefuseAtOnce = true
		start := time.Now()
		var e effect
		_, err := w.engine.Do(t.Context(), c, e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
		require.LessOrEqual(t, time.Since(start), 5*time.Second)
		require.Zero(t, e.count())
	})
}

func TestAnAnswerThatIsNotDedupdsRunsNothing(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Reserve", always(fault{err: status.Error(codes.Unimplemented, "this is no dedupd")}))
		var e effect
		_, err := w.engine.Do(t.Context(), call(), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
		require.Equal(t, 1, w.count("Reserve"), "it will not be another one by asking again")
		require.Zero(t, e.count())
	})
}

func TestAGrantThatCameTooLateIsNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := call()
		c.Lease = time.Second
		// The grant is written at once, its reply is lost, and the repeat is late.
		w.on("Reserve", func(n int) fault {
			switch n {
			case 1:
				return fault{lost: true}
			case 2:
				return fault{after: 1500 * time.Millisecond}
			}
			return fault{}
		})
		var e effect
		res, err := w.engine.Do(t.Context(), c, func(ctx context.Context, a guard.Attempt) guard.Ending {
			require.EqualValues(t, 1, a.EarlierGrants)
			return e.run(ctx, a)
		})
		requireOwn(t, res, err)
		require.Equal(t, 3, w.count("Reserve"))
		require.Equal(t, 1, e.count())
	})
}

func TestAGrantThatWasWaitedForIsNotTakenForAnOldOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := call()
		c.Lease = 2 * time.Second
		go w.engine.Do(t.Context(), c, func(ctx context.Context, a guard.Attempt) guard.Ending { //nolint:errcheck // it frees the key
			pass(6 * time.Second)
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE}
		})
		synctest.Wait()
		way, engine := w.join(t, guard.Observer{})
		var e effect
		res, err := engine.Do(t.Context(), c, e.run)
		requireOwn(t, res, err)
		require.Equal(t, 1, way.count("Reserve"))
		require.Equal(t, 1, way.count("Extend"), "it asked how much was left")
	})
}

func TestAnOutcomeThatDedupdRefusesIsNotAnOutcomeLost(t *testing.T) { // D01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		res, err := w.engine.Do(t.Context(), call(), func(_ context.Context, a guard.Attempt) guard.Ending {
			return guard.Ending{Outcome: answerOf(string(make([]byte, a.MaxOutcomeBytes+1)))}
		})
		requireOwn(t, res, err)
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, call()))
		var e effect
		res, err = w.engine.Do(t.Context(), call(), e.run)
		require.NoError(t, err)
		require.EqualValues(t, 1<<20+1, res.Stored.GetOutcome().GetOmitted().GetSize())
		require.Zero(t, e.count())
	})
}

func TestAHolderWhoseRecordIsGoneInvitesNoRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var e effect
		_, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, a guard.Attempt) guard.Ending {
			w.store.mu.Lock()
			defer w.store.mu.Unlock()
			clear(w.store.rows) // an operator forgot it
			return e.run(ctx, a)
		})
		require.Zero(t, requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true), "a retry would be a second effect")
	})
}

func TestAKeyThatSomebodyWasBusyWithIsNotUnreached(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, other := w.join(t, guard.Observer{})
		var e effect
		go other.Do(t.Context(), call(), e.lasting(4*time.Minute)) //nolint:errcheck // it holds the key
		synctest.Wait()
		c := call()
		c.Wait = time.Minute // dedupd holds a call for half of it
		for busy, reserve := range map[bool]func(int) fault{
			true: func(n int) fault {
				if n > 1 {
					return fault{err: errCut}
				}
				return fault{}
			},
			false: always(fault{err: errCut}),
		} {
			w.on("Reserve", reserve)
			_, err := w.engine.Do(t.Context(), c, nil)
			var refusal *guard.RefusalError
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, dedupv1.Reason_REASON_STORE_UNAVAILABLE, refusal.Reason)
			require.Equal(t, !busy, refusal.Unreached)
		}
	})
}
