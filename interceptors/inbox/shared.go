package inbox

import (
	"context"
	"database/sql"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/inbox/internal/row"
)

// This file is what both drivers' packages share.

// What an inbox refuses. Through a door of ours the caller of a stale holder is told
// OUTCOME_UNKNOWN with a hint to ask again, that of a reused key KEY_REUSED.
var (
	// ErrNoRecord says that the context is not that of a keyed call, nor WithLocal's.
	ErrNoRecord = row.ErrNoRecord
	// ErrStaleHolder says that a later holder has the record: this run may apply
	// nothing any more. Roll back.
	ErrStaleHolder = row.ErrStaleHolder
	// ErrKeyReused says that the key did its work for another request.
	ErrKeyReused = row.ErrKeyReused
	// ErrNotDone says that the record was marked twice in a run, or by a transaction
	// that was committed without Done.
	ErrNotDone = row.ErrNotDone
	// ErrNotMarked says that Done found no mark of this run in its transaction.
	ErrNotMarked = row.ErrNotMarked
	// ErrNotStored says that the work was done, and its answer was too large to keep.
	ErrNotStored = row.ErrNotStored
	// ErrTooLong says that Do's transaction took longer than MaxTime; it was rolled
	// back.
	ErrTooLong = row.ErrTooLong
	// ErrOutcomeUnknown is matched by a commit of which nobody can say whether it
	// happened.
	ErrOutcomeUnknown = guard.ErrOutcomeUnknown
)

// Answer is what an earlier run of the same request stored.
type Answer = row.Answer

// As returns the answer as a response of type R. ErrNotStored says that it was too
// large to keep.
func As[R proto.Message](a *Answer) (R, error) { return row.As[R](a) }

// Local names a record that lives in the table alone, without dedupd: its Identity,
// of which operation and key are required; the Fingerprints of its request, at least
// one; and for how long to Keep the answer, 30 days if zero.
type Local = row.Local

// WithLocal returns a context under which Do, Mark and Done keep the record l in the
// table alone, for a service that has no dedupd: of all runs of its key one commits,
// others wait for it and get its answer, until the row is deleted. It fails where l is
// incomplete, and within a call that has a record of dedupd.
func WithLocal(ctx context.Context, l Local) (context.Context, error) { return row.WithLocal(ctx, l) }

// Cleaner deletes rows after their records' ends, which it asks of dedupd: a row
// outlives its record's tombstone. Any number may run on one table; each deletes at
// most 500 rows at a time.
type Cleaner = row.Cleaner

// CleanerConfig configures a Cleaner: Dedup tells when records end (nil: only rows of
// Local records are deleted), Every is the pause between rounds (zero: a minute), and
// Failed is told of a round that failed (nil: nobody is).
type CleanerConfig = row.CleanerConfig

// Cleaned is what a round of a Cleaner did.
type Cleaned = row.Cleaned

// Schema returns the statements that make the table, in order, for a service's own
// migrations. Each is safe to repeat.
func Schema() []string { return row.Schema() }

// Option changes one transaction of Do.
type Option = row.Option

// MaxTime bounds a transaction, its waits included: 10 s unless set. It also ends the
// session, at the database, of a process that stands still in the transaction for so
// long. fn's context ends with it.
func MaxTime(d time.Duration) Option { return func(s *row.Settings) { s.MaxTime = d } }

// Tries sets how often the transaction is run where others are in the way or the
// session breaks: 5 unless set, 1 for no repetition.
func Tries(n int) Option { return func(s *row.Settings) { s.Tries = n } }

// Isolation sets the isolation level; the database's default unless set. Every level
// keeps the promise; REPEATABLE READ and SERIALIZABLE run fn again where others were
// quicker.
func Isolation(level sql.IsolationLevel) Option {
	return func(s *row.Settings) { s.Isolation = level }
}

// AllowUnkeyed runs fn in a plain transaction where ctx has no record: for calls
// without a key, and methods in the mode OBSERVE. Unless set they get ErrNoRecord.
func AllowUnkeyed() Option { return func(s *row.Settings) { s.Unkeyed = true } }
