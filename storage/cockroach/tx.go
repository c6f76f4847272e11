package cockroach

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	crdbpgx "github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Bounds of repeated tries.
const (
	maxTries  = 5
	firstWait = 10 * time.Millisecond
	maxWait   = time.Second
)

// retry calls try until it succeeds, fails for good, has been called maxTries
// times, or ctx or the caller ends. Waits have full jitter. Try may have been
// committed when it is called again: it must read before it writes.
func (s *Store) retry(ctx, caller context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		f := faultFinal
		if err != nil {
			f = judgeFault(err)
		}
		if f == faultFinal || n == maxTries {
			return err
		}
		s.observer.retry(f.String())
		if !pause(ctx, caller, backoff(n)) {
			return err
		}
	}
}

// backoff is a wait with full jitter before try n+1.
func backoff(n int) time.Duration {
	return rand.N(min(firstWait<<(n-1), maxWait)) + 1 //nolint:gosec // jitter is no secret
}

// pause waits for d; it reports false when ctx or the caller ends first.
func pause(ctx, caller context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-caller.Done():
	}
	return false
}

// onConn runs fn on a connection. A caller may give up while it waits for one;
// once it has it, only ctx ends what is under way: a cancel in mid-statement would
// cost the connection, while the server works on.
func (s *Store) onConn(ctx, caller context.Context, fn func(*pgxpool.Conn) error) error {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	conn, err := s.pool.Acquire(wait)
	if err != nil {
		if caller.Err() != nil {
			return caller.Err()
		}
		return err
	}
	defer conn.Release()
	return fn(conn)
}

// inTx runs fn in a transaction and commits it; nothing else opens one. It may
// run fn many times: fn writes to variables outside by full assignment only, has
// no effect but through tx, and wraps errors by %w. An error of COMMIT is an
// error, and may be ambiguous.
func (s *Store) inTx(ctx, caller context.Context, fn func(pgx.Tx) error) error {
	if s.wrapTx != nil {
		fn = s.wrapTx(fn)
	}
	return s.retry(ctx, caller, func() error {
		return s.onConn(ctx, caller, func(conn *pgxpool.Conn) error {
			if s.db.cockroach {
				return cockroachTx(ctx, caller, conn, fn)
			}
			return postgresTx(ctx, conn, fn)
		})
	})
}

// postgresTx makes one try. A savepoint would keep PostgreSQL's snapshot, so that
// a serialization failure recurs; the whole transaction is made again instead.
func postgresTx(ctx context.Context, conn beginner, fn func(pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback(ctx) // the first error tells more; a failed rollback closes the connection
		return err
	}
	return tx.Commit(ctx)
}

// cockroachTx lets cockroach-go restart fn within one transaction, which keeps its
// place in the queue. It waits not at all between tries, so fn's own try does.
func cockroachTx(ctx, caller context.Context, conn beginner, fn func(pgx.Tx) error) error {
	n := 0
	return crdbpgx.ExecuteTx(crdb.WithMaxRetries(ctx, maxTries-1), conn, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		if n++; n > 1 && !pause(ctx, caller, backoff(n-1)) {
			if caller.Err() != nil {
				return caller.Err()
			}
			return ctx.Err()
		}
		return fn(tx)
	})
}

// beginner begins transactions.
type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}
