package cockroach

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dedupd/dedupd/storage"
)

// The second step, for all that is not one statement: lock the record and its
// entries, read the clock, let storage.ApplyCase decide, write exactly over what
// was read.

const (
	// Locks are taken first, the record's before those of its entries, and the clock
	// is read once they are held.
	lockSQL = `/* dedupd judge */ SELECT ` + recordColumns + ` FROM dedup_records WHERE id = $1 FOR UPDATE`
	nowSQL  = `/* dedupd judge */ SELECT clock_timestamp()`

	// No row comes back where another process was first.
	insertSQL = `/* dedupd judge */ INSERT INTO dedup_records (` + recordColumns + `, shard)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37)
ON CONFLICT (id) DO NOTHING RETURNING clock_timestamp()`

	// The version names all that was read.
	updateSQL = `/* dedupd judge */ UPDATE dedup_records SET
  state = $6, version = $7, fence = $8, attempt = $9, mode = $10, lease = $11, lease_end = $12, granted_at = $13,
  run_fence = $14, run_attempt = $15, run_end = $16, grants = $17, prev_grant = $18, created_at = $19,
  is_open = $20, is_bound = $21, fingerprint = $22, superseded = $23, ended = $24, released_as = $25, outcome = $26,
  hold_end = $27, completed_at = $28, expires_at = $29, drop_at = $30, resolved_from = $31, note = $32,
  pins = $33, reopened = $34, redacted = $35, trace = $36,
  namespace = $2, operation = $3, caller = $4, key = $5
WHERE id = $1 AND version = $37 RETURNING clock_timestamp()`

	forgetSQL = `/* dedupd judge */ DELETE FROM dedup_records WHERE id = $1 AND version = $2 RETURNING clock_timestamp()`
)

// rejudges bounds how often a changed row is read again within a transaction.
const rejudges = 3

// judge answers one request in a transaction of its own.
func (s *Store) judge(ctx, caller context.Context, id storage.RecordID, req storage.Request) (storage.Answer, error) {
	var ans storage.Answer
	var opened gain
	err := s.inTx(ctx, caller, func(tx pgx.Tx) (err error) {
		ans, opened, err = s.judgeIn(ctx, caller, tx, id, req)
		return err
	})
	if err == nil {
		s.open.add(opened)
	}
	return ans, err
}

// judgeIn answers one request within tx, and tells how many open entries it made
// or closed.
func (s *Store) judgeIn(ctx, caller context.Context, tx pgx.Tx, id storage.RecordID, req storage.Request) (storage.Answer, gain, error) {
	for range rejudges {
		c, err := s.lock(ctx, tx, id, entryOf(req))
		if err != nil {
			return storage.Answer{}, gain{}, err
		}
		change, ans := storage.ApplyCase(c.Case, req, c.now, s.Skew())
		if !writes(change) {
			return ans, gain{}, nil
		}
		if _, reserve := req.(storage.Reserve); reserve && caller.Err() != nil {
			return storage.Answer{}, gain{}, caller.Err() // nobody is there to be granted it
		}
		written, err := s.writeCase(ctx, tx, id, c, change)
		if err == nil {
			ans.Now = written
			return ans, c.gain(change), nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return storage.Answer{}, gain{}, err
		}
	}
	return storage.Answer{}, gain{}, errChanged
}

// writes reports whether anything is to be written.
func writes(c storage.Change) bool {
	return c.Record != nil || c.Forget || c.Redact || len(c.Entries) > 0
}

// entryOf is the entry that a request names, zero where it names none.
func entryOf(req storage.Request) storage.EntryID {
	switch q := req.(type) {
	case storage.Reserve:
		if q.Claim != nil {
			return q.Claim.Entry
		}
	case storage.Claim:
		return q.Entry
	case storage.Settle:
		return q.Entry
	case storage.Requeue:
		return q.Entry
	case storage.Discard:
		return q.Entry
	}
	return storage.EntryID{}
}

// lockedCase is what a transaction has locked and read.
type lockedCase struct {
	storage.Case
	read map[storage.EntryID]entry
	now  storage.Instant
}

// lock locks the record and its open entries, and the one that is named, where
// there are any, and reads them and then the clock.
func (s *Store) lock(ctx context.Context, tx pgx.Tx, id storage.RecordID, named storage.EntryID) (c lockedCase, err error) {
	var b pgx.Batch
	b.Queue(lockSQL, id[:])
	b.Queue(lockEntriesSQL, id[:], named[:])
	b.Queue(s.clock.text(nowSQL))
	results := tx.SendBatch(ctx, &b)
	defer func() { err = errors.Join(err, results.Close()) }()
	if c.Record, err = s.lockedRow(results); err != nil {
		return c, err
	}
	if err = s.lockedEntries(results, &c); err != nil {
		return c, err
	}
	err = results.QueryRow().Scan((*stamp)(&c.now))
	return c, err
}

// lockedRow reads the row of lockSQL, nil where there is none.
func (s *Store) lockedRow(results pgx.BatchResults) (rec *storage.Record, err error) {
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if rows.Next() {
		if rec, err = s.codec.scanRecord(rows); err != nil {
			return nil, err
		}
	}
	rows.Close()
	return rec, rows.Err()
}

// writeCase writes what is to be written, the record first, and returns the clock
// after it. pgx.ErrNoRows: the record is no longer what was read, and nothing was
// written.
func (s *Store) writeCase(ctx context.Context, tx pgx.Tx, id storage.RecordID, c lockedCase, change storage.Change) (now storage.Instant, err error) {
	switch {
	case change.Forget && c.Record != nil:
		err = tx.QueryRow(ctx, s.clock.text(forgetSQL), id[:], c.Record.Version).Scan((*stamp)(&now))
	case change.Record != nil:
		now, err = s.write(ctx, tx, id, c.Record, change.Record)
	}
	if err != nil || !change.Forget && !change.Redact && len(change.Entries) == 0 {
		return now, err
	}
	return s.writeEntries(ctx, tx, id, c, change)
}

// write writes next over rec and returns the clock after it. pgx.ErrNoRows: the
// row is no longer what was read.
func (s *Store) write(ctx context.Context, tx pgx.Tx, id storage.RecordID, rec, next *storage.Record) (now storage.Instant, err error) {
	args := s.codec.recordArgs(id, next)
	if rec == nil {
		args = append(args, shardOf(id))
		err = tx.QueryRow(ctx, s.clock.text(insertSQL), args...).Scan((*stamp)(&now))
		return now, err
	}
	args = append(args, rec.Version)
	err = tx.QueryRow(ctx, s.clock.text(updateSQL), args...).Scan((*stamp)(&now))
	return now, err
}
