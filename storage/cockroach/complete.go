package cockroach

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// Complete stores the outcome. The holder of a grant that nobody took over is one
// UPDATE.
func (s *Store) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return s.hot(ctx, kindComplete, item{id: id, req: q, outcome: s.codec.outcome(q.Outcome)})
}

// lockedSQL begins a statement that changes rows: they are locked in the order of
// their ids first, and the clock is read once the last one is held.
const lockedSQL = `WITH l AS MATERIALIZED (
  SELECT id FROM dedup_records WHERE id = ANY($1::BYTEA[]) AND state = 2 ORDER BY id FOR UPDATE
), c AS MATERIALIZED (
  SELECT count(*) AS locked, clock_timestamp() AS now FROM l
), m AS MATERIALIZED (
  SELECT now, (extract(epoch FROM now) * 1000000)::INT8 AS micros FROM c
)
UPDATE dedup_records AS r SET version = GREATEST(r.version + 1, m.micros), `

// heldSQL ends its condition: the grant is the current one and has not ended, and
// no dead letter has to do with it. The fence and the attempt are the guard, on
// CockroachDB the lock is best effort.
const heldSQL = `r.id = u.u_id AND r.fence = u.u_fence AND r.attempt = u.u_attempt AND r.state = 2
  AND r.pins = 0 AND r.reopened IS NULL AND NOT r.redacted`

// completeSQL settles a RESERVED record, its lease live or lapsed. It leaves the
// error of an open run to Apply.
const completeSQL = `/* dedupd complete */ ` + lockedSQL + `state = 5, outcome = u.u_outcome,
  completed_at = m.now, expires_at = m.now + u.u_retention, drop_at = m.now + u.u_retention + u.u_tombstone,
  is_open = false, is_bound = false, superseded = '', ended = CASE WHEN u.u_success THEN '' ELSE r.ended END
FROM unnest($1::BYTEA[], $2::INT8[], $3::BYTEA[], $4::BYTEA[], $5::BOOL[], $6::INTERVAL[], $7::INTERVAL[])
  AS u (u_id, u_fence, u_attempt, u_outcome, u_success, u_retention, u_tombstone), m
WHERE ` + heldSQL + ` AND (NOT r.is_open OR u.u_success)
RETURNING ` + recordColumns + `, clock_timestamp()`

// completeAll is the statement of Complete.
func (s *Store) completeAll(ctx context.Context, conn *pgxpool.Conn, calls []*call) ([]*storage.Answer, error) {
	g := grantsOf(calls)
	n := len(calls)
	outcomes, successes := make([][]byte, n), make([]bool, n)
	retentions, tombstones := make([]time.Duration, n), make([]time.Duration, n)
	for i, c := range calls {
		q, _ := c.In.req.(storage.Complete)
		g.set(i, q.Attempt, q.Fence)
		outcomes[i], successes[i] = c.In.outcome, q.Outcome.Success()
		retentions[i] = wholeMicros(max(q.Retention, retention(q.Terms)))
		tombstones[i] = wholeMicros(q.Terms.Tombstone)
	}
	rows, err := conn.Query(ctx, s.clock.text(completeSQL),
		g.ids, g.fences, g.attempts, outcomes, successes, retentions, tombstones)
	if err != nil {
		return nil, err
	}
	return s.collect(rows, calls, storage.StateCompleted)
}

// grants are the columns that every holder's call has.
type grants struct {
	ids      [][]byte
	fences   []int64
	attempts [][]byte
}

func grantsOf(calls []*call) grants {
	g := grants{make([][]byte, len(calls)), make([]int64, len(calls)), make([][]byte, len(calls))}
	for i, c := range calls {
		g.ids[i] = c.In.id[:]
	}
	return g
}

func (g grants) set(i int, attempt storage.AttemptID, fence storage.Fence) {
	g.attempts[i], g.fences[i] = attempt[:], int64(fence)
}

func retention(t storage.Terms) time.Duration { return cmp.Or(t.Retention, storage.DefaultRetention) }
