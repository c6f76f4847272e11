package cockroach

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// Park keeps a request or a record that needs somebody.
func (s *Store) Park(ctx context.Context, q storage.Park) (storage.Answer, error) {
	return do(ctx, s, func(ctx, caller context.Context) (storage.Answer, error) {
		id := q.RecordID()
		namespace := q.Entry.Identity.Namespace
		if namespace == "" {
			found, _, err := s.readIDs(ctx, caller, [][]byte{id[:]})
			if err != nil {
				return storage.Answer{}, err
			}
			if rec := found[id]; rec != nil {
				namespace = rec.Identity.Namespace
			}
		}
		if q.Entry.Kind != storage.EntryExhausted && q.Entry.Kind != storage.EntryUnreconciled {
			return s.judge(ctx, caller, id, q)
		}
		return s.underCap(ctx, caller, namespace, q.Terms, func(full bool) (storage.Answer, error) {
			q := q
			q.Full = full
			return s.judge(ctx, caller, id, q)
		})
	})
}

// Claim begins a replay.
func (s *Store) Claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

// Settle ends a claim.
func (s *Store) Settle(ctx context.Context, q storage.Settle) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

// Requeue puts an entry back for the owner's replayer.
func (s *Store) Requeue(ctx context.Context, q storage.Requeue) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

// Discard closes an entry without a replay.
func (s *Store) Discard(ctx context.Context, q storage.Discard) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

// judgeEntry answers a request about an entry, at the entry's record.
func (s *Store) judgeEntry(ctx context.Context, id storage.EntryID, req storage.Request) (storage.Answer, error) {
	return do(ctx, s, func(ctx, caller context.Context) (storage.Answer, error) {
		record, err := s.recordOf(ctx, caller, id)
		if err != nil {
			return storage.Answer{}, err
		}
		return s.judge(ctx, caller, record, req)
	})
}

const recordOfSQL = `/* dedupd entry */ SELECT record_id FROM dedup_dead_letters WHERE id = $1`

// recordOf is the record of an entry, which never changes; zero, which is no
// record's id, where there is no such entry.
func (s *Store) recordOf(ctx, caller context.Context, id storage.EntryID) (record storage.RecordID, err error) {
	err = s.retry(ctx, caller, func() error {
		return s.onConn(ctx, caller, func(conn *pgxpool.Conn) error {
			var b []byte
			err := conn.QueryRow(ctx, recordOfSQL, id[:]).Scan(&b)
			switch {
			case errors.Is(err, pgx.ErrNoRows):
				record = storage.RecordID{}
				return nil
			case err == nil && len(b) != len(record):
				return errCorrupt
			case err == nil:
				record = storage.RecordID(b)
			}
			return err
		})
	})
	return record, err
}

const (
	entrySQL = `/* dedupd entry */ ` + wholeEntrySQL + ` WHERE e.id = $1`

	recordOfEntrySQL = `/* dedupd entry */ SELECT ` + recordColumns + ` FROM dedup_records
WHERE id = (SELECT record_id FROM dedup_dead_letters WHERE id = $1)`
)

// Entry reads one entry whole, and its record, without a lock.
func (s *Store) Entry(ctx context.Context, id storage.EntryID) (storage.Answer, error) {
	return do(ctx, s, func(ctx, caller context.Context) (ans storage.Answer, err error) {
		err = s.retry(ctx, caller, func() error {
			return s.onConn(ctx, caller, func(conn *pgxpool.Conn) (err error) {
				ans, err = s.entryOn(ctx, conn, id)
				return err
			})
		})
		return ans, err
	})
}

func (s *Store) entryOn(ctx context.Context, conn *pgxpool.Conn, id storage.EntryID) (ans storage.Answer, err error) {
	var b pgx.Batch
	b.Queue(s.clock.text(statementClockSQL))
	b.Queue(entrySQL, id[:])
	b.Queue(recordOfEntrySQL, id[:])
	results := conn.SendBatch(ctx, &b)
	defer func() { err = errors.Join(err, results.Close()) }()
	if err := results.QueryRow().Scan((*stamp)(&ans.Now)); err != nil {
		return ans, err
	}
	rows, err := results.Query()
	if err != nil {
		return ans, err
	}
	defer rows.Close()
	ans.Verdict = storage.VerdictNotFound
	if rows.Next() {
		e, err := s.codec.scanWholeEntry(rows)
		if err != nil {
			return ans, err
		}
		ans.Verdict, ans.Entry = storage.VerdictOK, e.DeadLetter
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return ans, err
	}
	rec, err := s.lockedRow(results)
	_, found := storage.Apply(rec, storage.Lookup{}, ans.Now, s.Skew())
	ans.State, ans.Record = found.State, found.Record
	return ans, err
}
