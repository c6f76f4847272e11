package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/dedupd/dedupd/storage"
)

// The part of plain that is about dead letters.

func (s *plain) lettersOf(id storage.RecordID) (all []*storage.DeadLetter) {
	for _, e := range s.letters {
		if e.Record == id {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *storage.DeadLetter) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return all
}

// readFor are the entries that a store reads for the request.
func (s *plain) readFor(id storage.RecordID, req storage.Request) []*storage.DeadLetter {
	all := s.lettersOf(id)
	switch req.(type) {
	case storage.Park, storage.Redact, storage.Forget:
		return slices.DeleteFunc(all, func(e *storage.DeadLetter) bool { return !e.Open() })
	}
	return all
}

// spoiled is the request as a store sees it that has the fault.
func (s *plain) spoiled(req storage.Request) storage.Request {
	switch q := req.(type) {
	case storage.Park:
		if s.fault == "has no cap" {
			q.Full = false
		}
		if s.fault == "takes a repeated Park for a new one" {
			q.Entry.ParkID = attempt()
		}
		return q
	case storage.Reserve:
		if e := s.claimed(q); s.fault == "trusts any claim" && e != nil {
			q.Claim = &storage.ReplayClaim{Entry: e.ID, Token: e.Claim}
		}
		return q
	}
	return req
}

func (s *plain) claimed(q storage.Reserve) *storage.DeadLetter {
	if q.Claim == nil {
		return nil
	}
	return s.letters[q.Claim.Entry]
}

// spoil changes what is written where the store has the fault.
func (s *plain) spoil(req storage.Request, c *storage.Change) {
	switch req.(type) {
	case storage.Complete:
		if s.fault == "completes the record without its entries" {
			c.Entries = nil
		}
	case storage.Redact:
		c.Redact = c.Redact && s.fault != "redacts open entries only"
	case storage.Claim:
		if s.fault == "keeps no claims" {
			c.Entries = nil
		}
	}
}

func (s *plain) openIn(namespace string) (n int) {
	for _, e := range s.letters {
		if e.Open() && e.Identity.Namespace == namespace {
			n++
		}
	}
	return n
}

// write makes the change and reports whether there was one.
func (s *plain) write(id storage.RecordID, c storage.Change) bool {
	if c.Record != nil {
		s.rows[id] = c.Record
	}
	for _, e := range c.Entries {
		s.letters[e.ID] = e
	}
	for _, e := range s.lettersOf(id) {
		switch {
		case c.Forget && s.fault != "forgets records without their entries":
			delete(s.letters, e.ID)
		case c.Redact:
			s.letters[e.ID] = e.Redacted()
		}
	}
	if c.Forget {
		delete(s.rows, id)
	}
	return c.Record != nil || len(c.Entries) > 0 || c.Forget || c.Redact
}

// judgeEntry finds the record of the entry.
func (s *plain) judgeEntry(ctx context.Context, id storage.EntryID, req storage.Request) (storage.Answer, error) {
	s.mu.Lock()
	e := cmp.Or(s.letters[id], &storage.DeadLetter{})
	s.mu.Unlock()
	return s.judge(ctx, e.Record, req)
}

func (s *plain) Park(ctx context.Context, q storage.Park) (storage.Answer, error) {
	return s.judge(ctx, q.RecordID(), q)
}

func (s *plain) Claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

func (s *plain) Settle(ctx context.Context, q storage.Settle) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

func (s *plain) Requeue(ctx context.Context, q storage.Requeue) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

func (s *plain) Discard(ctx context.Context, q storage.Discard) (storage.Answer, error) {
	return s.judgeEntry(ctx, q.Entry, q)
}

func (s *plain) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *plain) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *plain) Entry(ctx context.Context, id storage.EntryID) (storage.Answer, error) {
	s.mu.Lock()
	e := s.letters[id]
	s.mu.Unlock()
	ans, err := s.judge(ctx, cmp.Or(e, &storage.DeadLetter{}).Record, storage.Lookup{})
	if ans.Entry = e; e == nil {
		ans.Verdict = storage.VerdictNotFound
	}
	return ans, err
}

// choose returns what q chooses, in its order, and the time of the choice.
func (s *plain) choose(q storage.ListEntries) (all []*storage.DeadLetter, now storage.Instant) {
	now = s.now()
	for _, e := range s.letters {
		if q.Wants(e, now) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *storage.DeadLetter) int {
		if q.Newest {
			a, b = b, a
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	return all, now
}

func (s *plain) Entries(_ context.Context, q storage.ListEntries) (storage.EntryPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return storage.EntryPage{}, storage.ErrClosed
	}
	all, now := s.choose(q)
	page := storage.EntryPage{Now: now}
	for _, e := range all {
		if order := bytes.Compare(e.ID[:], q.After[:]); q.After != (storage.EntryID{}) && (order == 0 || (order < 0) != q.Newest) {
			continue
		}
		if len(page.Entries) == q.Limit {
			page.Next = page.Entries[q.Limit-1].ID
			break
		}
		c := *e
		if s.fault != "lists requests" {
			c.Request = nil
		}
		page.Entries = append(page.Entries, &c)
	}
	return page, nil
}

func (s *plain) Groups(_ context.Context, q storage.ListEntries) (groups []storage.EntryGroup, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, storage.ErrClosed
	}
	q.Newest = false
	all, _ := s.choose(q)
	for _, e := range all {
		g := storage.EntryGroup{
			Namespace: e.Identity.Namespace, Operation: e.Identity.Operation, Kind: e.Kind, Code: e.Code, Signature: e.Signature,
		}
		i := slices.IndexFunc(groups, func(o storage.EntryGroup) bool {
			return o.Namespace == g.Namespace && o.Operation == g.Operation && o.Kind == g.Kind && o.Code == g.Code && o.Signature == g.Signature
		})
		if i < 0 {
			g.Oldest = e.ParkedAt
			groups, i = append(groups, g), len(groups)
		}
		groups[i].Entries++
		groups[i].Count += e.Count
		groups[i].Newest, groups[i].Sample = e.ParkedAt, e.ID
	}
	slices.SortStableFunc(groups, func(a, b storage.EntryGroup) int { return cmp.Compare(b.Entries, a.Entries) })
	return groups[:min(len(groups), q.Limit)], nil
}

func (s *plain) Census(context.Context) (storage.Census, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return storage.Census{}, storage.ErrClosed
	}
	c := storage.Census{Now: s.now()}
	for _, r := range s.rows {
		state := r.StateAt(c.Now, 0)
		if state != storage.StateReserved && state != storage.StateUnknown {
			continue
		}
		n := storage.UnfinishedCount{Namespace: r.Identity.Namespace, Operation: r.Identity.Operation, State: state, Records: 1, Oldest: r.GrantedAt}
		i := slices.IndexFunc(c.Unfinished, func(o storage.UnfinishedCount) bool {
			return o.Namespace == n.Namespace && o.Operation == n.Operation && o.State == n.State
		})
		if i < 0 {
			c.Unfinished = append(c.Unfinished, n)
			continue
		}
		c.Unfinished[i].Records++
		c.Unfinished[i].Oldest = min(c.Unfinished[i].Oldest, n.Oldest)
	}
	for _, e := range s.letters {
		if !e.Open() {
			continue
		}
		n := storage.EntryCount{Namespace: e.Identity.Namespace, Kind: e.Kind, Entries: 1, Oldest: e.ParkedAt}
		i := slices.IndexFunc(c.Entries, func(o storage.EntryCount) bool { return o.Namespace == n.Namespace && o.Kind == n.Kind })
		if i < 0 {
			c.Entries = append(c.Entries, n)
			continue
		}
		c.Entries[i].Entries++
		c.Entries[i].Oldest = min(c.Entries[i].Oldest, n.Oldest)
	}
	return c, nil
}
