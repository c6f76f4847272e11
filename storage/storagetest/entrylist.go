package storagetest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func entryListCases() []testCase {
	return []testCase{
		{name: "pages hold every entry once, in the order of parking, either way", run: entryPages},
		{name: "entries that arrive or change while paging move no others", run: entryPagesStable},
		{name: "filters choose entries", clock: true, run: entryFilters},
		{name: "a listing tells no requests", run: entriesWithoutRequests},
		{name: "groups count entries of one operation, kind, code and signature", run: entryGroups},
		{name: "a census counts what needs somebody", clock: true, run: census},
		{name: "closed entries are swept after their hold time, open ones never", clock: true, run: sweepEntries},
	}
}

// entries reads a listing of entries to its end.
func (f *fixture) entries(q storage.ListEntries) []*storage.DeadLetter {
	f.Helper()
	return f.entryPages(q, nil)
}

func (f *fixture) entryPages(q storage.ListEntries, between func()) []*storage.DeadLetter {
	f.Helper()
	var all []*storage.DeadLetter
	for {
		page, err := f.Store.Entries(f.Context(), q)
		require.NoError(f, err)
		require.LessOrEqual(f, len(page.Entries), q.Limit)
		require.Positive(f, page.Now)
		all = append(all, page.Entries...)
		if page.Next == (storage.EntryID{}) {
			return all
		}
		require.NotEqual(f, q.After, page.Next)
		q.After = page.Next
		if between != nil {
			between()
		}
	}
}

func idsOf(entries []*storage.DeadLetter) []storage.EntryID {
	ids := make([]storage.EntryID, 0, len(entries))
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

func entryPages(f *fixture) {
	var want []storage.EntryID
	for i := range 25 {
		e := f.parked(fmt.Sprintf("k%d", i))
		want = append(want, e.ID)
		if i%5 == 0 {
			f.discard(e.ID)
		}
	}
	for i, id := range want[1:] {
		require.Positive(f, bytes.Compare(id[:], want[i][:]), "ids are in the order of parking")
	}
	backwards := make([]storage.EntryID, 0, len(want))
	for i := range want {
		backwards = append(backwards, want[len(want)-1-i])
	}
	for _, limit := range []int{1, 7, 25, 26, 1000} {
		require.Equal(f, want, idsOf(f.entries(storage.ListEntries{Namespace: f.namespace, Limit: limit})))
		require.Equal(f, backwards, idsOf(f.entries(storage.ListEntries{Namespace: f.namespace, Newest: true, Limit: limit})))
	}
	parked := storage.ListEntries{Namespace: f.namespace, States: []storage.EntryState{storage.EntryParked}, Limit: 3}
	require.Len(f, f.entries(parked), 20)
	parked.Newest = true
	require.Len(f, f.entries(parked), 20)
}

func entryPagesStable(f *fixture) {
	var want []storage.EntryID
	for i := range 20 {
		want = append(want, f.parked(fmt.Sprintf("before%d", i)).ID)
	}
	for _, newest := range []bool{false, true} {
		added := 0
		got := idsOf(f.entryPages(storage.ListEntries{Namespace: f.namespace, Newest: newest, Limit: 3}, func() {
			f.parked(fmt.Sprintf("between%d-%t", added, newest))
			require.True(f, f.park(f.letter("before0")).Parked)
			if added == 0 {
				f.discard(want[19])
			}
			added++
		}))
		require.Positive(f, added)
		require.Subset(f, got, want[:19])
		seen := map[storage.EntryID]bool{}
		for _, id := range got {
			require.False(f, seen[id], "no entry is listed twice")
			seen[id] = true
		}
		want[19] = f.parked(fmt.Sprintf("last-%t", newest)).ID
	}
}

func entryFilters(f *fixture) {
	old := f.letter("old")
	old.Entry.Kind = storage.EntryUnreconciled
	oldest := f.parks(old).ID
	f.Advance(30 * time.Minute)
	other := f.letter("other")
	other.Entry.Identity.Operation, other.Entry.Identity.Caller = "op2", "customer-2"
	other.Entry.Code, other.Entry.Signature = 4, "late"
	otherID := f.parks(other).ID
	elsewhere := f.letter("elsewhere")
	elsewhere.Entry.Identity.Namespace += "-b"
	elsewhereID := f.parks(elsewhere).ID
	claimed, closed, lapsed := f.parked("claimed"), f.parked("closed"), f.parked("lapsed")
	short := claimOf(lapsed)
	short.Lease = storage.MinClaim
	f.claimed(short)
	f.lapse(time.Minute)
	f.claimed(claimOf(claimed))
	f.discard(closed.ID)

	list := func(q storage.ListEntries) []storage.EntryID {
		q.Namespace, q.Limit = f.namespace, 2
		return idsOf(f.entries(q))
	}
	all := []storage.EntryID{oldest, otherID, claimed.ID, closed.ID, lapsed.ID}
	require.Equal(f, all, list(storage.ListEntries{}))
	require.Equal(f, []storage.EntryID{elsewhereID}, idsOf(f.entries(storage.ListEntries{Namespace: f.namespace + "-b", Limit: 5})))
	require.Subset(f, idsOf(f.entries(storage.ListEntries{Operation: "op2", Limit: 100})), []storage.EntryID{otherID})
	require.Equal(f, []storage.EntryID{otherID}, list(storage.ListEntries{Operation: "op2"}))
	require.Equal(f, []storage.EntryID{otherID}, list(storage.ListEntries{Caller: []byte("customer-2")}))
	require.Equal(f, []storage.EntryID{otherID}, list(storage.ListEntries{Codes: []int32{3, 4}}))
	require.Equal(f, []storage.EntryID{otherID}, list(storage.ListEntries{Signature: "late"}))
	require.Equal(f, []storage.EntryID{oldest}, list(storage.ListEntries{Kinds: []storage.EntryKind{storage.EntryUnreconciled}}))
	require.Equal(f, []storage.EntryID{oldest}, list(storage.ListEntries{OlderThan: 20 * time.Minute}))
	require.Equal(f, all[1:], list(storage.ListEntries{YoungerTo: 20 * time.Minute}))
	require.Equal(f, []storage.EntryID{closed.ID}, list(storage.ListEntries{Record: f.identity("closed").RecordID()}))
	require.Equal(f, []storage.EntryID{claimed.ID}, list(storage.ListEntries{States: []storage.EntryState{storage.EntryReplaying}}))
	require.Equal(f, []storage.EntryID{closed.ID}, list(storage.ListEntries{States: []storage.EntryState{storage.EntryDiscarded, storage.EntryResolved}}))
	require.Equal(f, []storage.EntryID{oldest, otherID, lapsed.ID}, list(storage.ListEntries{States: []storage.EntryState{storage.EntryParked}}))
	require.Equal(f, []storage.EntryID{oldest, otherID, lapsed.ID}, list(storage.ListEntries{Ready: true}))
	require.Empty(f, list(storage.ListEntries{Ready: true, Requested: true}))
}

func entriesWithoutRequests(f *fixture) {
	want := *f.entry(f.parked("k").ID)
	want.Request = nil
	for _, q := range []storage.ListEntries{
		{Namespace: f.namespace}, {Namespace: f.namespace, States: []storage.EntryState{storage.EntryParked}}, {Record: want.Record},
	} {
		q.Limit = 10
		got := f.entries(q)
		require.Len(f, got, 1)
		requireEqual(f, &want, got[0])
	}
}

func entryGroups(f *fixture) {
	for i := range 5 {
		q := f.letter(fmt.Sprintf("k%d", i))
		f.parks(q)
		if i < 2 {
			q.Entry.ParkID = attempt()
			require.True(f, f.park(q).Parked)
		}
	}
	q := f.letter("other")
	q.Entry.Code = 4
	other := f.parks(q)
	q = f.letter("k0")
	q.Entry.Kind = storage.EntryUnreconciled
	f.parks(q)
	f.discard(f.parked("closed").ID)
	all := f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 100})

	open := storage.ListEntries{Namespace: f.namespace, Limit: 10, States: []storage.EntryState{storage.EntryParked, storage.EntryReplaying}}
	groups, err := f.Store.Groups(f.Context(), open)
	require.NoError(f, err)
	require.Len(f, groups, 3)
	requireEqual(f, storage.EntryGroup{
		Namespace: f.namespace, Operation: "/pay.v1.Payments/Charge", Kind: storage.EntryExhausted, Code: 14, Signature: "connection refused to #",
		Entries: 5, Count: 7, Oldest: all[0].ParkedAt, Newest: all[4].ParkedAt, Sample: all[4].ID,
	}, groups[0])
	open.Codes = []int32{4}
	groups, err = f.Store.Groups(f.Context(), open)
	require.NoError(f, err)
	require.Len(f, groups, 1)
	require.Equal(f, other.ID, groups[0].Sample)
	groups, err = f.Store.Groups(f.Context(), storage.ListEntries{Namespace: f.namespace, Limit: 1})
	require.NoError(f, err)
	require.Len(f, groups, 1)
	require.EqualValues(f, 6, groups[0].Entries, "closed ones too, unless the states say otherwise")
}

func census(f *fixture) {
	before, _ := f.grant("lapsed")
	f.lapse(storage.MaxLease)
	f.grant("reserved")
	f.unknown("unknown")
	f.completed("completed", success("x"))
	first := f.parked("a")
	f.parked("b")
	f.overdue("unknown")
	f.discard(f.parked("closed").ID)
	c, err := f.Store.Census(f.Context())
	require.NoError(f, err)
	require.Positive(f, c.Now)
	var unfinished []storage.UnfinishedCount
	for _, n := range c.Unfinished {
		if n.Namespace == f.namespace {
			unfinished = append(unfinished, n)
		}
	}
	operation := before.Identity.Operation
	require.ElementsMatch(f, []storage.UnfinishedCount{
		{Namespace: f.namespace, Operation: operation, State: storage.StateReserved, Records: 1, Oldest: f.record("reserved").GrantedAt},
		{Namespace: f.namespace, Operation: operation, State: storage.StateUnknown, Records: 2, Oldest: f.record("lapsed").GrantedAt},
	}, unfinished)
	var entries []storage.EntryCount
	for _, n := range c.Entries {
		if n.Namespace == f.namespace {
			entries = append(entries, n)
		}
	}
	require.ElementsMatch(f, []storage.EntryCount{
		{Namespace: f.namespace, Kind: storage.EntryExhausted, Entries: 2, Oldest: first.ParkedAt},
		{Namespace: f.namespace, Kind: storage.EntryOverdue, Entries: 1, Oldest: f.ofKind(storage.EntryOverdue)[0].ParkedAt},
	}, entries)
}

func sweepEntries(f *fixture) {
	hold := terms().EntryHold
	closed := make([]storage.EntryID, 0, 10)
	for i := range 10 {
		e := f.parked(fmt.Sprintf("k%d", i))
		f.discard(e.ID)
		closed = append(closed, e.ID)
	}
	f.completed("same", success("x"))
	for range 3 {
		e := f.parked("same")
		f.discard(e.ID)
		closed = append(closed, e.ID)
	}
	open := f.parked("open")
	f.Advance(hold - margin)
	f.sweep(100)
	for _, id := range closed {
		f.entry(id)
	}
	f.Advance(margin + margin)
	require.Equal(f, len(closed), f.sweep(4))
	require.Equal(f, []storage.EntryID{open.ID}, idsOf(f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 10})))
	f.Advance(100 * hold)
	f.sweep(100)
	require.Equal(f, open.ID, f.entry(open.ID).ID)
}
