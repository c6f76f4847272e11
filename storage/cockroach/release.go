package cockroach

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// Release ends a run without a stored success. The holder of a grant that left no
// effect is one UPDATE.
func (s *Store) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	it := item{id: q.Identity.RecordID(), req: q}
	if q.Hold > 0 {
		it.outcome = s.codec.outcome(q.Error)
	}
	if q.Fence == 0 || q.Effect != storage.EffectNone {
		return s.judged(ctx, it.id, q)
	}
	return s.hot(ctx, kindRelease, it)
}

// releaseSQL frees a RESERVED record that ran, was not granted out of UNKNOWN and
// has nothing under child keys: effect NONE, lease live or lapsed. The rest, and a
// list of ended attempts that is full, is left to Apply.
const releaseSQL = `/* dedupd release */ ` + lockedSQL + `state = 3, released_as = 1, note = u.u_note,
  ended = r.ended || r.attempt, outcome = u.u_error,
  hold_end = CASE WHEN u.u_error IS NULL THEN NULL ELSE m.now + u.u_hold END,
  expires_at = m.now + u.u_retention, drop_at = m.now + u.u_retention
FROM unnest($1::BYTEA[], $2::INT8[], $3::BYTEA[], $4::BYTEA[], $5::INTERVAL[], $6::INTERVAL[], $7::BYTEA[])
  AS u (u_id, u_fence, u_attempt, u_error, u_hold, u_retention, u_note), m
WHERE ` + heldSQL + ` AND r.mode = 1 AND NOT r.is_open AND NOT r.is_bound AND octet_length(r.ended) < 128
RETURNING ` + recordColumns + `, clock_timestamp()`

// releaseAll is the statement of Release.
func (s *Store) releaseAll(ctx context.Context, conn *pgxpool.Conn, calls []*call) ([]*storage.Answer, error) {
	g := grantsOf(calls)
	n := len(calls)
	failures, notes := make([][]byte, n), make([][]byte, n)
	holds, retentions := make([]time.Duration, n), make([]time.Duration, n)
	for i, c := range calls {
		q, _ := c.In.req.(storage.Release)
		g.set(i, q.Attempt, q.Fence)
		failures[i], notes[i] = c.In.outcome, []byte(q.Note)
		holds[i], retentions[i] = wholeMicros(q.Hold), wholeMicros(retention(q.Terms))
	}
	rows, err := conn.Query(ctx, s.clock.text(releaseSQL),
		g.ids, g.fences, g.attempts, failures, holds, retentions, notes)
	if err != nil {
		return nil, err
	}
	return s.collect(rows, calls, storage.StateReleased)
}
