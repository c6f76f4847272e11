package cockroach

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dedupd/dedupd/storage"
)

// recordColumns are the columns of a record, in the order of row.targets and
// recordArgs.
const recordColumns = `id, namespace, operation, caller, key, state, version, fence, attempt, mode, ` +
	`lease, lease_end, granted_at, run_fence, run_attempt, run_end, grants, prev_grant, created_at, ` +
	`is_open, is_bound, fingerprint, superseded, ended, released_as, outcome, hold_end, ` +
	`completed_at, expires_at, drop_at, resolved_from, note, pins, reopened, redacted, trace`

// stamp reads a storage.Instant: NULL is zero.
type stamp storage.Instant

// ScanTimestamptz reads a time.
func (s *stamp) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid:
		*s = 0
	case v.InfinityModifier != pgtype.Finite:
		return errCorrupt
	default:
		*s = stamp(storage.InstantOf(v.Time))
	}
	return nil
}

// at is an instant as a parameter, in a form that also poolers' exec mode knows.
func at(i storage.Instant) pgtype.Timestamptz {
	if i == 0 {
		return pgtype.Timestamptz{}
	}
	return pgtype.Timestamptz{Time: i.Time(), Valid: true}
}

// row receives one row; what it holds is the driver's until the next one.
type row struct {
	rec storage.Record

	id, caller, key              pgtype.DriverBytes
	attempt, runAttempt          pgtype.DriverBytes
	fingerprint                  pgtype.DriverBytes
	superseded, ended, out, note pgtype.DriverBytes
	reopened, trace              pgtype.DriverBytes
}

// targets are what the columns of a record are scanned into.
func (r *row) targets() []any {
	rec := &r.rec
	return []any{
		&r.id, &rec.Identity.Namespace, &rec.Identity.Operation, &r.caller, &r.key,
		(*uint8)(&rec.State), &rec.Version, (*int64)(&rec.Fence), &r.attempt, (*uint8)(&rec.Mode),
		&rec.Lease, (*stamp)(&rec.LeaseEnd), (*stamp)(&rec.GrantedAt),
		(*int64)(&rec.RunFence), &r.runAttempt, (*stamp)(&rec.RunEnd),
		&rec.Grants, (*stamp)(&rec.PrevGrant), (*stamp)(&rec.CreatedAt),
		&rec.Open, &rec.Bound, &r.fingerprint, &r.superseded, &r.ended,
		(*uint8)(&rec.ReleasedAs), &r.out, (*stamp)(&rec.HoldEnd),
		(*stamp)(&rec.CompletedAt), (*stamp)(&rec.ExpiresAt), (*stamp)(&rec.DropAt),
		&rec.ResolvedFrom, &r.note, &rec.Pins, &r.reopened, &rec.Redacted, &r.trace,
	}
}

// scanRecord reads the record and what follows it in the row. An error names no
// value. The id is not that of the identity where the record is redacted.
func (c *codec) scanRecord(rows pgx.Rows, more ...any) (*storage.Record, error) {
	var r row
	if err := rows.Scan(append(r.targets(), more...)...); err != nil {
		return nil, err
	}
	rec := &r.rec
	rec.Identity.Caller, rec.Identity.Key, rec.Note = string(r.caller), string(r.key), string(r.note)
	if len(r.attempt) != len(rec.Attempt) || len(r.runAttempt) != len(rec.RunAttempt) {
		return nil, errCorrupt
	}
	rec.Attempt, rec.RunAttempt = storage.AttemptID(r.attempt), storage.AttemptID(r.runAttempt)
	var err error
	if rec.Fingerprint, err = readFingerprint(r.fingerprint); err != nil {
		return nil, fmt.Errorf("fingerprint: %w", err)
	}
	if rec.Superseded, err = readFingerprints(r.superseded); err != nil {
		return nil, fmt.Errorf("superseded: %w", err)
	}
	if rec.Ended, err = readAttempts(r.ended); err != nil {
		return nil, fmt.Errorf("ended: %w", err)
	}
	if rec.Outcome, err = c.readOutcome(r.out); err != nil {
		return nil, fmt.Errorf("outcome: %w", err)
	}
	if rec.Reopened, err = c.readOutcome(r.reopened); err != nil {
		return nil, fmt.Errorf("reopened: %w", err)
	}
	if len(r.trace) > 0 {
		rec.Trace = append([]byte(nil), r.trace...)
	}
	if rec.Redacted {
		if len(r.id) != len(rec.RedactedID) {
			return nil, errCorrupt
		}
		rec.RedactedID = storage.RecordID(r.id)
	}
	return rec, nil
}

// recordArgs are the values of recordColumns for rec.
func (c *codec) recordArgs(id storage.RecordID, rec *storage.Record) []any {
	return []any{
		id[:], rec.Identity.Namespace, rec.Identity.Operation, []byte(rec.Identity.Caller), []byte(rec.Identity.Key),
		int16(rec.State), rec.Version, int64(rec.Fence), rec.Attempt[:], int16(rec.Mode),
		rec.Lease, at(rec.LeaseEnd), at(rec.GrantedAt),
		int64(rec.RunFence), rec.RunAttempt[:], at(rec.RunEnd),
		rec.Grants, at(rec.PrevGrant), at(rec.CreatedAt),
		rec.Open, rec.Bound, encodeFingerprint(rec.Fingerprint), encodeFingerprints(rec.Superseded), encodeAttempts(rec.Ended),
		int16(rec.ReleasedAs), c.outcome(rec.Outcome), at(rec.HoldEnd),
		at(rec.CompletedAt), at(rec.ExpiresAt), at(rec.DropAt),
		rec.ResolvedFrom, []byte(rec.Note), rec.Pins, c.outcome(rec.Reopened), rec.Redacted, notNull(rec.Trace),
	}
}

// notNull is b for a column that has no NULL.
func notNull(b []byte) []byte { return append([]byte{}, b...) }

// shardOf spreads rows over the index on the end of their time.
func shardOf(id storage.RecordID) int16 { return int16(id[0] >> 4) }

// shards is how many values shardOf has.
const shards = 16

// wholeMicros cuts d to what the database keeps.
func wholeMicros(d time.Duration) time.Duration { return d.Truncate(time.Microsecond) }
