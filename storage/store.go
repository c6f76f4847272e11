package storage

import (
	"context"
	"time"
)

// Store is what dedupd needs of a database. Implementations are safe for
// concurrent use. Every method returns ErrClosed after Close, an error that
// wraps ErrUnavailable for faults of the store, and ctx's own error when the
// caller gave up first. An error never acknowledges anything; asking again with
// the same attempt id is always safe.
type Store interface {
	Records
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
}

// Maintenance is what keeps a store going.
type Maintenance interface {
	// Sweep deletes up to limit records whose time is over and returns how many.
	// It changes no answer.
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
	States    []State  // as judged now; empty means all but absent
	After     RecordID // only ids above it; zero starts at the first
	Limit     int      // records in the page, at least 1
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
