package inbox

import (
	"context"
	"database/sql"

	"google.golang.org/protobuf/proto"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/inbox/internal/row"
)

// Tx is a transaction of database/sql, or of a package that wraps it.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	Rollback() error // a database has none: a mark outside of a transaction protects nothing
}

// Do runs fn, which applies the effect through tx alone and returns the answer, in a
// transaction that holds the record of ctx: the handler's own context, or one of
// WithLocal. Where an earlier run has committed, its answer is returned and fn is not
// run.
//
// fn may run several times, of which one commits: write to variables outside by full
// assignment only, and have no effect but through tx. Its context ends after MaxTime.
// Contention, and a session that breaks, are tried again, five times in all; a commit
// whose answer is lost is asked for by the next try's own mark.
//
// An error of fn rolls back and is returned as it is. The others: ErrNoRecord,
// ErrStaleHolder, ErrKeyReused, ErrTooLong (FAILED_PRECONDITION), contention to the
// end (ABORTED), a database that cannot be reached (UNAVAILABLE): nothing was applied
// by this run. ErrOutcomeUnknown: nobody knows yet, a repeat will.
func Do[R proto.Message](ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx *sql.Tx) (R, error), opts ...Option) (R, error) {
	return row.Do(ctx, beginner{db}.begin, func(ctx context.Context, t *transaction) (R, error) { return fn(ctx, t.tx) }, opts)
}

// Mark claims the record of ctx for a transaction of the caller's own: make it the
// first statement, and call Done before the commit. A nil Answer: go on. Else the
// work was done before: return what As makes of it, and commit or roll back. After
// an error roll back.
//
// It is safe in a loop that runs the transaction again, such as cockroach-go's, and
// within a savepoint that also holds the effect; once per run. It waits for another
// transaction on the same record, up to lock_timeout. Set
// idle_in_transaction_session_timeout on such sessions (Do does): else a process that
// stands still in its transaction keeps the record from others until it goes on.
func Mark(ctx context.Context, tx Tx) (*Answer, error) { return row.Mark(ctx, queries{tx}) }

// Done writes the answer of the record that Mark has claimed in tx. A nil resp is the
// answer of a handler that returns none.
func Done(ctx context.Context, tx Tx, resp proto.Message) error {
	return row.Done(ctx, queries{tx}, resp)
}

// Reconciler settles unknown outcomes by the inbox in db: give it to
// interceptors.WithInbox, or to another door with the basis INBOX. It waits up to 5 s
// for a transaction in flight on the record, then the outcome stays unknown and is
// asked for again. It is safe for concurrent use.
func Reconciler(db *sql.DB) guard.Reconciler { return row.Reconciler(beginner{db}) }

// EnsureTable makes the inbox's table where it is not there; any number of processes
// may do so at once. Its statements are those of Schema.
func EnsureTable(ctx context.Context, db *sql.DB) error {
	return row.EnsureTable(ctx, queries{db})
}

// NewCleaner returns what deletes rows after their records' ends. Run it in every
// process of the service, or in one.
func NewCleaner(db *sql.DB, c CleanerConfig) *Cleaner { return row.NewCleaner(queries{db}, c) }
