package cockroach

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

const (
	// sweepSQL deletes rows of one shard, oldest end first. A row that a call holds is
	// left for later; one that it made anew or pinned is judged again under the lock.
	sweepSQL = `/* dedupd sweep */ DELETE FROM dedup_records WHERE id IN (
  SELECT id FROM dedup_records WHERE shard = $1 AND drop_at <= statement_timestamp() AND pins <= 0
  ORDER BY drop_at LIMIT $2 FOR UPDATE SKIP LOCKED
) AND drop_at <= statement_timestamp() AND pins <= 0
RETURNING drop_at, statement_timestamp()`

	// sweepEntriesSQL deletes closed entries, and their requests with them.
	sweepEntriesSQL = `/* dedupd sweep */ WITH gone AS (
  DELETE FROM dedup_dead_letters WHERE id IN (
    SELECT id FROM dedup_dead_letters WHERE drop_at <= statement_timestamp() AND state > 2
    ORDER BY drop_at LIMIT $1 FOR UPDATE SKIP LOCKED
  ) AND drop_at <= statement_timestamp() AND state > 2
  RETURNING id, drop_at
), requests AS (
  DELETE FROM dedup_dead_letter_requests WHERE entry_id IN (SELECT id FROM gone) RETURNING entry_id
)
SELECT drop_at, statement_timestamp() FROM gone`
)

// Sweep deletes up to limit closed entries and records whose time is over, in one
// short statement for the entries and for each of a few shards of records. Where
// the database deletes rows by itself the records are left to it. Any number of
// replicas may sweep at once.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	return do(ctx, s, func(ctx, caller context.Context) (n int, err error) {
		err = s.onConn(ctx, caller, func(conn *pgxpool.Conn) error {
			n, err = s.sweepOn(ctx, caller, conn, limit)
			return err
		})
		return n, err
	})
}

func (s *Store) sweepOn(ctx, caller context.Context, conn *pgxpool.Conn, limit int) (int, error) {
	total, backlog, err := s.sweepRows(ctx, conn, sweepEntriesSQL, limit)
	if err != nil && judgeFault(err) != faultContention {
		return total, err
	}
	start := rand.IntN(shards) //nolint:gosec // where to begin is no secret
	for i := range shards {
		if s.db.rowTTL || total == limit || caller.Err() != nil {
			break
		}
		n, oldest, err := s.sweepRows(ctx, conn, sweepSQL, (start+i)%shards, limit-total)
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

// sweepRows returns how many rows went, and how long the oldest was overdue.
func (s *Store) sweepRows(ctx context.Context, conn *pgxpool.Conn, sql string, args ...any) (n int, oldest time.Duration, err error) {
	sql = s.clock.text(sql)
	if s.db.cockroach {
		sql = strings.Replace(sql, " SKIP LOCKED", "", 1) // those without row TTL do not know it
	}
	rows, err := conn.Query(ctx, sql, args...)
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
