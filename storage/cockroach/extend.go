package cockroach

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// Extend asks for more time. The holder of a live grant is one UPDATE.
func (s *Store) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return s.hot(ctx, kindExtend, item{id: id, req: q})
}

// extendSQL moves the end of a live lease. A lapse is final, so the clock that
// judges it is read under the lock; an end is never moved back.
const extendSQL = `/* dedupd extend */ ` + lockedSQL + `lease = u.u_lease, lease_end = m.now + u.u_lease,
  run_end = CASE WHEN r.mode = 1 THEN m.now + u.u_lease ELSE r.run_end END
FROM unnest($1::BYTEA[], $2::INT8[], $3::BYTEA[], $4::INTERVAL[]) AS u (u_id, u_fence, u_attempt, u_lease), m
WHERE ` + heldSQL + ` AND r.lease_end + $5::INTERVAL > m.now AND r.lease_end < m.now + u.u_lease
RETURNING ` + recordColumns + `, clock_timestamp()`

// extendAll is the statement of Extend.
func (s *Store) extendAll(ctx context.Context, conn *pgxpool.Conn, calls []*call) ([]*storage.Answer, error) {
	g := grantsOf(calls)
	leases := make([]time.Duration, len(calls))
	for i, c := range calls {
		q, _ := c.In.req.(storage.Extend)
		g.set(i, q.Attempt, q.Fence)
		leases[i] = wholeMicros(cmp.Or(q.Lease, storage.DefaultLease))
	}
	rows, err := conn.Query(ctx, s.clock.text(extendSQL), g.ids, g.fences, g.attempts, leases, s.Skew())
	if err != nil {
		return nil, err
	}
	return s.collect(rows, calls, storage.StateReserved)
}
