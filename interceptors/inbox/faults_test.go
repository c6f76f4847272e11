package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	crdbpgx "github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/inbox"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
)

// faulty is a pool whose transactions meet faults.
type faulty struct {
	*pgxpool.Pool
	begin          func(n int) error                         // instead of the n-th begin, from 1
	commit         func(n int) (fault error, committed bool) // of the n-th commit: fault nil commits
	mu             sync.Mutex
	begun, commits int
}

func (f *faulty) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun++
	if f.begin != nil {
		if err := f.begin(f.begun); err != nil {
			return nil, err
		}
	}
	tx, err := f.Pool.BeginTx(ctx, opts)
	return &faultyTx{Tx: tx, f: f}, err
}

type faultyTx struct {
	pgx.Tx
	f *faulty
}

func (t *faultyTx) Commit(ctx context.Context) error {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.f.commits++
	fault, committed := t.f.commit(t.f.commits)
	switch {
	case fault == nil:
		return t.Tx.Commit(ctx)
	case committed:
		return errors.Join(t.Tx.Commit(ctx), fault)
	}
	return errors.Join(t.Rollback(ctx), fault)
}

func code(sqlState string) error { return &pgconn.PgError{Code: sqlState, Message: "as injected"} }

// B02: the commit's answer is lost. The next try's mark reads what became of it.
func TestALostCommitIsReadBackAndNeverDoneTwice(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]error{
		"result is ambiguous": code("40003"), "the session was ended": code("57P01"),
		"the connection failed": code("08006"), "end of file": io.ErrUnexpectedEOF,
	} {
		for _, committed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, committed: %v", name, committed), func(t *testing.T) {
				t.Parallel()
				d := openDriver(t, true)
				world := startDedupd(t)
				f := &faulty{Pool: d.pool, commit: func(n int) (error, bool) {
					if n > 1 {
						return nil, true
					}
					return fault, committed
				}}
				ran := 0
				resp, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
					return doOver(f)(ctx, func(ctx context.Context, exec exec) (*receipt, error) {
						ran++
						return charge(ctx, exec)
					})
				})
				require.NoError(t, err)
				require.Equal(t, []string{resp.GetChargeId()}, d.effects(t))
				if committed {
					require.Equal(t, 1, ran)
				} else {
					require.Equal(t, 2, ran)
				}
			})
		}
	}
}

// B02: and nobody can be asked any more: unknown is said, and settled by the retry.
func TestALostCommitThatCannotBeReadIsUnknown(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	world := startDedupd(t)
	lost := &faulty{
		Pool:   d.pool,
		begin:  func(n int) error { return map[bool]error{true: code("57P03")}[n > 1] },
		commit: func(int) (error, bool) { return io.ErrUnexpectedEOF, true },
	}
	_, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) {
		return doOver(lost)(ctx, charge)
	})
	require.ErrorIs(t, err, guard.ErrOutcomeUnknown)
	again, err := handle(t.Context(), world.process(t), call(d), charging(d))
	require.NoError(t, err)
	require.Equal(t, []string{again.GetChargeId()}, d.effects(t))

	local, err := inbox.WithLocal(t.Context(), localRecord("another"))
	require.NoError(t, err)
	lost.begun = 0
	_, err = doOver(lost)(local, charge)
	require.ErrorIs(t, err, inbox.ErrOutcomeUnknown)
}

// B02: the next try has taken the row, so the lost commit did not happen: what that
// try says is known.
func TestALostCommitThatDidNotHappenLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	ctx, err := inbox.WithLocal(t.Context(), localRecord("4471"))
	require.NoError(t, err)
	f, ran := &faulty{Pool: d.pool, commit: func(int) (error, bool) { return io.ErrUnexpectedEOF, false }}, 0
	_, err = doOver(f)(ctx, func(ctx context.Context, exec exec) (*receipt, error) {
		if ran++; ran == 2 {
			return nil, errDied
		}
		return charge(ctx, exec)
	})
	require.ErrorIs(t, err, errDied)
	require.NotErrorIs(t, err, inbox.ErrOutcomeUnknown)
	require.Empty(t, d.effects(t))
}

// B02 B06: what is refused before anything is committed is tried again, five times in
// all, and then has a code that says that nothing was applied.
func TestFaultsBeforeTheCommitAreTriedAgain(t *testing.T) {
	t.Parallel()
	commitDeadline := &pgconn.PgError{Code: "40001", Message: "restart transaction: TransactionRetryError: retry txn (RETRY_COMMIT_DEADLINE_EXCEEDED)"}
	for name, c := range map[string]struct {
		fault error
		at    func(f *faulty, fault func(n int) error)
		code  codes.Code
	}{
		"no connection": {code("53300"), func(f *faulty, fault func(int) error) { f.begin = fault }, codes.Unavailable},
		"the commit's deadline": {commitDeadline, func(f *faulty, fault func(int) error) {
			f.commit = func(n int) (error, bool) { return fault(n), false }
		}, codes.Aborted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openDriver(t, true)
			for upTo, want := range map[int]codes.Code{4: codes.OK, 5: c.code} {
				f := &faulty{Pool: d.pool, commit: func(int) (error, bool) { return nil, true }}
				c.at(f, func(n int) error { return map[bool]error{true: c.fault}[n <= upTo] })
				ctx, err := inbox.WithLocal(t.Context(), localRecord(fmt.Sprint(upTo)))
				require.NoError(t, err)
				_, err = doOver(f)(ctx, charge)
				require.Equal(t, want, status.Code(err), "%v", err)
				require.Equal(t, 5, f.begun)
			}
			require.Len(t, d.effects(t), 1)
		})
	}
}

// B06: a transaction that takes too long is rolled back, and says so for good.
func TestATransactionThatTakesTooLongIsRolledBack(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		local, err := inbox.WithLocal(t.Context(), localRecord("slow"))
		require.NoError(t, err)
		for _, ctx := range []context.Context{local, t.Context()} {
			_, err = d.do(ctx, func(ctx context.Context, exec exec) (*receipt, error) {
				r, err := charge(ctx, exec)
				require.NoError(t, err)
				<-ctx.Done()
				return r, nil // it does not even look
			}, inbox.MaxTime(200*time.Millisecond), inbox.AllowUnkeyed())
			require.ErrorIs(t, err, inbox.ErrTooLong)
			require.Equal(t, codes.FailedPrecondition, status.Code(err))
		}
		require.Empty(t, d.effects(t))
		require.Empty(t, d.rowState(t))
	})
}

// B05: the closure runs twice, and has its effect once; so it is in cockroach-go's
// loop.
func TestAClosureThatRunsTwiceHasOneEffect(t *testing.T) {
	t.Parallel()
	const contention = "DO $$ BEGIN RAISE 'as injected' USING ERRCODE = '40001'; END $$"
	once := func(ran *int) func(ctx context.Context, exec exec) (*receipt, error) {
		return func(ctx context.Context, exec exec) (*receipt, error) {
			r, err := charge(ctx, exec)
			if *ran++; *ran == 1 && err == nil {
				err = exec(ctx, contention)
			}
			return r, err
		}
	}
	check := func(t *testing.T, d *driver, handler func(ctx context.Context, ran *int) (*receipt, error)) {
		t.Helper()
		world, ran := startDedupd(t), 0
		resp, err := handle(t.Context(), world.process(t), call(d), func(ctx context.Context) (*receipt, error) { return handler(ctx, &ran) })
		require.NoError(t, err)
		require.Equal(t, 2, ran)
		require.Equal(t, []string{resp.GetChargeId()}, d.effects(t))
		require.Equal(t, "done", d.rowState(t))
	}
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		check(t, d, func(ctx context.Context, ran *int) (*receipt, error) { return d.do(ctx, once(ran)) })
	})
	t.Run("cockroach-go over pgx", func(t *testing.T) {
		t.Parallel()
		d := openDriver(t, true)
		check(t, d, func(ctx context.Context, ran *int) (resp *receipt, err error) {
			err = crdbpgx.ExecuteTx(ctx, d.pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
				answer, err := pgxinbox.Mark(ctx, tx)
				require.Nil(t, answer)
				if err != nil {
					return err
				}
				if resp, err = once(ran)(ctx, execOf(tx)); err != nil {
					return err
				}
				return pgxinbox.Done(ctx, tx, resp)
			})
			return resp, err
		})
	})
	t.Run("cockroach-go over database/sql", func(t *testing.T) {
		t.Parallel()
		d := openDriver(t, false)
		check(t, d, func(ctx context.Context, ran *int) (resp *receipt, err error) {
			err = crdb.ExecuteTx(ctx, d.db, nil, func(tx *sql.Tx) error {
				answer, err := inbox.Mark(ctx, tx)
				require.Nil(t, answer)
				if err != nil {
					return err
				}
				resp, err = once(ran)(ctx, func(ctx context.Context, query string, args ...any) error {
					_, err := tx.ExecContext(ctx, query, args...)
					return err
				})
				if err != nil {
					return err
				}
				return inbox.Done(ctx, tx, resp)
			})
			return resp, err
		})
	})
}

func TestAMarkInASavepointGoesWithIt(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	ctx, err := inbox.WithLocal(t.Context(), localRecord("nested"))
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		step := func(fails error) error {
			return pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
				_, err := pgxinbox.Mark(ctx, nested)
				require.NoError(t, err)
				r, err := charge(ctx, execOf(nested))
				require.NoError(t, err)
				require.NoError(t, pgxinbox.Done(ctx, nested, r))
				return fails
			})
		}
		require.ErrorIs(t, step(errDied), errDied)
		return step(nil)
	}))
	require.Len(t, d.effects(t), 1)
	require.Equal(t, "done", d.rowState(t))
}

// Every isolation level: of many runs at once one has its effect, all have its answer.
func TestConcurrentRunsOfAKeyHaveOneEffectAtEveryIsolationLevel(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			drivers(t, func(t *testing.T, d *driver) {
				t.Helper()
				ctx, err := inbox.WithLocal(t.Context(), localRecord("hot"))
				require.NoError(t, err)
				const runs = 8
				answers := make(chan string, runs)
				for range runs {
					go func() {
						r, err := d.do(ctx, charge, inbox.Isolation(level), inbox.Tries(2*runs))
						answers <- fmt.Sprint(r.GetChargeId(), err)
					}()
				}
				first := <-answers
				for range runs - 1 {
					require.Equal(t, first, <-answers)
				}
				require.Equal(t, []string{first}, stripNil(d.effects(t)))
			})
		})
	}
}

func stripNil(ids []string) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id + "<nil>"
	}
	return out
}
