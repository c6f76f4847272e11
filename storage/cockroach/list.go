package cockroach

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// Bounds of a page, whatever was asked for: a listing of large outcomes must not
// fill the memory, one of a rare namespace must not read the whole table.
const (
	maxPageRows  = 1000
	maxPageBytes = 16 << 20
)

// listSQL finds what a page may hold; the records themselves are read by readSQL.
const listSQL = `/* dedupd list */ SELECT id, namespace, operation, COALESCE(octet_length(outcome), 0)
FROM dedup_records WHERE id > $1 ORDER BY id LIMIT $2`

// List pages through records in the order of their ids. A page looks at no more
// than 1,000 of them.
func (s *Store) List(ctx context.Context, q storage.List) (storage.Page, error) {
	return do(ctx, s, func(ctx, caller context.Context) (page storage.Page, err error) {
		err = s.retry(ctx, caller, func() error {
			return s.onConn(ctx, caller, func(conn *pgxpool.Conn) (err error) {
				page, err = s.listOn(ctx, conn, q)
				return err
			})
		})
		return page, err
	})
}

func (s *Store) listOn(ctx context.Context, conn *pgxpool.Conn, q storage.List) (storage.Page, error) {
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
		rec := found[storage.RecordID(id)] // nil: deleted meanwhile
		if state := rec.StateAt(now, s.Skew()); wanted(q.States, state) {
			page.Records = append(page.Records, rec)
		}
	}
	return page, nil
}

// choose returns the ids that a page reads, and where the next one starts.
func (s *Store) choose(ctx context.Context, conn *pgxpool.Conn, q storage.List) (ids [][]byte, next storage.RecordID, err error) {
	rows, err := conn.Query(ctx, listSQL, q.After[:], maxPageRows)
	if err != nil {
		return nil, next, err
	}
	defer rows.Close()
	seen, size := 0, 0
	for rows.Next() {
		var id []byte
		var namespace, operation string
		var outcome int
		if err := rows.Scan(&id, &namespace, &operation, &outcome); err != nil {
			return nil, next, err
		}
		if len(id) != len(next) {
			return nil, next, errCorrupt
		}
		match := (q.Namespace == "" || namespace == q.Namespace) && (q.Operation == "" || operation == q.Operation)
		if match && (len(ids) == q.Limit || len(ids) > 0 && size+outcome > maxPageBytes) {
			return ids, next, nil
		}
		next = storage.RecordID(id)
		seen++
		if match {
			ids = append(ids, id)
			size += outcome
		}
	}
	if seen < maxPageRows {
		next = storage.RecordID{} // that was the last of them
	}
	return ids, next, rows.Err()
}

// wanted: without a choice every state but absent is.
func wanted(states []storage.State, state storage.State) bool {
	if len(states) == 0 {
		return state != storage.StateAbsent
	}
	return slices.Contains(states, state)
}
