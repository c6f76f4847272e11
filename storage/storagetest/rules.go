package storagetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/dedupd/dedupd/storage"
)

func ruleCases() []testCase {
	return []testCase{
		{name: "random calls get the answers of storage.ApplyCase", run: answersOfApply},
	}
}

func answersOfApply(f *fixture) {
	round := 0
	rapid.Check(f, func(t *rapid.T) {
		round++
		m := &mirror{
			T: t, f: f, namespace: fmt.Sprintf("%s-%d", f.namespace, round),
			records: map[storage.RecordID]*storage.Record{}, letters: map[storage.RecordID][]*storage.DeadLetter{},
			attempts: []storage.AttemptID{attempt(), attempt(), attempt()},
		}
		actions := map[string]func(*rapid.T){
			"reserve": m.reserve, "complete": m.complete, "release": m.release, "extend": m.extend,
			"begin run": m.beginRun, "lookup": m.lookup, "resolve": m.resolve, "list": m.list, "sweep": m.sweep,
		}
		maps.Copy(actions, m.letterActions())
		if f.Advance != nil {
			actions["advance"] = m.advance
		}
		t.Repeat(actions)
	})
}

// mirror holds beside the store what it should hold, and compares each answer.
// When the store judged is read off the answer: a record's version is the time
// of its write, and Now is the time of an answer that wrote nothing.
type mirror struct {
	*rapid.T
	f         *fixture
	namespace string
	records   map[storage.RecordID]*storage.Record
	letters   map[storage.RecordID][]*storage.DeadLetter
	attempts  []storage.AttemptID
	claims    []storage.ReplayClaim // some that were made, and some that were not
}

// call draws a key, lets ask call the store about it and compares the answer.
func (m *mirror) call(ask func(ctx context.Context, id storage.Identity, row *storage.Record) (storage.Request, storage.Answer, error)) {
	m.Helper()
	id := m.f.identity(rapid.SampledFrom([]string{"a", "b"}).Draw(m.T, "key"))
	id.Namespace = m.namespace
	row := m.records[id.RecordID()]
	req, got, err := ask(m.f.Context(), id, row)
	if err != nil {
		m.Fatalf("%T: %v", req, err)
	}
	m.compare(id.RecordID(), req, got)
}

func (m *mirror) attempt() storage.AttemptID {
	return rapid.SampledFrom(m.attempts).Draw(m.T, "attempt")
}

func (m *mirror) fingerprint() storage.Fingerprint {
	return fingerprint(rapid.SampledFrom([]string{"a", "a", "a", "b"}).Draw(m.T, "fingerprint"))
}

// holder draws an attempt and a fence, most often those of the last grant.
func (m *mirror) holder(row *storage.Record) (storage.AttemptID, storage.Fence) {
	if row == nil || rapid.IntRange(0, 9).Draw(m.T, "stranger") == 0 {
		return m.attempt(), storage.Fence(rapid.IntRange(1, 3).Draw(m.T, "fence"))
	}
	if rapid.IntRange(0, 4).Draw(m.T, "last runner") == 0 {
		return row.RunAttempt, max(row.RunFence, 1)
	}
	return row.Attempt, max(row.Fence, 1)
}

func (m *mirror) lease() time.Duration {
	return rapid.SampledFrom([]time.Duration{0, storage.MinLease, time.Minute, storage.MaxLease}).Draw(m.T, "lease")
}

// extension is what an Extend may ask for: a grant that is handed over lasts longer.
func (m *mirror) extension() time.Duration {
	if rapid.IntRange(0, 4).Draw(m.T, "handed over") == 0 {
		return storage.MaxHandedLease
	}
	return m.lease()
}

func (m *mirror) outcome() *storage.Outcome {
	return rapid.SampledFrom([]*storage.Outcome{success("x"), success("y"), failure(9), {}}).Draw(m.T, "outcome")
}

func (m *mirror) reserve(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, _ *storage.Record) (storage.Request, storage.Answer, error) {
		q := storage.Reserve{
			Identity: id, Fingerprint: m.fingerprint(), Attempt: m.attempt(), Lease: m.lease(),
			OnUnknown: rapid.SampledFrom([]storage.OnUnknown{storage.OnUnknownRefuse, storage.OnUnknownReconcile, storage.OnUnknownRerun}).Draw(m.T, "on unknown"),
			Basis:     rapid.SampledFrom([]storage.Basis{storage.BasisBounded, storage.BasisFenced, storage.BasisInbox}).Draw(m.T, "basis"),
		}
		ans, err := m.f.Store.Reserve(ctx, q)
		return q, ans, err
	})
}

func (m *mirror) complete(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, row *storage.Record) (storage.Request, storage.Answer, error) {
		a, fence := m.holder(row)
		q := storage.Complete{Attempt: a, Fence: fence, Outcome: m.outcome(), Terms: terms()}
		ans, err := m.f.Store.Complete(ctx, id.RecordID(), q)
		return q, ans, err
	})
}

func (m *mirror) release(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, row *storage.Record) (storage.Request, storage.Answer, error) {
		a, fence := m.holder(row)
		if rapid.IntRange(0, 3).Draw(m.T, "unread") == 0 {
			a, fence = m.attempt(), 0
		}
		q := storage.Release{
			Identity: id, Attempt: a, Fence: fence, Note: "n", Terms: terms(),
			Effect: rapid.SampledFrom([]storage.Effect{storage.EffectNone, storage.EffectRepeatable, storage.EffectUnknown}).Draw(m.T, "effect"),
		}
		if rapid.Bool().Draw(m.T, "keep an error") {
			q.Error, q.Hold = failure(9), time.Minute
		}
		ans, err := m.f.Store.Release(ctx, q)
		return q, ans, err
	})
}

func (m *mirror) extend(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, row *storage.Record) (storage.Request, storage.Answer, error) {
		a, fence := m.holder(row)
		q := storage.Extend{Attempt: a, Fence: fence, Lease: m.extension()}
		ans, err := m.f.Store.Extend(ctx, id.RecordID(), q)
		return q, ans, err
	})
}

func (m *mirror) beginRun(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, row *storage.Record) (storage.Request, storage.Answer, error) {
		a, fence := m.holder(row)
		q := storage.BeginRun{Attempt: a, Fence: fence}
		ans, err := m.f.Store.BeginRun(ctx, id.RecordID(), q)
		return q, ans, err
	})
}

func (m *mirror) lookup(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, _ *storage.Record) (storage.Request, storage.Answer, error) {
		q := storage.Lookup{}
		if rapid.Bool().Draw(m.T, "with fingerprint") {
			q.Fingerprint = m.fingerprint()
		}
		ans, err := m.f.Store.Lookup(ctx, id.RecordID(), q)
		return q, ans, err
	})
}

func (m *mirror) resolve(*rapid.T) {
	m.call(func(ctx context.Context, id storage.Identity, row *storage.Record) (storage.Request, storage.Answer, error) {
		q := storage.Resolve{Version: 1, Note: "n", Terms: terms()}
		if row != nil && rapid.IntRange(0, 4).Draw(m.T, "other version") > 0 {
			q.Version = row.Version
		}
		if rapid.Bool().Draw(m.T, "completed") {
			q.Completed, q.Outcome = true, m.outcome()
		}
		ans, err := m.f.Store.Resolve(ctx, id.RecordID(), q)
		return q, ans, err
	})
}

func (m *mirror) list(*rapid.T) {
	states := rapid.SliceOfDistinct(rapid.SampledFrom([]storage.State{
		storage.StateReserved, storage.StateReleased, storage.StateUnknown, storage.StateCompleted, storage.StateExpired,
	}), rapid.ID).Draw(m.T, "states")
	page, err := m.f.Store.List(m.f.Context(), storage.List{Namespace: m.namespace, States: states, Limit: 10})
	if err != nil {
		m.Fatalf("list: %v", err)
	}
	if page.Next != (storage.RecordID{}) {
		return // a shared store: the rest is on other pages
	}
	want := map[storage.RecordID]*storage.Record{}
	for id, r := range m.records {
		state := r.StateAt(page.Now, m.f.Store.Skew())
		if state != storage.StateAbsent && (len(states) == 0 || slices.Contains(states, state)) {
			want[id] = r
		}
	}
	got := map[storage.RecordID]*storage.Record{}
	for _, r := range page.Records {
		got[r.ID()] = r
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		m.Fatalf("the listing differs (-want +got):\n%s", diff)
	}
}

func (m *mirror) sweep(*rapid.T) {
	if _, err := m.f.Store.Sweep(m.f.Context(), 10); err != nil {
		m.Fatalf("sweep: %v", err)
	}
}

func (m *mirror) advance(*rapid.T) {
	m.f.Advance(rapid.SampledFrom([]time.Duration{
		time.Millisecond, storage.MinLease, 31 * time.Second, 2 * time.Minute, storage.MaxLease, terms().Retention, terms().Tombstone,
	}).Draw(m.T, "time"))
}
