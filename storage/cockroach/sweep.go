package cockroach

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// sweepSQL deletes rows of one shard, oldest end first. A row that a call holds is
// left for later; one that it made anew is judged again under the lock.
const sweepSQL = `/* dedupd sweep */ DELETE FROM dedup_records WHERE id IN (
  SELECT id FROM dedup_records WHERE shard = $1 AND drop_at <= statement_timestamp()
  ORDER BY drop_at LIMIT $2 FOR UPDATE SKIP LOCKED
) AND drop_at <= statement_timestamp()
RETURNING drop_at, statement_timestamp()`

// Sweep deletes up to limit records whose time is over, in one short statement for
// each of a few shards. Where the database deletes rows by itself it does nothing.
// Any number of replicas may sweep at once.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	if s.db.rowTTL {
		return do(ctx, s, func(context.Context, context.Context) (int, error) { return 0, nil })
	}
	return do(ctx, s, func(ctx, caller context.Context) (n int, err error) {
		err = s.onConn(ctx, caller, func(conn *pgxpool.Conn) error {
			n, err = s.sweepOn(ctx, caller, conn, limit)
			return err
		})
		return n, err
	})
}

func (s *Store) sweepOn(ctx, caller context.Context, conn *pgxpool.Conn, limit int) (int, error) {
	start := rand.IntN(shards) //nolint:gosec // where to begin is no secret
	total := 0
	var backlog time.Duration
	for i := range shards {
		if total == limit || caller.Err() != nil {
			break
		}
		n, oldest, err := s.sweepShard(ctx, conn, (start+i)%shards, limit-total)
		if err != nil && judgeFault(err) == faultContention {
			break // calls come first
		}
		if err != nil {
			return total, err
		}
		total, backlog = total+n, max(backlog, oldest)
	}
	s.observer.swept(total, backlog)
	return total, nil
}

// sweepShard returns how many rows went, and how long the oldest was overdue.
func (s *Store) sweepShard(ctx context.Context, conn *pgxpool.Conn, shard, limit int) (n int, oldest time.Duration, err error) {
	sql := s.clock.text(sweepSQL)
	if s.db.cockroach {
		sql = strings.Replace(sql, " SKIP LOCKED", "", 1) // those without row TTL do not know it
	}
	rows, err := conn.Query(ctx, sql, shard, limit)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var end, now storage.Instant
		if err := rows.Scan((*stamp)(&end), (*stamp)(&now)); err != nil {
			return 0, 0, err
		}
		n, oldest = n+1, max(oldest, now.Sub(end))
	}
	return n, oldest, rows.Err()
}
