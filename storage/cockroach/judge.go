package cockroach

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dedupd/dedupd/storage"
)

// The second step, for all that is not one statement: lock the row, read the
// clock, let storage.Apply decide, write exactly over what was read.

const (
	// A lock is taken first, and the clock read once it is held.
	lockSQL = `/* dedupd judge */ SELECT ` + recordColumns + ` FROM dedup_records WHERE id = $1 FOR UPDATE`
	nowSQL  = `/* dedupd judge */ SELECT clock_timestamp()`

	// No row comes back where another process was first.
	insertSQL = `/* dedupd judge */ INSERT INTO dedup_records (` + recordColumns + `, shard)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33)
ON CONFLICT (id) DO NOTHING RETURNING clock_timestamp()`

	// The version names all that was read. Identity is part of the id.
	updateSQL = `/* dedupd judge */ UPDATE dedup_records SET
  state = $6, version = $7, fence = $8, attempt = $9, mode = $10, lease = $11, lease_end = $12, granted_at = $13,
  run_fence = $14, run_attempt = $15, run_end = $16, grants = $17, prev_grant = $18, created_at = $19,
  is_open = $20, is_bound = $21, fingerprint = $22, superseded = $23, ended = $24, released_as = $25, outcome = $26,
  hold_end = $27, completed_at = $28, expires_at = $29, drop_at = $30, resolved_from = $31, note = $32,
  namespace = $2, operation = $3, caller = $4, key = $5
WHERE id = $1 AND version = $33 RETURNING clock_timestamp()`
)

// rejudges bounds how often a changed row is read again within a transaction.
const rejudges = 3

// judge answers one request in a transaction of its own.
func (s *Store) judge(ctx, caller context.Context, id storage.RecordID, req storage.Request) (storage.Answer, error) {
	var ans storage.Answer
	err := s.inTx(ctx, caller, func(tx pgx.Tx) (err error) {
		ans, err = s.judgeIn(ctx, caller, tx, id, req)
		return err
	})
	return ans, err
}

// judgeIn answers one request within tx.
func (s *Store) judgeIn(ctx, caller context.Context, tx pgx.Tx, id storage.RecordID, req storage.Request) (storage.Answer, error) {
	for range rejudges {
		rec, now, err := s.lock(ctx, tx, id)
		if err != nil {
			return storage.Answer{}, err
		}
		next, ans := storage.Apply(rec, req, now, s.Skew())
		if next == nil {
			return ans, nil
		}
		if _, reserve := req.(storage.Reserve); reserve && caller.Err() != nil {
			return storage.Answer{}, caller.Err() // nobody is there to be granted it
		}
		written, err := s.write(ctx, tx, id, rec, next)
		if err == nil {
			ans.Now = written
			return ans, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return storage.Answer{}, err
		}
	}
	return storage.Answer{}, errChanged
}

// lock locks the row, where there is one, and reads it and then the clock.
func (s *Store) lock(ctx context.Context, tx pgx.Tx, id storage.RecordID) (rec *storage.Record, now storage.Instant, err error) {
	var b pgx.Batch
	b.Queue(lockSQL, id[:])
	b.Queue(s.clock.text(nowSQL))
	results := tx.SendBatch(ctx, &b)
	defer func() { err = errors.Join(err, results.Close()) }()
	if rec, err = s.lockedRow(results); err != nil {
		return nil, 0, err
	}
	err = results.QueryRow().Scan((*stamp)(&now))
	return rec, now, err
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
