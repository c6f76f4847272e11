package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/dedupd/dedupd/storage"
)

// The part of the mirror that compares, and its calls on dead letters.

// compare holds an answer against what the rules say, at one of the times that
// it may have been judged at, and takes over what they write.
func (m *mirror) compare(id storage.RecordID, req storage.Request, got storage.Answer) {
	m.Helper()
	got = told(req, got)
	diff := ""
	for _, now := range m.judgedAt(id, req, got) {
		got.Now = now
		for _, c := range m.cases(id, now) {
			change, want := storage.ApplyCase(c, req, now, m.f.Store.Skew())
			adoptID(want.Entry, got)
			diff = gocmp.Diff(told(req, want), got, cmpopts.EquateEmpty())
			if diff == "" {
				m.write(id, change)
				return
			}
		}
	}
	m.Fatalf("%T differs from storage.ApplyCase (-want +got):\n%s", req, diff)
}

// adoptID gives a new entry the store's id. Half of it is the time; the other
// half depends on the version of what was there, which nobody is told of a mark.
func adoptID(want *storage.DeadLetter, got storage.Answer) {
	if want != nil && got.Parked && got.Entry.Count == 1 && bytes.Equal(want.ID[:8], got.Entry.ID[:8]) {
		want.ID = got.Entry.ID
	}
}

// cases are what the store may have read: what is over may have been swept.
func (m *mirror) cases(id storage.RecordID, now storage.Instant) []storage.Case {
	c := storage.Case{Record: m.records[id], Entries: m.letters[id]}
	swept := storage.Case{Record: c.Record, Entries: slices.DeleteFunc(slices.Clone(c.Entries), func(e *storage.DeadLetter) bool {
		return e.DropAt != 0 && now >= e.DropAt
	})}
	if c.Record != nil && c.Record.OverAt(now) {
		swept.Record = nil
	}
	both := []storage.Case{c}
	if swept.Record != c.Record || len(swept.Entries) != len(c.Entries) {
		both = append(both, swept, storage.Case{Record: c.Record, Entries: swept.Entries}, storage.Case{Record: swept.Record, Entries: c.Entries})
	}
	return both
}

// told is what every store tells: the request of an entry by Claim only.
func told(req storage.Request, a storage.Answer) storage.Answer {
	if _, ok := req.(storage.Claim); (!ok || a.Verdict != storage.VerdictOK) && a.Entry != nil {
		e := *a.Entry
		e.Request, a.Entry = nil, &e
	}
	return a
}

// judgedAt are the times that a store may have judged at: one that the answer
// shows where something was written, else that of the answer.
func (m *mirror) judgedAt(id storage.RecordID, req storage.Request, got storage.Answer) (at []storage.Instant) {
	if r := got.Record; r != nil && (m.records[id] == nil || m.records[id].Version != r.Version) {
		return []storage.Instant{storage.Instant(r.Version)}
	}
	if e := got.Entry; e != nil {
		at = append(at, e.LastParkedAt, e.ClosedAt)
		switch q := req.(type) {
		case storage.Claim:
			at = append(at, e.ClaimEnd.Add(-cmp.Or(q.Lease, storage.DefaultClaim)))
		case storage.Settle:
			at = append(at, e.NotBefore.Add(-q.NotBefore))
		}
	}
	return append(at, got.Now)
}

func (m *mirror) write(id storage.RecordID, c storage.Change) {
	if c.Forget {
		delete(m.records, id)
		delete(m.letters, id)
		return
	}
	if c.Record != nil {
		m.records[id] = c.Record
	}
	all := slices.Clone(m.letters[id])
	for _, e := range c.Entries {
		all = slices.DeleteFunc(all, func(o *storage.DeadLetter) bool { return o.ID == e.ID })
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *storage.DeadLetter) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for i, e := range all {
		if c.Redact {
			all[i] = e.Redacted()
		}
	}
	m.letters[id] = all
	m.checkPins(id)
}

// checkPins holds the rules to the count of the entries that hold a record.
func (m *mirror) checkPins(id storage.RecordID) {
	pins := 0
	for _, e := range m.letters[id] {
		if e.Pinned {
			pins++
		}
		if e.Pinned && !e.Open() {
			m.Fatalf("a closed entry holds its record")
		}
	}
	if r := m.records[id]; pins > 0 && r == nil || r != nil && int(r.Pins) != pins {
		m.Fatalf("%d entries hold the record %+v", pins, r)
	}
}

func (m *mirror) letterActions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"park": m.park, "claim": m.claim, "replay": m.replay, "settle": m.settle, "requeue": m.requeue, "discard": m.discard,
		"redact": m.redact, "forget": m.forget, "list entries": m.listEntries,
	}
}

func (m *mirror) park(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, _ *storage.Record) (storage.Request, storage.Answer, error) {
		q := m.f.letter(id.Key)
		q.Entry.Identity, q.Terms.EntryCap = id, 1000
		q.Entry.Kind = rapid.SampledFrom([]storage.EntryKind{storage.EntryExhausted, storage.EntryExhausted, storage.EntryUnreconciled, storage.EntryOverdue}).Draw(m.T, "kind")
		q.Entry.ParkID, q.Entry.Fingerprint = m.attempt(), m.fingerprint()
		q.Entry.Request = randomBytes(rapid.SampledFrom([]int{0, 3, 5000}).Draw(m.T, "size"))
		if q.Entry.HasRequest = rapid.IntRange(0, 4).Draw(m.T, "bare") > 0; !q.Entry.HasRequest {
			q.Entry.Request = nil
		}
		if rapid.IntRange(0, 4).Draw(m.T, "by id") == 0 {
			q.Entry.Identity, q.Entry.Record = storage.Identity{}, id.RecordID()
		}
		ans, err := m.f.Store.Park(ctx, q)
		return q, ans, err
	})
}

// known draws an entry that was made, if there is one.
func (m *mirror) known() (e *storage.DeadLetter) {
	var all []*storage.DeadLetter
	for _, id := range []string{"a", "b"} {
		of := m.f.identity(id)
		of.Namespace = m.namespace
		all = append(all, m.letters[of.RecordID()]...)
	}
	if len(all) == 0 {
		return nil
	}
	return rapid.SampledFrom(all).Draw(m.T, "entry")
}

// about makes a call about an entry that was made.
func (m *mirror) about(ask func(ctx context.Context, e *storage.DeadLetter) (storage.Request, storage.Answer, error)) {
	m.Helper()
	e := m.known()
	if e == nil {
		return
	}
	req, got, err := ask(m.f.Context(), e)
	if err != nil {
		m.Fatalf("%T: %v", req, err)
	}
	m.compare(e.Record, req, got)
}

// claimFor draws a claim on e, most often its own.
func (m *mirror) claimFor(e *storage.DeadLetter) storage.ReplayClaim {
	c := storage.ReplayClaim{Entry: e.ID, Token: e.Claim}
	if len(m.claims) > 0 && rapid.IntRange(0, 4).Draw(m.T, "other claim") == 0 {
		c.Token = rapid.SampledFrom(m.claims).Draw(m.T, "claim").Token
	}
	return c
}

func (m *mirror) claim(*rapid.T) {
	m.about(func(ctx context.Context, e *storage.DeadLetter) (storage.Request, storage.Answer, error) {
		c := m.claimFor(e)
		if rapid.IntRange(0, 3).Draw(m.T, "new claim") > 0 {
			c.Token = token()
			m.claims = append(m.claims, c)
		}
		q := storage.Claim{
			Entry: e.ID, Token: c.Token, Lease: m.lease(), Terms: terms(),
			Operator: rapid.Bool().Draw(m.T, "operator"), Force: rapid.Bool().Draw(m.T, "force"),
		}
		ans, err := m.f.Store.Claim(ctx, q)
		return q, ans, err
	})
}

func (m *mirror) replay(*rapid.T) {
	m.about(func(ctx context.Context, e *storage.DeadLetter) (storage.Request, storage.Answer, error) {
		c := m.claimFor(e)
		q := storage.Reserve{
			Identity: e.Identity, Fingerprint: m.fingerprint(), Attempt: m.attempt(), Lease: m.lease(), Claim: &c, Terms: terms(),
			OnUnknown: rapid.SampledFrom([]storage.OnUnknown{storage.OnUnknownRefuse, storage.OnUnknownReconcile, storage.OnUnknownRerun}).Draw(m.T, "on unknown"),
			Basis:     storage.BasisBounded, Trace: []byte{1, 2},
		}
		q.Identity.Caller = "replayer"
		ans, err := m.f.Store.Reserve(ctx, q)
		return q, ans, err
	})
}

func (m *mirror) settle(*rapid.T) {
	m.about(func(ctx context.Context, e *storage.DeadLetter) (storage.Request, storage.Answer, error) {
		q := storage.Settle{
			Entry: e.ID, Token: m.claimFor(e).Token, Status: []byte{8, 3}, Terms: terms(),
			Result: rapid.SampledFrom([]storage.EntryResult{
				storage.ResultReplayed, storage.ResultAlreadyDone, storage.ResultFailed, storage.ResultFailed, storage.ResultGivenBack,
			}).Draw(m.T, "result"),
			NotBefore: rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(m.T, "not before"),
		}
		ans, err := m.f.Store.Settle(ctx, q)
		return q, ans, err
	})
}

func (m *mirror) requeue(*rapid.T) {
	m.about(func(ctx context.Context, e *storage.DeadLetter) (storage.Request, storage.Answer, error) {
		q := storage.Requeue{Entry: e.ID, Note: "n"}
		ans, err := m.f.Store.Requeue(ctx, q)
		return q, ans, err
	})
}

func (m *mirror) discard(*rapid.T) {
	m.about(func(ctx context.Context, e *storage.DeadLetter) (storage.Request, storage.Answer, error) {
		q := storage.Discard{Entry: e.ID, Note: "n", Terms: terms()}
		ans, err := m.f.Store.Discard(ctx, q)
		return q, ans, err
	})
}

func (m *mirror) redact(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, _ *storage.Record) (storage.Request, storage.Answer, error) {
		ans, err := m.f.Store.Redact(ctx, id.RecordID(), storage.Redact{})
		return storage.Redact{}, ans, err
	})
}

func (m *mirror) forget(*rapid.T) {
	if rapid.IntRange(0, 2).Draw(m.T, "spare") > 0 {
		return // else little grows old
	}
	m.call(func(ctx context.Context, id storage.Identity, _ *storage.Record) (storage.Request, storage.Answer, error) {
		ans, err := m.f.Store.Forget(ctx, id.RecordID(), storage.Forget{})
		return storage.Forget{}, ans, err
	})
}

func (m *mirror) listEntries(*rapid.T) {
	q := storage.ListEntries{
		Namespace: m.namespace, Limit: 1000, Newest: rapid.Bool().Draw(m.T, "newest"), Ready: rapid.Bool().Draw(m.T, "ready"),
		States: rapid.SliceOfDistinct(rapid.SampledFrom([]storage.EntryState{
			storage.EntryParked, storage.EntryReplaying, storage.EntryResolved, storage.EntryDiscarded,
		}), rapid.ID).Draw(m.T, "states"),
	}
	page, err := m.f.Store.Entries(m.f.Context(), q)
	if err != nil {
		m.Fatalf("list entries: %v", err)
	}
	if page.Next != (storage.EntryID{}) {
		return // a shared store: the rest is on other pages
	}
	over := func(e *storage.DeadLetter) bool { return e.DropAt != 0 && page.Now >= e.DropAt } // it may have been swept
	var want []*storage.DeadLetter
	for _, letters := range m.letters {
		for _, e := range letters {
			if q.Wants(e, page.Now) && !over(e) {
				c := *e
				c.Request = nil
				want = append(want, &c)
			}
		}
	}
	slices.SortFunc(want, func(a, b *storage.DeadLetter) int {
		if q.Newest {
			a, b = b, a
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	if diff := gocmp.Diff(want, slices.DeleteFunc(page.Entries, over), cmpopts.EquateEmpty()); diff != "" {
		m.Fatalf("the listing of entries differs (-want +got):\n%s", diff)
	}
}
