package inbox_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/inbox"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
)

var errDied = errors.New("the process died here")

func TestKeyAndEffectCommitTogether(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		first, err := handle(t.Context(), world.process(t), call(d), charging(d))
		require.NoError(t, err)
		require.Equal(t, "done", d.rowState(t))
		again, err := handle(t.Context(), world.process(t), call(d), charging(d))
		require.NoError(t, err)
		require.Equal(t, first.GetChargeId(), again.GetChargeId())
		require.Equal(t, []string{first.GetChargeId()}, d.effects(t))
	})
}

// A05 A02: committed, and the record was never completed: the row answers.
func TestAnInterruptedRunThatCommittedIsAnsweredFromItsRow(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		var first *receipt
		_, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
			var err error
			first, err = d.do(ctx, charge)
			require.NoError(t, err)
			return nil, interceptors.OutcomeUnknown(errDied)
		})
		require.Error(t, err)
		again, err := handle(t.Context(), world.process(t), call(d), charging(d))
		require.NoError(t, err)
		require.Equal(t, first.GetChargeId(), again.GetChargeId())
		require.Equal(t, []string{first.GetChargeId()}, d.effects(t))
	})
}

// A05 B13: whatever ends the transaction, neither effect nor key is there, and the
// retry runs.
func TestAnInterruptedRunThatDidNotCommitRunsAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context, exec exec) error{
		"an error":          func(context.Context, exec) error { return errDied },
		"a panic":           func(context.Context, exec) error { panic(errDied) }, //nolint:forbidigo // the case
		"a goroutine's end": func(context.Context, exec) error { runtime.Goexit(); return nil },
		"a killed connection": func(ctx context.Context, exec exec) error {
			return exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		},
		"a failed statement": func(ctx context.Context, exec exec) error { return exec(ctx, "SELECT 1/0") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivers(t, func(t *testing.T, d *driver) {
				t.Helper()
				world := startDedupd(t)
				p := world.process(t)
				ended := make(chan struct{})
				go func() { // a panic or a Goexit ends it
					defer close(ended)
					defer func() { _ = recover() }()
					_, err := handle(t.Context(), p, call(d), func(ctx context.Context) (*receipt, error) {
						return d.do(ctx, func(ctx context.Context, exec exec) (*receipt, error) {
							r, err := charge(ctx, exec)
							return r, errors.Join(err, end(ctx, exec))
						}, inbox.Tries(1))
					})
					require.Error(t, err) //nolint:testifylint // the goroutine ends here anyhow
				}()
				<-ended
				require.Empty(t, d.rowState(t))
				require.Empty(t, d.effects(t))
				again, err := handle(t.Context(), world.process(t), call(d), charging(d))
				require.NoError(t, err)
				require.Equal(t, []string{again.GetChargeId()}, d.effects(t))
			})
		})
	}
}

// A11: a holder that stood still past its lease and goes on before its mark.
func TestAPausedHolderFindsTheLaterOnesAnswer(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		var second *receipt
		first, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
			world.cut("Extend") // as if the process stood still
			<-ctx.Done()
			var err error
			second, err = handle(t.Context(), world.process(t), call(d), charging(d))
			require.NoError(t, err)
			return d.do(unstoppable(ctx), charge)
		})
		require.NoError(t, err)
		require.Equal(t, second.GetChargeId(), first.GetChargeId())
		require.Equal(t, []string{second.GetChargeId()}, d.effects(t))
	})
}

// A11: the reconciler has only planted its fence; the earlier holder is shut out.
func TestAPausedHolderIsShutOutByAPlantedFence(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		_, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
			world.cut("Extend")
			<-ctx.Done()
			_, err := handle(t.Context(), world.process(t), call(d), func(context.Context) (*receipt, error) {
				return nil, interceptors.OutcomeUnknown(errDied) // before its mark
			})
			require.Error(t, err)
			require.Equal(t, "planted", d.rowState(t))
			_, err = d.do(unstoppable(ctx), charge)
			require.ErrorIs(t, err, inbox.ErrStaleHolder)
			require.Empty(t, d.effects(t))
			return nil, err
		})
		require.ErrorIs(t, err, guard.ErrOutcomeUnknown)
		world.cut()
		again, err := handle(t.Context(), world.process(t), call(d), charging(d))
		require.NoError(t, err)
		require.Equal(t, []string{again.GetChargeId()}, d.effects(t))
	})
}

// unstoppable is ctx for a process that never looks whether it has ended.
func unstoppable(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// A key whose effect was committed for one request never answers another's.
func TestARowOfAnotherRequestIsNeverTheAnswer(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		var first *receipt
		_, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
			first, _ = d.do(ctx, charge)
			return nil, interceptors.NotApplied(errDied) // it is mistaken
		})
		require.ErrorIs(t, err, errDied)
		other := call(d)
		other.Fingerprints = fingerprint(999)
		for range 2 { // told by Mark, then by the reconciler and Mark
			_, err = handle(t.Context(), world.process(t), other, func(ctx context.Context) (*receipt, error) {
				_, err := d.do(ctx, charge)
				require.ErrorIs(t, err, inbox.ErrKeyReused)
				return nil, interceptors.OutcomeUnknown(errDied)
			})
			require.Error(t, err)
		}
		require.Equal(t, []string{first.GetChargeId()}, d.effects(t))
	})
}

// Section 3: with dedupd away after the run, the first caller has its answer, and so
// has whoever comes later by another process; nothing conflicts.
func TestTheFirstCallerIsAnsweredWhenDedupdIsAway(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		delivered, superseded := make(chan struct{}), false
		p := world.observed(t, guard.Observer{
			Pending: func(messages int, _ int64) {
				if messages == 0 {
					close(delivered)
				}
			},
			Superseded: func(string) { superseded = true },
		})
		first, err := handle(t.Context(), p, call(d), func(ctx context.Context) (*receipt, error) {
			r, err := d.do(ctx, charge)
			world.cut("Complete", "Extend")
			return r, err
		})
		require.NoError(t, err)
		another := &dedupd{cc: world.cc} // a process that dedupd is not away for
		again, err := handle(t.Context(), another.process(t), call(d), charging(d))
		require.NoError(t, err)
		world.cut()
		require.Equal(t, first.GetChargeId(), again.GetChargeId())
		<-delivered
		require.False(t, superseded)
		require.Equal(t, []string{first.GetChargeId()}, d.effects(t))
	})
}

// Another answer than the row's is withheld: a later run would answer by the row.
func TestAnAnswerThatTheRowDoesNotHoldIsWithheld(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		for _, handler := range []func(ctx context.Context) (*receipt, error){
			func(context.Context) (*receipt, error) { return &receipt{ChargeId: "unmarked"}, nil },
			func(ctx context.Context) (*receipt, error) {
				_, err := d.do(ctx, charge)
				return &receipt{ChargeId: "another"}, err
			},
		} {
			world := startDedupd(t)
			world.cut("Complete")
			_, err := handle(t.Context(), world.process(t), call(d), handler)
			require.ErrorIs(t, err, guard.ErrOutcomeUnknown)
		}
	})
}

// A transaction that was committed without its answer is an operator's to judge, and
// never run again.
func TestARowThatWasMarkedAndNotDoneIsHeldForAnOperator(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	world := startDedupd(t)
	_, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
		require.NoError(t, pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
			answer, err := pgxinbox.Mark(ctx, tx)
			require.Nil(t, answer)
			require.NoError(t, err)
			_, err = charge(ctx, execOf(tx))
			return err // and no Done
		}))
		require.ErrorIs(t, pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
			_, err := pgxinbox.Mark(ctx, tx)
			return err
		}), inbox.ErrNotDone)
		return nil, interceptors.OutcomeUnknown(errDied)
	})
	require.Error(t, err)
	_, err = handle(t.Context(), world.process(t), call(d), charging(d))
	var refusal *guard.RefusalError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, refusal.Reason)
	require.Zero(t, refusal.RetryAfter, "asking again does not help")
	require.Len(t, d.effects(t), 1)
}

// A transaction in flight on the row is waited for, then the outcome stays unknown.
func TestAReconcilerDoesNotWaitForeverForATransactionInFlight(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world := startDedupd(t)
		conn, err := d.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
			_, err := pgxinbox.Mark(ctx, tx)
			require.NoError(t, err)
			r, err := charge(ctx, execOf(tx))
			require.NoError(t, err)
			require.NoError(t, pgxinbox.Done(ctx, tx, r))
			return nil, interceptors.OutcomeUnknown(errDied) // and the transaction goes on
		})
		require.Error(t, err)
		_, err = handle(t.Context(), world.process(t), call(d), charging(d))
		var refusal *guard.RefusalError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, refusal.Reason)
		require.Positive(t, refusal.RetryAfter)
		require.NoError(t, tx.Commit(t.Context()))
		again, err := handle(t.Context(), world.process(t), call(d), charging(d))
		require.NoError(t, err)
		require.Equal(t, []string{again.GetChargeId()}, d.effects(t))
	})
}
