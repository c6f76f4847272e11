// Package row is what an inbox does to its table, for any driver: the statements,
// and what is decided from their answers. Packages inbox (database/sql) and
// pgxinbox put their drivers under it.
//
// The life of a row:
//
//  1. Mark inserts it, in the effect's transaction: MARKED, with the grant's fence.
//  2. Done writes the answer beside it before the commit: DONE for good.
//  3. Or a reconciler was first: Plant inserts it PLANTED with its own fence, in a
//     transaction of its own. From then on a lower fence marks nothing; a later
//     grant takes the row over.
//  4. Clean asks dedupd how long the record lasts, and deletes the row after it.
//
// A row that was committed MARKED but not DONE says that somebody forgot Done: it is
// never taken over, since its effect may have happened.
//
// It begins no transaction but Do's, a reconciler's and those of Clean, and decides
// nothing about keys.
package row

import (
	"context"
	"database/sql"
	"time"
)

// Queries runs statements: in a transaction, or each in one of its own.
type Queries interface {
	// Row runs a statement that returns one row at most, and scans it; found is
	// false where there is none.
	Row(ctx context.Context, query string, args []any, dest ...any) (found bool, err error)
	// Exec runs a statement and tells how many rows it touched.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Rows runs a statement and calls each with a function that scans its columns.
	Rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error
}

// Tx is a transaction. Its own context outlives that of the call it serves, so that
// neither Commit nor Rollback is cut off in the middle.
type Tx interface {
	Queries
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// DB begins transactions.
type DB interface {
	Begin(ctx context.Context, isolation sql.IsolationLevel) (Tx, error)
}

// Table is the name of the table; the session's search path finds it.
const Table = "dedupd_inbox"

// States of a row.
const (
	planted = "planted"
	marked  = "marked"
	done    = "done"
)

// Times of rows and waits.
const (
	// AskAfter is how old a row is when Clean first asks dedupd how long it lasts.
	AskAfter = time.Hour
	// LockWait is how long a reconciler waits for a transaction that has the row.
	LockWait = 5 * time.Second
)

// Schema returns the statements that make the table, in order. Each is safe to
// repeat; none needs a transaction.
func Schema() []string {
	return []string{
		`CREATE TABLE IF NOT EXISTS dedupd_inbox (
	record_id    BYTEA       NOT NULL PRIMARY KEY,
	fence        INT8        NOT NULL,
	state        TEXT        NOT NULL CHECK (state IN ('planted', 'marked', 'done')),
	fingerprints BYTEA       NOT NULL,
	outcome      BYTEA,
	due_at       TIMESTAMPTZ NOT NULL,
	ends         BOOL        NOT NULL DEFAULT false
)`,
		`CREATE INDEX IF NOT EXISTS dedupd_inbox_due ON dedupd_inbox (due_at)`,
	}
}

// EnsureTable makes the table where it is not there. Any number of processes may
// do so at once.
func EnsureTable(ctx context.Context, q Queries) error {
	for _, statement := range Schema() {
		_, err := q.Exec(ctx, statement)
		if duplicate(err) { // PostgreSQL lets two of them race in its catalogue
			_, err = q.Exec(ctx, statement)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
