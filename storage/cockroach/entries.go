package cockroach

import (
	"bytes"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dedupd/dedupd/storage"
)

// What a transaction reads and writes of the entries of one record.

const (
	wholeEntrySQL = `SELECT ` + entryColumns + `, q.request
FROM dedup_dead_letters AS e LEFT JOIN dedup_dead_letter_requests AS q ON q.entry_id = e.id`

	lockEntriesSQL = `/* dedupd judge */ ` + wholeEntrySQL + `
WHERE e.record_id = $1 AND (e.state <= 2 OR e.id = $2) ORDER BY e.id FOR UPDATE OF e`

	closedEntriesSQL = `/* dedupd judge */ SELECT ` + entryColumns + ` FROM dedup_dead_letters AS e
WHERE e.record_id = $1 AND e.state > 2 ORDER BY e.id FOR UPDATE`

	// Nothing is inserted where the record has an open entry of the kind that was not
	// seen.
	insertEntrySQL = `/* dedupd judge */ INSERT INTO dedup_dead_letters (id, revision, record_id, namespace, operation, caller, key,
  kind, state, pinned, code, signature, parks, parked_at, last_parked_at, claim_end, not_before, requested, has_request,
  closed_at, drop_at, detail, replay_status)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)
ON CONFLICT DO NOTHING RETURNING revision`

	// The revision names all that was read.
	updateEntrySQL = `/* dedupd judge */ UPDATE dedup_dead_letters SET
  revision = $2, record_id = $3, namespace = $4, operation = $5, caller = $6, key = $7, kind = $8, state = $9, pinned = $10,
  code = $11, signature = $12, parks = $13, parked_at = $14, last_parked_at = $15, claim_end = $16, not_before = $17,
  requested = $18, has_request = $19, closed_at = $20, drop_at = $21, detail = $22, replay_status = $23
WHERE id = $1 AND revision = $2 - 1 RETURNING revision`

	putRequestSQL = `/* dedupd judge */ INSERT INTO dedup_dead_letter_requests (entry_id, request) VALUES ($1, $2)
ON CONFLICT (entry_id) DO UPDATE SET request = excluded.request`

	dropRequestSQL = `/* dedupd judge */ DELETE FROM dedup_dead_letter_requests WHERE entry_id = $1`

	forgetRequestsSQL = `/* dedupd judge */ DELETE FROM dedup_dead_letter_requests
WHERE entry_id IN (SELECT id FROM dedup_dead_letters WHERE record_id = $1)`

	forgetEntriesSQL = `/* dedupd judge */ DELETE FROM dedup_dead_letters WHERE record_id = $1`
)

// lockedEntries reads the rows of lockEntriesSQL.
func (s *Store) lockedEntries(results pgx.BatchResults, c *lockedCase) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	c.read = map[storage.EntryID]entry{}
	for rows.Next() {
		e, err := s.codec.scanWholeEntry(rows)
		if err != nil {
			return err
		}
		if c.Record == nil {
			e.Pinned = false // the row it counted in is gone: a release that knew no pins deleted it
		}
		c.read[e.ID] = e
		c.Entries = append(c.Entries, e.DeadLetter)
	}
	rows.Close()
	return rows.Err()
}

// writeEntries writes the entries of a change and returns the clock after it.
func (s *Store) writeEntries(ctx context.Context, tx pgx.Tx, id storage.RecordID, c lockedCase, change storage.Change) (now storage.Instant, err error) {
	if change.Redact {
		if err := s.redactClosed(ctx, tx, id, c, &change); err != nil {
			return 0, err
		}
	}
	var b pgx.Batch
	guarded := 0
	for _, e := range change.Entries {
		guarded += s.queueEntry(&b, c, e)
	}
	for _, e := range change.Entries {
		s.queueRequest(&b, c, e)
	}
	if change.Forget {
		b.Queue(forgetRequestsSQL, id[:])
		b.Queue(forgetEntriesSQL, id[:])
	}
	b.Queue(s.clock.text(nowSQL))
	results := tx.SendBatch(ctx, &b)
	defer func() { err = errors.Join(err, results.Close()) }()
	for range guarded {
		var revision int64
		if err := results.QueryRow().Scan(&revision); errors.Is(err, pgx.ErrNoRows) {
			return 0, errChanged
		} else if err != nil {
			return 0, err
		}
	}
	for range b.Len() - guarded - 1 {
		if _, err := results.Exec(); err != nil {
			return 0, err
		}
	}
	err = results.QueryRow().Scan((*stamp)(&now))
	return now, err
}

// queueEntry queues the write of one entry over what was read of it.
func (s *Store) queueEntry(b *pgx.Batch, c lockedCase, e *storage.DeadLetter) int {
	if old, ok := c.read[e.ID]; ok {
		b.Queue(updateEntrySQL, entryArgs(e, old.revision+1)...)
	} else {
		b.Queue(insertEntrySQL, entryArgs(e, 1)...)
	}
	return 1
}

// queueRequest queues the write of an entry's request where it is not what was
// read.
func (s *Store) queueRequest(b *pgx.Batch, c lockedCase, e *storage.DeadLetter) {
	old, ok := c.read[e.ID]
	switch {
	case !e.HasRequest && ok && old.HasRequest:
		b.Queue(dropRequestSQL, e.ID[:])
	case e.HasRequest && (!ok || !old.HasRequest || !bytes.Equal(old.Request, e.Request)):
		b.Queue(putRequestSQL, e.ID[:], s.codec.request(e.Request))
	}
}

// redactClosed adds the record's closed entries to what is to be written.
func (s *Store) redactClosed(ctx context.Context, tx pgx.Tx, id storage.RecordID, c lockedCase, change *storage.Change) error {
	rows, err := tx.Query(ctx, closedEntriesSQL, id[:])
	if err != nil {
		return err
	}
	defer rows.Close()
	change.Entries = append([]*storage.DeadLetter(nil), change.Entries...)
	for rows.Next() {
		e, err := s.codec.scanEntry(rows)
		if err != nil {
			return err
		}
		if _, ok := c.read[e.ID]; !ok {
			c.read[e.ID] = e
			change.Entries = append(change.Entries, e.Redacted())
		}
	}
	rows.Close()
	return rows.Err()
}
