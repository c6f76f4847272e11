package cockroach

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// Reserve grants the key or says why not. A fresh key is one INSERT. A replay is
// judged at its entry's record.
func (s *Store) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	if q.Claim != nil {
		return s.judgeEntry(ctx, q.Claim.Entry, q)
	}
	return s.hot(ctx, kindReserve, item{id: q.Identity.RecordID(), req: q})
}

// reserveSQL inserts what Apply grants where there is no row: everything follows
// from the request and one reading of the clock. The fence is that reading.
const reserveSQL = `/* dedupd reserve */ WITH c AS MATERIALIZED (
  SELECT clock_timestamp() AS now
), m AS MATERIALIZED (
  SELECT now, (extract(epoch FROM now) * 1000000)::INT8 AS micros FROM c
)
INSERT INTO dedup_records (id, shard, namespace, operation, caller, key, state, version, fence, attempt, mode,
  lease, lease_end, granted_at, run_fence, run_attempt, run_end, grants, created_at, fingerprint, trace)
SELECT u.id, u.shard, u.namespace, u.operation, u.caller, u.key, 2, m.micros, m.micros, u.attempt, 1,
  u.lease, m.now + u.lease, m.now, m.micros, u.attempt, m.now + u.lease, 1, m.now, u.fingerprint, u.trace
FROM unnest($1::BYTEA[], $2::INT2[], $3::TEXT[], $4::TEXT[], $5::BYTEA[], $6::BYTEA[], $7::BYTEA[], $8::INTERVAL[], $9::BYTEA[], $10::BYTEA[])
  AS u (id, shard, namespace, operation, caller, key, attempt, lease, fingerprint, trace), m
ON CONFLICT (id) DO NOTHING
RETURNING id, fence, granted_at, clock_timestamp()`

// reserveAll is the statement of Reserve.
func (s *Store) reserveAll(ctx context.Context, conn *pgxpool.Conn, calls []*call) ([]*storage.Answer, error) {
	rows, err := conn.Query(ctx, s.clock.text(reserveSQL), reserveArgs(calls)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	answers := make([]*storage.Answer, len(calls))
	for rows.Next() {
		var id []byte
		var fence storage.Fence
		var granted, now storage.Instant
		if err := rows.Scan(&id, (*int64)(&fence), (*stamp)(&granted), (*stamp)(&now)); err != nil {
			return nil, err
		}
		i, ok := find(calls, id)
		if !ok {
			return nil, errCorrupt
		}
		q, _ := calls[i].In.req.(storage.Reserve)
		answers[i] = &storage.Answer{
			Verdict: storage.VerdictGranted, State: storage.StateReserved, Now: now,
			Record: freshGrant(q, fence, granted),
		}
	}
	return answers, rows.Err()
}

// freshGrant is the record that reserveSQL has written.
func freshGrant(q storage.Reserve, fence storage.Fence, granted storage.Instant) *storage.Record {
	lease := wholeMicros(cmp.Or(q.Lease, storage.DefaultLease))
	end := granted.Add(lease)
	return &storage.Record{
		Identity: q.Identity, State: storage.StateReserved, Version: int64(fence),
		Fence: fence, Attempt: q.Attempt, Mode: storage.ModeRun, Lease: lease, LeaseEnd: end, GrantedAt: granted,
		RunFence: fence, RunAttempt: q.Attempt, RunEnd: end,
		Grants: 1, CreatedAt: granted, Fingerprint: q.Fingerprint, Trace: q.Trace,
	}
}

func reserveArgs(calls []*call) []any {
	n := len(calls)
	var (
		ids, callers, keys     = make([][]byte, n), make([][]byte, n), make([][]byte, n)
		attempts, fingerprints = make([][]byte, n), make([][]byte, n)
		traces                 = make([][]byte, n)
		namespaces, operations = make([]string, n), make([]string, n)
		shardNumbers, leases   = make([]int16, n), make([]time.Duration, n)
	)
	for i, c := range calls {
		q, _ := c.In.req.(storage.Reserve)
		ids[i], shardNumbers[i] = c.In.id[:], shardOf(c.In.id)
		namespaces[i], operations[i] = q.Identity.Namespace, q.Identity.Operation
		callers[i], keys[i] = []byte(q.Identity.Caller), []byte(q.Identity.Key)
		attempts[i], leases[i] = q.Attempt[:], wholeMicros(cmp.Or(q.Lease, storage.DefaultLease))
		fingerprints[i], traces[i] = encodeFingerprint(q.Fingerprint), notNull(q.Trace)
	}
	return []any{ids, shardNumbers, namespaces, operations, callers, keys, attempts, leases, fingerprints, traces}
}
