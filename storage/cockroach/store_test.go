package cockroach

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/storagetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, opener(Options{}))
}

func TestStoreWithoutGathering(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, opener(Options{NoGather: true}))
}

// B05: what the first run of a closure left behind would show in its second.
func TestStoreWithEveryWriteInATransactionThatIsAbortedOnce(t *testing.T) {
	t.Parallel()
	var aborted atomic.Int64
	t.Cleanup(func() { require.Positive(t, aborted.Load()) })
	storagetest.Run(t, opener(Options{}, transactionsOnly, func(s *Store) {
		s.wrapTx = func(fn func(pgx.Tx) error) func(pgx.Tx) error {
			first := true
			return func(tx pgx.Tx) error {
				err := fn(tx)
				if first && err == nil {
					first = false
					aborted.Add(1)
					return &pgconn.PgError{Code: "40001"}
				}
				return err
			}
		}
	}))
}

// transactionsOnly leaves nothing to the single statements.
func transactionsOnly(s *Store) {
	for k := range s.statements {
		s.statements[k] = func(_ context.Context, _ *pgxpool.Conn, calls []*call) ([]*storage.Answer, error) {
			return make([]*storage.Answer, len(calls)), nil
		}
	}
}

// A transaction pooler has no sessions: nothing is prepared, nothing set at start.
func TestStoreThroughAPoolersExecMode(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, opener(Options{URL: "&default_query_exec_mode=exec"}))
}
