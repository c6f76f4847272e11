package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dedupd/dedupd/storage"
)

// plain is the smallest store: a map under one lock. A fault, where one is
// named, breaks it in a way that the suite must notice.
type plain struct {
	fault   string
	mu      sync.Mutex
	rows    map[storage.RecordID]*storage.Record
	letters map[storage.EntryID]*storage.DeadLetter
	offset  time.Duration
	closed  bool
}

var _ storage.Store = (*plain)(nil)

func openPlain(fault string) Opener {
	return func(testing.TB) Harness {
		s := &plain{fault: fault, rows: map[storage.RecordID]*storage.Record{}, letters: map[storage.EntryID]*storage.DeadLetter{}}
		h := Harness{Store: s, Advance: func(d time.Duration) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.offset += d
		}}
		h.Reopen = func(testing.TB) Harness {
			if s.fault == "loses all on a restart" {
				s.rows, s.letters = map[storage.RecordID]*storage.Record{}, map[storage.EntryID]*storage.DeadLetter{}
			}
			s.closed = false
			return h
		}
		return h
	}
}

func (s *plain) now() storage.Instant { return storage.InstantOf(time.Now().Add(s.offset)) }

func (s *plain) judge(ctx context.Context, id storage.RecordID, req storage.Request) (storage.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return storage.Answer{}, storage.ErrClosed
	}
	if err := ctx.Err(); err != nil && s.fault != "grants to callers that gave up" {
		return storage.Answer{}, err
	}
	row := s.rows[id]
	if s.fault == "reads and writes apart" {
		s.mu.Unlock()
		<-time.After(50 * time.Millisecond) // long enough for the others to have read
		s.mu.Lock()
	}
	if s.fault == "knows no ended attempts" && row != nil {
		c := *row
		c.Ended, row = nil, &c
	}
	if p, ok := req.(storage.Park); ok {
		p.Full = s.openIn(p.Entry.Identity.Namespace) >= cmp.Or(p.Terms.EntryCap, storage.DefaultEntryCap)
		req = p
	}
	change, ans := storage.ApplyCase(storage.Case{Record: row, Entries: s.readFor(id, req)}, s.spoiled(req), s.now(), 0)
	s.spoil(req, &change)
	if s.fault == "grants the same fence again" && change.Record != nil {
		change.Record.Fence = 1
	}
	if s.fault != "acknowledges without a write" && s.write(id, change) {
		ans.Now = s.now()
	}
	if s.fault == "loses a byte" && ans.Outcome != nil && len(ans.Outcome.Response) > 0 {
		o := *ans.Outcome
		o.Response, ans.Outcome = o.Response[1:], &o
	}
	return ans, ctx.Err()
}

func (s *plain) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	if q.Claim != nil {
		return s.judgeEntry(ctx, q.Claim.Entry, q)
	}
	id := q.Identity
	if s.fault == "knows no callers" {
		id.Caller = ""
	}
	return s.judge(ctx, id.RecordID(), q)
}

func (s *plain) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *plain) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *plain) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *plain) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return s.judge(ctx, q.Identity.RecordID(), q)
}

func (s *plain) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *plain) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *plain) List(_ context.Context, q storage.List) (storage.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return storage.Page{}, storage.ErrClosed
	}
	page := storage.Page{Now: s.now()}
	ids := make([]storage.RecordID, 0, len(s.rows))
	for id := range s.rows {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b storage.RecordID) int { return bytes.Compare(a[:], b[:]) })
	for _, id := range ids {
		r, now := s.rows[id], page.Now
		if s.fault == "lists states as stored" {
			now = r.GrantedAt
		}
		switch {
		case bytes.Compare(id[:], q.After[:]) <= 0, !q.Wants(r, now, 0):
		case len(page.Records) == q.Limit:
			page.Next = page.Records[q.Limit-1].ID()
			if s.fault == "skips a record between pages" {
				page.Next = id
			}
			return page, nil
		default:
			page.Records = append(page.Records, r)
		}
	}
	return page, nil
}

func (s *plain) Sweep(_ context.Context, limit int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, storage.ErrClosed
	}
	n := 0
	for id, r := range s.rows {
		over := r.OverAt(s.now()) ||
			s.fault == "sweeps marks in their time" && r.State == storage.StateAbsent ||
			s.fault == "sweeps lapsed grants" && r.StateAt(s.now(), 0) == storage.StateUnknown
		if over && n < limit {
			delete(s.rows, id)
			n++
		}
	}
	for id, e := range s.letters {
		if e.DropAt != 0 && s.now() >= e.DropAt && n < limit {
			delete(s.letters, id)
			n++
		}
	}
	return n, nil
}

func (s *plain) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return storage.ErrClosed
	}
	return nil
}

func (s *plain) Skew() time.Duration { return 0 }

func (s *plain) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
