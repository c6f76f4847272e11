package storage

import (
	"context"
	"slices"
	"time"
)

// Store is what dedupd needs of a database. Implementations are safe for
// concurrent use. Every method returns ErrClosed after Close, an error that
// wraps ErrUnavailable for faults of the store, and ctx's own error when the
// caller gave up first. An error never acknowledges anything; asking again with
// the same attempt id is always safe.
type Store interface {
	Records
	DeadLetters
	Maintenance
}

// Records are the calls of the protocol. Each is one atomic step per record: the
// stored record and the request go through Apply, and what it returns is
// durable before the answer is given. Refusals are answers, not errors. Input
// is trusted: the server has checked the limits.
type Records interface {
	// Reserve never writes a grant for a context that has ended.
	Reserve(ctx context.Context, q Reserve) (Answer, error)
	BeginRun(ctx context.Context, id RecordID, q BeginRun) (Answer, error)
	Complete(ctx context.Context, id RecordID, q Complete) (Answer, error)
	Extend(ctx context.Context, id RecordID, q Extend) (Answer, error)
	Release(ctx context.Context, q Release) (Answer, error)
	// Lookup never writes.
	Lookup(ctx context.Context, id RecordID, q Lookup) (Answer, error)
	Resolve(ctx context.Context, id RecordID, q Resolve) (Answer, error)
	// List pages through records in the order of their ids.
	List(ctx context.Context, q List) (Page, error)
	// Redact and Forget act on the record and all of its entries at once.
	// VerdictNotFound says that there was neither a record nor an open entry;
	// closed entries are erased all the same.
	Redact(ctx context.Context, id RecordID, q Redact) (Answer, error)
	Forget(ctx context.Context, id RecordID, q Forget) (Answer, error)
}

// DeadLetters are the calls on entries. Each is one atomic step on an entry and
// its record, judged by ApplyCase. Requests may be large: only Entry, and a Claim
// that was granted, tell them.
type DeadLetters interface {
	// Park finds the record by the entry's identity, or by its record id where
	// the identity is empty and the record exists.
	Park(ctx context.Context, q Park) (Answer, error)
	// Entry reads one entry whole, and its record.
	Entry(ctx context.Context, id EntryID) (Answer, error)
	// Entries pages through entries, without their requests.
	Entries(ctx context.Context, q ListEntries) (EntryPage, error)
	// Groups counts the entries that q chooses, largest group first, at most
	// Limit groups; After is not read.
	Groups(ctx context.Context, q ListEntries) ([]EntryGroup, error)
	Claim(ctx context.Context, q Claim) (Answer, error)
	Settle(ctx context.Context, q Settle) (Answer, error)
	Requeue(ctx context.Context, q Requeue) (Answer, error)
	Discard(ctx context.Context, q Discard) (Answer, error)
	Census(ctx context.Context) (Census, error)
}

// Maintenance is what keeps a store going.
type Maintenance interface {
	// Sweep deletes up to limit records and closed entries whose time is over and
	// returns how many. It changes no answer.
	Sweep(ctx context.Context, limit int) (int, error)
	// Check reports whether the store can serve, by a real read.
	Check(ctx context.Context) error
	// Skew is how far the store's clocks may differ.
	Skew() time.Duration
	// Close waits for calls that have begun; a second Close does nothing.
	Close() error
}

// Watcher is what a Store adds whose records other processes write too.
type Watcher interface {
	// Changed returns nil once the record's version is not the given one, whoever
	// wrote it, soon but not at once; zero is the version of no record. The end of
	// a lease is no change. It returns ctx's error when ctx ends first.
	Changed(ctx context.Context, id RecordID, version int64) error
}

// List chooses records; zero values choose all.
type List struct {
	Namespace string
	Operation string
	Caller    []byte
	Key       []byte
	States    []State       // as judged now; empty means all but absent
	OlderThan time.Duration // by GrantedAt
	After     RecordID      // only ids above it; zero starts at the first
	Limit     int           // records in the page, at least 1
}

// Wants reports whether q chooses r, now; its place in the listing is not looked
// at.
func (q List) Wants(r *Record, now Instant, skew time.Duration) bool {
	state := r.StateAt(now, skew)
	switch {
	case q.Namespace != "" && r.Identity.Namespace != q.Namespace,
		q.Operation != "" && r.Identity.Operation != q.Operation,
		len(q.Caller) > 0 && r.Identity.Caller != string(q.Caller),
		len(q.Key) > 0 && r.Identity.Key != string(q.Key),
		q.OlderThan > 0 && r.GrantedAt > now.Add(-q.OlderThan):
		return false
	case len(q.States) == 0:
		return state != StateAbsent
	}
	return slices.Contains(q.States, state)
}

// UnfinishedOnly reports whether q chooses none but records that are RESERVED or
// UNKNOWN.
func (q List) UnfinishedOnly() bool {
	finished := func(s State) bool { return s != StateReserved && s != StateUnknown }
	return len(q.States) > 0 && !slices.ContainsFunc(q.States, finished)
}

// Page is a part of a listing.
type Page struct {
	Records []*Record
	Now     Instant // the clock that judged the states
	// Next is the After of the next page; zero after the last. A page may be
	// short, even empty, and still have a next one: a page reads a bounded
	// number of records.
	Next RecordID
}
