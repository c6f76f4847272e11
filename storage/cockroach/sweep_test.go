package cockroach

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// seedSQL makes rows whose time is over.
const seedSQL = `INSERT INTO dedup_records (id, shard, namespace, operation, caller, key, state, version, fence, attempt, mode,
  lease, run_fence, run_attempt, grants, created_at, fingerprint, drop_at)
SELECT u.id, u.shard, 'old', 'op', '', u.id, 5, 1, 1, u.id, 1, INTERVAL '1 second', 1, u.id, 1, now(), u.id, now() - INTERVAL '1 hour'
FROM unnest($1::BYTEA[], $2::INT2[]) AS u (id, shard)`

// B10: with no traffic at all the table shrinks to nothing, in bounded steps; a row
// that a call holds is left alone and delays nobody.
func TestASweepEmptiesTheTableInBoundedStepsAroundWhatCallsHold(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	if s.db.rowTTL {
		t.Skip("the database deletes rows by itself")
	}
	var swept, steps atomic.Int64
	s.observer.Swept = func(rows int, backlog time.Duration) {
		if rows == 0 {
			return
		}
		swept.Add(int64(rows))
		steps.Add(1)
		if backlog < time.Hour {
			t.Errorf("the oldest row was overdue by an hour, not %v", backlog)
		}
	}
	const rows, limit = 5000, 700
	ids := seed(t, s, rows)
	tx, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT id FROM dedup_records WHERE id = $1 FOR UPDATE`, ids[0])
	require.NoError(t, err)

	require.Equal(t, rows-1, sweepAll(t, s, limit))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 1, sweepAll(t, s, limit))
	require.EqualValues(t, rows, swept.Load())
	require.EqualValues(t, rows/limit+2, steps.Load())
	ans, err := s.Lookup(t.Context(), storage.RecordID(ids[0]), storage.Lookup{})
	require.NoError(t, err)
	require.Equal(t, storage.StateAbsent, ans.State)
}

// seed makes so many rows whose time is over and returns their ids.
func seed(tb testing.TB, s *Store, rows int) [][]byte {
	tb.Helper()
	ids, shardNumbers := make([][]byte, rows), make([]int16, rows)
	for i, h := range newHolders(rows) {
		ids[i], shardNumbers[i] = h.id[:], shardOf(h.id)
	}
	const atOnce = 10_000
	for from := 0; from < rows; from += atOnce {
		to := min(from+atOnce, rows)
		_, err := s.pool.Exec(tb.Context(), seedSQL, ids[from:to], shardNumbers[from:to])
		require.NoError(tb, err)
	}
	return ids
}

func sweepAll(t *testing.T, s *Store, limit int) int {
	t.Helper()
	total := 0
	for {
		n, err := s.Sweep(t.Context(), limit)
		require.NoError(t, err)
		require.LessOrEqual(t, n, limit)
		if n == 0 {
			return total
		}
		total += n
	}
}
