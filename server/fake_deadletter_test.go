package server

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/dedupd/dedupd/storage"
)

// stepLocked judges and writes; named is the entry that q is about, if it names
// one.
func (f *fakeStore) stepLocked(id storage.RecordID, named *storage.EntryID, q storage.Request) storage.Answer {
	c := storage.Case{Record: f.rows[id]}
	for _, e := range f.sortedLocked() {
		if e.Record == id && (e.Open() || named != nil && e.ID == *named) {
			c.Entries = append(c.Entries, e)
		}
	}
	change, ans := storage.ApplyCase(c, q, f.nowLocked(), f.skew)
	if change.Record != nil {
		f.rows[id] = change.Record
	}
	for _, e := range change.Entries {
		f.entries[e.ID] = e
	}
	for _, e := range f.sortedLocked() {
		if e.Record == id && change.Forget {
			delete(f.entries, e.ID)
		} else if e.Record == id && change.Redact {
			f.entries[e.ID] = e.Redacted()
		}
	}
	if change.Forget {
		delete(f.rows, id)
	}
	return ans
}

// sortedLocked is all entries in the order of parking.
func (f *fakeStore) sortedLocked() []*storage.DeadLetter {
	return slices.SortedFunc(maps.Values(f.entries), func(a, b *storage.DeadLetter) int { return bytes.Compare(a.ID[:], b.ID[:]) })
}

// onEntry is a step on an entry and its record.
func (f *fakeStore) onEntry(ctx context.Context, call string, id storage.EntryID, q storage.Request) (storage.Answer, error) {
	if err := f.begin(ctx, call); err != nil {
		return storage.Answer{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	record := storage.RecordID{}
	if e := f.entries[id]; e != nil {
		record = e.Record
	}
	return f.stepLocked(record, &id, q), nil
}

func (f *fakeStore) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	if q.Claim != nil {
		return f.onEntry(ctx, "Reserve", q.Claim.Entry, q)
	}
	return f.apply(ctx, "Reserve", q.Identity.RecordID(), q)
}

func (f *fakeStore) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return f.apply(ctx, "Redact", id, q)
}

func (f *fakeStore) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return f.apply(ctx, "Forget", id, q)
}

func (f *fakeStore) Park(ctx context.Context, q storage.Park) (storage.Answer, error) {
	f.mu.Lock()
	open, limit := 0, cmp.Or(q.Terms.EntryCap, storage.DefaultEntryCap)
	for _, e := range f.entries {
		if e.Open() && e.Identity.Namespace == q.Entry.Identity.Namespace {
			open++
		}
	}
	f.mu.Unlock()
	q.Full = open >= limit
	return f.apply(ctx, "Park", q.RecordID(), q)
}

func (f *fakeStore) Claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	return f.onEntry(ctx, "Claim", q.Entry, q)
}

func (f *fakeStore) Settle(ctx context.Context, q storage.Settle) (storage.Answer, error) {
	return f.onEntry(ctx, "Settle", q.Entry, q)
}

func (f *fakeStore) Requeue(ctx context.Context, q storage.Requeue) (storage.Answer, error) {
	return f.onEntry(ctx, "Requeue", q.Entry, q)
}

func (f *fakeStore) Discard(ctx context.Context, q storage.Discard) (storage.Answer, error) {
	return f.onEntry(ctx, "Discard", q.Entry, q)
}

func (f *fakeStore) Entry(ctx context.Context, id storage.EntryID) (storage.Answer, error) {
	if err := f.begin(ctx, "Entry"); err != nil {
		return storage.Answer{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ans := storage.Answer{Verdict: storage.VerdictNotFound, Now: f.nowLocked()}
	if e := f.entries[id]; e != nil {
		ans.Verdict, ans.Entry, ans.Record = storage.VerdictOK, e, f.rows[e.Record]
		ans.State = ans.Record.StateAt(ans.Now, f.skew)
	}
	return ans, nil
}

func (f *fakeStore) Entries(ctx context.Context, q storage.ListEntries) (storage.EntryPage, error) {
	if err := f.begin(ctx, "Entries"); err != nil {
		return storage.EntryPage{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.sortedLocked()
	if q.Newest {
		slices.Reverse(all)
	}
	page := storage.EntryPage{Now: f.nowLocked()}
	for _, e := range all {
		c := bytes.Compare(e.ID[:], q.After[:])
		switch {
		case q.After != (storage.EntryID{}) && (c <= 0 && !q.Newest || c >= 0 && q.Newest), !q.Wants(e, page.Now):
		case len(page.Entries) == q.Limit:
			page.Next = page.Entries[q.Limit-1].ID
			return page, nil
		default:
			told := *e
			told.Request = nil
			page.Entries = append(page.Entries, &told)
		}
	}
	return page, nil
}

func (f *fakeStore) Groups(ctx context.Context, q storage.ListEntries) ([]storage.EntryGroup, error) {
	if err := f.begin(ctx, "Groups"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	groups := map[storage.EntryGroup]*storage.EntryGroup{}
	for _, e := range f.sortedLocked() {
		if !q.Wants(e, f.nowLocked()) {
			continue
		}
		k := storage.EntryGroup{Namespace: e.Identity.Namespace, Operation: e.Identity.Operation, Kind: e.Kind, Code: e.Code, Signature: e.Signature}
		if groups[k] == nil {
			g := k
			g.Oldest = e.ParkedAt
			groups[k] = &g
		}
		groups[k].Entries++
		groups[k].Count += e.Count
		groups[k].Newest, groups[k].Sample = e.ParkedAt, e.ID
	}
	var out []storage.EntryGroup
	for _, g := range groups {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b storage.EntryGroup) int { return cmp.Compare(b.Entries, a.Entries) })
	return out[:min(len(out), q.Limit)], nil
}

func (f *fakeStore) Census(ctx context.Context) (storage.Census, error) {
	if err := f.begin(ctx, "Census"); err != nil {
		return storage.Census{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c := storage.Census{Now: f.nowLocked()}
	for _, rec := range f.rows {
		if s := rec.StateAt(c.Now, f.skew); s == storage.StateReserved || s == storage.StateUnknown {
			c.Unfinished = append(c.Unfinished, storage.UnfinishedCount{
				Namespace: rec.Identity.Namespace, Operation: rec.Identity.Operation, State: s, Records: 1, Oldest: rec.GrantedAt,
			})
		}
	}
	for _, e := range f.entries {
		if e.Open() {
			c.Entries = append(c.Entries, storage.EntryCount{Namespace: e.Identity.Namespace, Kind: e.Kind, Entries: 1, Oldest: e.ParkedAt})
		}
	}
	return c, nil
}
