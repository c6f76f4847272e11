package dedupdtest

import (
	"bytes"
	"context"
	"slices"

	"github.com/dedupd/dedupd/storage"
)

// lettersLocked are the entries of a record, oldest first.
func (s *memory) lettersLocked(id storage.RecordID) (all []*storage.DeadLetter) {
	for _, e := range s.letters {
		if e.Record == id {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *storage.DeadLetter) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return all
}

func (s *memory) writeLocked(id storage.RecordID, c storage.Change) {
	if c.Record != nil {
		s.rows[id] = c.Record
	}
	for _, e := range c.Entries {
		s.letters[e.ID] = e
	}
	for _, e := range s.lettersLocked(id) {
		switch {
		case c.Forget:
			delete(s.letters, e.ID)
		case c.Redact:
			s.letters[e.ID] = e.Redacted()
		}
	}
	if c.Forget {
		delete(s.rows, id)
	}
}

func (s *memory) letter(id storage.EntryID) *storage.DeadLetter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.letters[id]
}

// entry judges a call about an entry.
func (s *memory) entry(ctx context.Context, id storage.EntryID, q storage.Request) (storage.Answer, error) {
	e := s.letter(id)
	if e == nil {
		return storage.Answer{Verdict: storage.VerdictNotFound}, ctx.Err()
	}
	return s.judge(ctx, e.Record, q)
}

// Park keeps an entry, however many there are.
func (s *memory) Park(ctx context.Context, q storage.Park) (storage.Answer, error) {
	return s.judge(ctx, q.RecordID(), q)
}

// Claim takes one for a replay.
func (s *memory) Claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	return s.entry(ctx, q.Entry, q)
}

// Settle ends a claim.
func (s *memory) Settle(ctx context.Context, q storage.Settle) (storage.Answer, error) {
	return s.entry(ctx, q.Entry, q)
}

// Requeue asks for a replay.
func (s *memory) Requeue(ctx context.Context, q storage.Requeue) (storage.Answer, error) {
	return s.entry(ctx, q.Entry, q)
}

// Discard closes one.
func (s *memory) Discard(ctx context.Context, q storage.Discard) (storage.Answer, error) {
	return s.entry(ctx, q.Entry, q)
}

// Entry reads one whole.
func (s *memory) Entry(ctx context.Context, id storage.EntryID) (storage.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.letters[id]
	if e == nil {
		return storage.Answer{Verdict: storage.VerdictNotFound}, ctx.Err()
	}
	now := s.nowLocked()
	r := s.rows[e.Record]
	return storage.Answer{Verdict: storage.VerdictOK, Entry: e, Record: r, State: r.StateAt(now, 0), Now: now}, ctx.Err()
}

// Entries lists all that q chooses, on one page.
func (s *memory) Entries(ctx context.Context, q storage.ListEntries) (storage.EntryPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page := storage.EntryPage{Now: s.nowLocked()}
	for _, e := range s.letters {
		if q.Wants(e, page.Now) {
			page.Entries = append(page.Entries, e)
		}
	}
	slices.SortFunc(page.Entries, func(a, b *storage.DeadLetter) int {
		if q.Newest {
			a, b = b, a
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	return page, ctx.Err()
}

// Groups is for operators; a test has none.
func (s *memory) Groups(context.Context, storage.ListEntries) ([]storage.EntryGroup, error) {
	return nil, nil
}

// Census is for alerts; a test has none.
func (s *memory) Census(context.Context) (storage.Census, error) { return storage.Census{}, nil }
