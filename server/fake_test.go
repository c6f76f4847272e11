package server

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dedupd/dedupd/storage"
)

// fakeStore is a store in memory over storage.ApplyCase, whose clock a test can
// move and whose faults it chooses.
type fakeStore struct {
	mu      sync.Mutex
	rows    map[storage.RecordID]*storage.Record
	entries map[storage.EntryID]*storage.DeadLetter
	ahead   time.Duration // of the clock
	skew    time.Duration
	before  func(ctx context.Context, call string) error // fails a call unwritten
	after   func(call string) error                      // fails a call that was written
	asked   map[string]int
	closed  bool
	memos   map[string][]byte
}

var (
	_ storage.Store = (*fakeStore)(nil)
	_ storage.Memos = (*fakeStore)(nil)
)

func newFakeStore() *fakeStore {
	return &fakeStore{
		rows:    map[storage.RecordID]*storage.Record{},
		entries: map[storage.EntryID]*storage.DeadLetter{},
		asked:   map[string]int{},
		memos:   map[string][]byte{},
	}
}

// advance moves the store's clock.
func (f *fakeStore) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead += d
}

// fail makes every call of the names given, or of all, end in err; nil heals.
func (f *fakeStore) fail(err error, calls ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = func(_ context.Context, call string) error {
		if len(calls) > 0 && !slices.Contains(calls, call) {
			return nil
		}
		return err
	}
}

// hook runs before every call; an error fails the call unwritten.
func (f *fakeStore) hook(before func(ctx context.Context, call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

func (f *fakeStore) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rows)
}

func (f *fakeStore) calls(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[name]
}

func (f *fakeStore) nowLocked() storage.Instant { return storage.InstantOf(time.Now().Add(f.ahead)) }

func (f *fakeStore) begin(ctx context.Context, call string) error {
	f.mu.Lock()
	f.asked[call]++
	before, closed := f.before, f.closed
	f.mu.Unlock()
	if closed {
		return storage.ErrClosed
	}
	if before != nil {
		if err := before(ctx, call); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (f *fakeStore) apply(ctx context.Context, call string, id storage.RecordID, q storage.Request) (storage.Answer, error) {
	if err := f.begin(ctx, call); err != nil {
		return storage.Answer{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return storage.Answer{}, err // right before the write
	}
	ans := f.stepLocked(id, nil, q)
	if f.after != nil {
		if err := f.after(call); err != nil {
			return storage.Answer{}, err
		}
	}
	return ans, nil
}

func (f *fakeStore) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return f.apply(ctx, "BeginRun", id, q)
}

func (f *fakeStore) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return f.apply(ctx, "Complete", id, q)
}

func (f *fakeStore) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return f.apply(ctx, "Extend", id, q)
}

func (f *fakeStore) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return f.apply(ctx, "Release", q.Identity.RecordID(), q)
}

func (f *fakeStore) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return f.apply(ctx, "Lookup", id, q)
}

func (f *fakeStore) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return f.apply(ctx, "Resolve", id, q)
}

func (f *fakeStore) List(ctx context.Context, q storage.List) (storage.Page, error) {
	if err := f.begin(ctx, "List"); err != nil {
		return storage.Page{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	page := storage.Page{Now: f.nowLocked()}
	ids := make([]storage.RecordID, 0, len(f.rows))
	for id := range f.rows {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b storage.RecordID) int { return bytes.Compare(a[:], b[:]) })
	for _, id := range ids {
		rec := f.rows[id]
		state := rec.StateAt(page.Now, f.skew)
		switch {
		case bytes.Compare(id[:], q.After[:]) <= 0, len(q.States) == 0 && state == storage.StateAbsent:
		case q.Namespace != "" && q.Namespace != rec.Identity.Namespace:
		case q.Operation != "" && q.Operation != rec.Identity.Operation:
		case len(q.Caller) > 0 && string(q.Caller) != rec.Identity.Caller, len(q.Key) > 0 && string(q.Key) != rec.Identity.Key:
		case q.OlderThan > 0 && page.Now.Sub(rec.GrantedAt) < q.OlderThan:
		case len(q.States) > 0 && !slices.Contains(q.States, state):
		case len(page.Records) == q.Limit:
			page.Next = page.Records[q.Limit-1].ID()
			return page, nil
		default:
			page.Records = append(page.Records, rec)
		}
	}
	return page, nil
}

func (f *fakeStore) Sweep(ctx context.Context, limit int) (int, error) {
	if err := f.begin(ctx, "Sweep"); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for id, rec := range f.rows {
		if n < limit && rec.DropAt != 0 && f.nowLocked() >= rec.DropAt {
			delete(f.rows, id)
			n++
		}
	}
	return n, nil
}

func (f *fakeStore) Memo(ctx context.Context, name string) ([]byte, error) {
	if err := f.begin(ctx, "Memo"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.memos[name], nil
}

func (f *fakeStore) SetMemo(ctx context.Context, name string, text []byte) error {
	if err := f.begin(ctx, "SetMemo"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memos[name] = text
	return nil
}

func (f *fakeStore) Check(ctx context.Context) error { return f.begin(ctx, "Check") }

func (f *fakeStore) Skew() time.Duration { return f.skew }

func (f *fakeStore) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// errBroken is a fault that asking again does not help.
var errBroken = errors.New("the disk sda1 is broken")

// errDown is what a store out of reach says; its text must reach no caller.
var errDown = errors.Join(errors.New("disk sda1 on fire"), storage.ErrUnavailable)
