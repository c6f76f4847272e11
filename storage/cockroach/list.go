package cockroach

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// Bounds of a page, whatever was asked for: a listing of large outcomes must not
// fill the memory, one of a rare namespace must not read the whole table. The end
// of a page is found first, so that what is written meanwhile moves no row over it.
const (
	maxPageRows  = 1000
	maxPageBytes = 16 << 20
	maxScanned   = 10_000
)

// Where only unfinished records are asked for ($2) the index over them is used; an
// unused part is folded away when the statement is planned.
const (
	endOfListSQL = `/* dedupd list */ SELECT id FROM dedup_records
WHERE id > $1 AND (NOT $2::BOOL OR state % 2 = 0) ORDER BY id LIMIT 1 OFFSET $3`

	// listSQL finds what a page may hold; the records themselves are read by readSQL.
	listSQL = `/* dedupd list */ SELECT id, COALESCE(octet_length(outcome), 0) FROM dedup_records
WHERE id > $1 AND (NOT $2::BOOL OR state % 2 = 0) AND ($3::BYTEA = '' OR id <= $3)
  AND ($4 = '' OR namespace = $4) AND ($5 = '' OR operation = $5) AND ($6::BYTEA = '' OR caller = $6) AND ($7::BYTEA = '' OR key = $7)
  AND ($8::TIMESTAMPTZ IS NULL OR granted_at <= $8)
ORDER BY id LIMIT $9`
)

// List pages through records in the order of their ids. A page looks at no more
// than 10,000 of them.
func (s *Store) List(ctx context.Context, q storage.List) (storage.Page, error) {
	return reading(ctx, s, func(ctx context.Context, conn *pgxpool.Conn) (storage.Page, error) {
		ids, next, err := s.choose(ctx, conn, q)
		if err != nil {
			return storage.Page{}, err
		}
		found, now, err := s.readOn(ctx, conn, ids)
		if err != nil {
			return storage.Page{}, err
		}
		page := storage.Page{Now: now, Next: next}
		for _, id := range ids {
			rec := found[storage.RecordID(id)] // nil: deleted since it was chosen; else perhaps changed
			if rec != nil && q.Wants(rec, now, s.Skew()) {
				page.Records = append(page.Records, rec)
			}
		}
		return page, nil
	})
}

// choose returns the ids that a page reads, and where the next one starts.
func (s *Store) choose(ctx context.Context, conn *pgxpool.Conn, q storage.List) (ids [][]byte, next storage.RecordID, err error) {
	now, err := s.readClock(ctx, conn)
	if err != nil {
		return nil, next, err
	}
	var end []byte
	err = conn.QueryRow(ctx, endOfListSQL, q.After[:], q.UnfinishedOnly(), maxScanned-1).Scan(&end)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, next, err
	}
	var older pgtype.Timestamptz
	if q.OlderThan > 0 {
		older = at(now.Add(-q.OlderThan))
	}
	limit := min(q.Limit, maxPageRows)
	rows, err := conn.Query(ctx, listSQL, q.After[:], q.UnfinishedOnly(), notNull(end),
		q.Namespace, q.Operation, notNull(q.Caller), notNull(q.Key), older, limit)
	if err != nil {
		return nil, next, err
	}
	defer rows.Close()
	for size := 0; rows.Next(); {
		var id []byte
		var outcome int
		if err := rows.Scan(&id, &outcome); err != nil {
			return nil, next, err
		}
		if size += outcome; len(ids) > 0 && size > maxPageBytes {
			limit = len(ids)
			break
		}
		ids = append(ids, id)
	}
	rows.Close()
	if len(ids) == limit {
		end = ids[limit-1]
	}
	copy(next[:], end)
	return ids, next, rows.Err()
}
