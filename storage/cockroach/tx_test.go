package cockroach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func TestFaultsAreJudgedByWhatMayHaveHappened(t *testing.T) {
	t.Parallel()
	code := func(c string) error { return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: c}) }
	for want, errs := range map[fault][]error{
		faultContention: {
			code("40001"), code("40P01"), code("CR000"), code("55P03"), code("57014"), errChanged, pgx.ErrTxCommitRollback,
			&pgconn.PgError{Code: "40001", Message: "restart transaction: TransactionRetryError: retry txn (RETRY_COMMIT_DEADLINE_EXCEEDED)"}, // B06
		},
		faultConnection: {code("57P03"), code("53300"), code("25006"), &pgconn.ConnectError{}},
		faultAmbiguous: {
			code("40003"), code("57P01"), code("57P02"), code("08006"), code("08003"), io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
			&net.OpError{Op: "read", Err: errors.New("reset")}, &crdb.AmbiguousCommitError{}, errors.New("conn closed"),
		},
		faultFinal: {code("22021"), code("42501"), code("23505"), code("XX000"), context.DeadlineExceeded, context.Canceled, errCorrupt},
	} {
		for _, err := range errs {
			require.Equal(t, want.String(), judgeFault(err).String(), "%v", err)
		}
	}
}

func TestWhatACallerGetsIsUnavailableOrItsOwnEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, unavailable(ctx, context.Canceled), storage.ErrUnavailable, "not the caller's own end")
	require.ErrorIs(t, unavailable(ctx, &pgconn.PgError{Code: "40001"}), storage.ErrUnavailable)
	require.NotErrorIs(t, unavailable(ctx, storage.ErrClosed), storage.ErrUnavailable)
	require.NoError(t, unavailable(ctx, nil))
	cancel()
	require.Equal(t, context.Canceled, unavailable(ctx, fmt.Errorf("acquire: %w", context.Canceled)))
}

// B03: waits are jittered, bounded each, and end with the call's time.
func TestTriesAreBoundedInNumberAndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Store{}
		tries := 0
		again := func() error { tries++; return &pgconn.PgError{Code: "40001"} }
		begun := time.Now()
		require.Error(t, s.retry(t.Context(), t.Context(), again))
		require.Equal(t, maxTries, tries)
		require.LessOrEqual(t, time.Since(begun), maxTries*maxWait)
		for n := 1; n < 40; n++ {
			require.LessOrEqual(t, backoff(n), maxWait+1)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		tries = 0
		require.Error(t, s.retry(ctx, t.Context(), again))
		require.Equal(t, 1, tries)

		tries = 0
		require.NoError(t, s.retry(t.Context(), t.Context(), func() error {
			if tries++; tries < 3 {
				return &pgconn.PgError{Code: "40001"}
			}
			return nil
		}))
		require.Equal(t, 3, tries)
	})
}

// fakeTx is a session whose statements fail as told, each time anew.
type fakeTx struct {
	pgx.Tx
	fail map[string][]error
	log  []string
}

func (f *fakeTx) do(what string) error {
	f.log = append(f.log, what)
	if errs := f.fail[what]; len(errs) > 0 {
		f.fail[what] = errs[1:]
		return errs[0]
	}
	return nil
}

func (f *fakeTx) Begin(context.Context) (pgx.Tx, error) { return f, f.do("begin") }

func (f *fakeTx) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) { return f, f.do("begin") }

func (f *fakeTx) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, f.do(sql)
}

func (f *fakeTx) Commit(context.Context) error { return f.do("commit") }

func (f *fakeTx) Rollback(context.Context) error { return f.do("rollback") }

func TestATransactionOnCockroachIsRestartedAtItsSavepoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		restart := &pgconn.PgError{Code: "40001"}
		tx := &fakeTx{fail: map[string][]error{"work": {restart}, "RELEASE SAVEPOINT cockroach_restart": {restart}}}
		work := func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), "work"); return err }
		require.NoError(t, cockroachTx(t.Context(), t.Context(), tx, work))
		require.Equal(t, "begin SAVEPOINT work ROLLBACK work RELEASE ROLLBACK work RELEASE commit", tx.said())

		tx = &fakeTx{fail: map[string][]error{"RELEASE SAVEPOINT cockroach_restart": {io.ErrUnexpectedEOF}}}
		err := cockroachTx(t.Context(), t.Context(), tx, work)
		require.Equal(t, faultAmbiguous, judgeFault(err))

		tx = &fakeTx{fail: map[string][]error{"work": {restart, restart, restart, restart, restart, restart}}}
		err = cockroachTx(t.Context(), t.Context(), tx, work)
		require.Equal(t, faultContention, judgeFault(err))
		require.Equal(t, maxTries, strings.Count(tx.said(), "work"), "cockroach-go's own 50 tries are bounded")

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		tx = &fakeTx{fail: map[string][]error{"work": {restart}}}
		require.ErrorIs(t, cockroachTx(t.Context(), gone, tx, work), context.Canceled)
		require.Equal(t, 1, strings.Count(tx.said(), "work"), "nobody waits for another try")
	})
}

func TestATransactionOnPostgresTellsWhatCommitSays(t *testing.T) {
	t.Parallel()
	work := func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), "work"); return err }
	tx := &fakeTx{fail: map[string][]error{"commit": {io.ErrUnexpectedEOF}}}
	require.Equal(t, faultAmbiguous, judgeFault(postgresTx(t.Context(), tx, work)))
	require.Equal(t, "begin work commit", tx.said(), "no savepoint: it would keep the snapshot")

	tx = &fakeTx{fail: map[string][]error{"work": {&pgconn.PgError{Code: "40001"}}}}
	require.Equal(t, faultContention, judgeFault(postgresTx(t.Context(), tx, work)))
	require.Equal(t, "begin work rollback", tx.said())
}

// said is the first word of each statement.
func (f *fakeTx) said() string {
	var words []string
	for _, line := range f.log {
		word, _, _ := strings.Cut(line, " ")
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
