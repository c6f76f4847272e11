package storagetest

import (
	"bytes"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func parkingCases() []testCase {
	return []testCase{
		{name: "an entry comes back whole", run: parkWhole},
		{name: "G03 a key parked three times is one entry with count 3, and a repeated Park changes nothing", run: parkTwice},
		{name: "a newer Park takes over, and a request stays where the newer one has none", run: parkTakesOver},
		{name: "each kind has an entry of its own", run: parkKinds},
		{name: "large and empty requests come back byte for byte", run: parkRequests},
		{name: "a parked key without a record is absent to every call", run: parkStub},
		{name: "a mark of an attempt outlives a Park", run: parkKeepsMarks},
		{name: "a record with open entries does not expire and is not swept", clock: true, run: pinnedStays},
		{name: "an expired record is not brought back by a Park", clock: true, run: parkExpired},
		{name: "an entry may be parked by the record's id", run: parkByID},
		{name: "G03 at the cap new entries are refused and none is dropped", run: parkCap},
		{name: "G03 of many that park at once exactly the cap is taken in", run: parkCapRace},
		{name: "the cap still counts after a restart", reopen: true, run: parkCapRestart},
		{name: "of 50 Parks of one key at once each is counted", run: parkRace},
		{name: "A11 a refused Complete is parked as a conflict in the same step", run: conflictParked},
		{name: "A11 a conflict on an absent record is parked too", run: conflictOnAbsent},
		{name: "A11 conflicts on an expired record are one entry, and bring nothing back", clock: true, run: conflictOnExpired},
		{name: "entries, pins and claims outlive a restart", reopen: true, run: lettersOutliveRestart},
	}
}

func parkWhole(f *fixture) {
	q := f.letter("k")
	parked := f.parks(q)
	got := f.entry(parked.ID)
	want := q.Entry
	want.ID, want.State, want.Record, want.Pinned, want.Count = got.ID, storage.EntryParked, f.identity("k").RecordID(), true, 1
	want.ParkedAt, want.LastParkedAt = got.ParkedAt, got.ParkedAt
	require.Positive(f, got.ParkedAt)
	requireEqual(f, &want, got)
	ans, err := f.Store.Entry(f.Context(), storage.EntryID{9})
	require.NoError(f, err)
	requireVerdict(f, storage.VerdictNotFound, ans)
}

func parkTwice(f *fixture) {
	first := f.letter("k")
	e := f.parks(first)
	for range 2 {
		again := f.park(first)
		requireVerdict(f, storage.VerdictOK, again)
		require.False(f, again.Parked)
		require.Equal(f, e.ID, again.Entry.ID)
	}
	requireEqual(f, e.Count, f.entry(e.ID).Count)
	for i := range 2 {
		more := f.park(f.letter("k"))
		requireVerdict(f, storage.VerdictOK, more)
		require.True(f, more.Parked)
		require.Equal(f, e.ID, more.Entry.ID)
		require.EqualValues(f, i+2, more.Entry.Count)
	}
	got := f.entry(e.ID)
	require.EqualValues(f, 3, got.Count)
	require.Equal(f, e.ParkedAt, got.ParkedAt)
	require.GreaterOrEqual(f, got.LastParkedAt, got.ParkedAt)
	require.Len(f, f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 10}), 1)
}

func parkTakesOver(f *fixture) {
	e := f.parked("k")
	newer := f.letter("k")
	newer.Entry.Request, newer.Entry.RequestSize = []byte("newer"), 5
	newer.Entry.Code, newer.Entry.Status, newer.Entry.Signature = 4, []byte{8, 4}, "late"
	newer.Entry.Attempts, newer.Entry.Target, newer.Entry.Metadata = []storage.EntryAttempt{{At: 9, Code: 4}}, "other", nil
	requireVerdict(f, storage.VerdictOK, f.park(newer))
	bare := f.letter("k")
	bare.Entry.HasRequest, bare.Entry.Request, bare.Entry.TypeURL, bare.Entry.RequestSize = false, nil, "", 0
	bare.Entry.Code, bare.Entry.Signature, bare.Entry.Attempts, bare.Entry.Metadata = 13, "bare", nil, nil
	requireVerdict(f, storage.VerdictOK, f.park(bare))
	got := f.entry(e.ID)
	require.Equal(f, []byte("newer"), got.Request)
	require.EqualValues(f, 5, got.RequestSize)
	require.Empty(f, got.Metadata)
	require.EqualValues(f, 13, got.Code)
	require.Equal(f, "bare", got.Signature)
	require.Empty(f, got.Attempts)
}

func parkKinds(f *fixture) {
	f.unknown("k")
	ids := map[storage.EntryID]bool{}
	for _, kind := range []storage.EntryKind{storage.EntryExhausted, storage.EntryUnreconciled, storage.EntryOverdue} {
		q := f.letter("k")
		q.Entry.Kind = kind
		e := f.parks(q)
		require.Equal(f, kind, e.Kind)
		ids[e.ID] = true
	}
	require.Len(f, ids, 3)
	f.requirePins(3, "k")
}

func parkRequests(f *fixture) {
	for i, request := range [][]byte{{}, {0}, randomBytes(1 << 10), make([]byte, 1<<20), randomBytes(storage.MaxEntryRequest)} {
		q := f.letter(fmt.Sprintf("k%d", i))
		q.Entry.Request, q.Entry.RequestSize = request, int64(len(request))
		e := f.entry(f.parks(q).ID)
		require.True(f, bytes.Equal(request, e.Request), "%d bytes", len(request))
		require.True(f, e.HasRequest)
		q.Entry.Request, q.Entry.RequestSize, q.Entry.ParkID = nil, 0, attempt()
		requireVerdict(f, storage.VerdictOK, f.park(q))
		require.Empty(f, f.entry(e.ID).Request, "an empty request replaces another")
	}
}

func parkStub(f *fixture) {
	e := f.parked("k")
	ans := f.look("k")
	require.Equal(f, storage.StateAbsent, ans.State)
	require.Nil(f, ans.Record)
	require.Empty(f, f.pages(storage.List{Namespace: f.namespace, Limit: 10}, nil))
	q := f.request("k")
	granted := f.reserve(q)
	requireVerdict(f, storage.VerdictGranted, granted)
	require.EqualValues(f, 1, granted.Record.Pins)
	require.EqualValues(f, 1, granted.Record.Grants)
	require.Equal(f, e.ID, granted.Entry.ID, "G04 the caller is told what waits at the key")
	requireVerdict(f, storage.VerdictOK, f.complete(q, granted.Record.Fence, success("x")))
	f.requireEntry(e.ID, storage.EntryResolved, storage.ResultSuperseded)
	f.requirePins(0, "k")
}

func parkKeepsMarks(f *fixture) {
	spent := f.request("k")
	f.giveBack(spent)
	f.parked("k")
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(spent))
	other := f.request("k")
	f.giveBack(other)
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(other))
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(spent))
	require.EqualValues(f, 1, f.reserve(f.request("k")).Record.Pins, "a mark keeps the pins")
}

func pinnedStays(f *fixture) {
	f.failed("final", 9)
	q, fence := f.grant("free")
	f.release(q, fence, storage.EffectNone)
	for _, key := range []string{"final", "free", "stub"} {
		f.parked(key)
	}
	f.Advance(10 * (terms().Retention + terms().Tombstone))
	require.Zero(f, f.sweep(100))
	requireVerdict(f, storage.VerdictCompleted, f.reserve(f.request("final")))
	require.Equal(f, storage.StateReleased, f.look("free").State)
	open := f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 10})
	require.Len(f, open, 3, "open entries never vanish")
	for _, e := range open {
		requireVerdict(f, storage.VerdictOK, f.discard(e.ID))
	}
	requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("final")))
	require.Equal(f, storage.StateAbsent, f.look("free").State)
	require.Equal(f, 2, f.sweep(100), "the free record and the stub")
	f.Advance(terms().Tombstone + margin)
	require.Equal(f, 1, f.sweep(100))
	require.Equal(f, storage.StateAbsent, f.look("final").State)
}

func parkExpired(f *fixture) {
	f.completed("k", success("x"))
	f.Advance(terms().Retention + margin)
	e := f.parked("k")
	require.False(f, e.Pinned)
	requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("k")))
	again := f.park(f.letter("k"))
	require.EqualValues(f, 2, again.Entry.Count)
	require.Equal(f, e.ID, again.Entry.ID)
	f.Advance(terms().Tombstone + margin)
	require.Equal(f, 1, f.sweep(10))
	require.Equal(f, e.ID, f.entry(e.ID).ID, "the entry outlives its record")
	again = f.park(f.letter("k"))
	require.Equal(f, e.ID, again.Entry.ID)
	require.True(f, again.Entry.Pinned, "an absent record can be held")
}

func parkByID(f *fixture) {
	q := f.letter("k")
	q.Entry.Identity, q.Entry.Record = storage.Identity{}, f.identity("k").RecordID()
	requireVerdict(f, storage.VerdictNotFound, f.park(q))
	f.unknown("k")
	e := f.parks(q)
	requireEqual(f, f.identity("k"), e.Identity)
	require.Equal(f, f.identity("k").RecordID(), e.Record)
	f.requirePins(1, "k")
}

func parkCap(f *fixture) {
	const most = 3
	full := func(key string, kind storage.EntryKind) storage.Park {
		q := f.letter(key)
		q.Entry.Kind, q.Terms.EntryCap = kind, most
		return q
	}
	var first storage.EntryID
	for i := range most {
		first = f.parks(full(fmt.Sprintf("k%d", i), storage.EntryExhausted)).ID
	}
	requireVerdict(f, storage.VerdictFull, f.park(full("more", storage.EntryExhausted)))
	requireVerdict(f, storage.VerdictFull, f.park(full("k0", storage.EntryUnreconciled)))
	require.Equal(f, storage.StateAbsent, f.look("more").State)
	raised := f.park(full("k0", storage.EntryExhausted))
	requireVerdict(f, storage.VerdictOK, raised)
	require.EqualValues(f, 2, raised.Entry.Count)
	f.unknown("overdue")
	f.parks(full("overdue", storage.EntryOverdue))
	other := full("elsewhere", storage.EntryExhausted)
	other.Entry.Identity.Namespace += "-b"
	f.parks(other)
	require.Len(f, f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 10}), most+1)

	requireVerdict(f, storage.VerdictOK, f.discard(first))
	requireVerdict(f, storage.VerdictFull, f.park(full("more", storage.EntryExhausted)))
	e := f.entries(storage.ListEntries{Namespace: f.namespace, Kinds: []storage.EntryKind{storage.EntryOverdue}, Limit: 1})
	requireVerdict(f, storage.VerdictOK, f.discard(e[0].ID))
	f.parks(full("more", storage.EntryExhausted))
}

func parkCapRace(f *fixture) {
	const most = 10
	var t tally
	together(50, func(i int) {
		q := f.letter(fmt.Sprintf("k%d", i))
		q.Terms.EntryCap = most
		t.add(f.Store.Park(f.Context(), q))
	})
	require.NoError(f, t.err)
	require.Equal(f, 50, t.counts["ok"]+t.counts["full"])
	require.GreaterOrEqual(f, t.counts["ok"], most)
	require.LessOrEqual(f, t.counts["ok"], most+f.OverCap)
}

func parkCapRestart(f *fixture) {
	q := f.letter("k")
	q.Terms.EntryCap = 1
	e := f.parks(q)
	other := f.letter("other")
	other.Terms.EntryCap = 1
	f.reopen()
	requireVerdict(f, storage.VerdictFull, f.park(other))
	f.discard(e.ID)
	f.reopen()
	f.parks(other)
}

func parkRace(f *fixture) {
	var t tally
	together(50, func(int) { t.add(f.Store.Park(f.Context(), f.letter("k"))) })
	require.NoError(f, t.err)
	all := f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 10})
	require.Len(f, all, 1)
	require.EqualValues(f, 50, all[0].Count)
	require.EqualValues(f, 1, f.reserve(f.request("k")).Record.Pins)
}

// ofKind are the entries of a kind.
func (f *fixture) ofKind(k storage.EntryKind) []*storage.DeadLetter {
	f.Helper()
	return f.entries(storage.ListEntries{Namespace: f.namespace, Kinds: []storage.EntryKind{k}, Limit: 10})
}

func conflictParked(f *fixture) {
	q, fence := f.grant("k")
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("first")))
	refused := f.complete(q, fence, success("second"))
	requireVerdict(f, storage.VerdictStaleHolder, refused)
	require.True(f, refused.Parked)
	for range 2 {
		again := f.complete(q, fence, success("second"))
		requireVerdict(f, storage.VerdictStaleHolder, again)
		require.False(f, again.Parked, "a repeat is the same conflict")
	}
	all := f.ofKind(storage.EntryConflict)
	require.Len(f, all, 1)
	e := f.entry(all[0].ID)
	require.Equal(f, refused.Entry.ID, e.ID)
	requireEqual(f, refused.Conflict, e.Conflict)
	requireEqual(f, f.identity("k"), e.Identity)
	require.EqualValues(f, 1, e.Count)
	f.requirePins(1, "k")
	third := f.complete(q, fence, failure(13))
	require.Equal(f, e.ID, third.Entry.ID)
	require.True(f, third.Parked)
	e = f.entry(e.ID)
	require.EqualValues(f, 2, e.Count)
	require.True(f, e.Conflict.Success, "that of a success stays")
	require.Len(f, e.Attempts, 2)
	requireVerdict(f, storage.VerdictEntryChanged, f.claim(claimOf(e)))
	requireVerdict(f, storage.VerdictEntryChanged, f.requeue(e.ID))
	requireVerdict(f, storage.VerdictOK, f.discard(e.ID))
	f.requirePins(0, "k")
	seen := f.complete(q, fence, success("second"))
	require.True(f, seen.Parked, "another one after a person has looked is new")
}

func conflictOnAbsent(f *fixture) {
	q := f.request("k")
	refused := f.complete(q, 7, success("x"))
	requireVerdict(f, storage.VerdictStaleHolder, refused)
	require.True(f, refused.Parked)
	require.Len(f, f.ofKind(storage.EntryConflict), 1)
	require.Equal(f, storage.StateAbsent, f.look("k").State)
	require.False(f, f.complete(q, 7, success("x")).Parked)
	full := f.letter("other")
	full.Terms.EntryCap = 1
	requireVerdict(f, storage.VerdictFull, f.park(full))
	require.True(f, f.complete(f.request("third"), 7, success("x")).Parked, "conflicts are kept beyond the cap")
	fence := f.granted(q, storage.ModeRun)
	require.Greater(f, fence, storage.Fence(7))
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("x")))
	require.Len(f, f.ofKind(storage.EntryConflict), 2, "a completion closes no conflict")
	f.requirePins(1, "k")
}

func conflictOnExpired(f *fixture) {
	q, fence := f.grant("k")
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("x")))
	f.Advance(terms().Retention + margin)
	first := f.complete(q, fence, success("y"))
	require.True(f, first.Parked)
	require.False(f, first.Entry.Pinned)
	again := f.complete(q, fence, success("y"))
	requireVerdict(f, storage.VerdictStaleHolder, again)
	require.False(f, again.Parked)
	third := f.complete(q, fence, success("z"))
	require.True(f, third.Parked)
	require.Equal(f, first.Entry.ID, third.Entry.ID)
	requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("k")))
	require.Len(f, f.ofKind(storage.EntryConflict), 1)
}

func lettersOutliveRestart(f *fixture) {
	f.failed("k", 9)
	e := f.parked("k")
	claim := f.claimed(byOperator(claimOf(e)))
	closed := f.parked("closed")
	f.discard(closed.ID)
	before, gone := f.entry(e.ID), f.entry(closed.ID)
	f.reopen()
	requireEqual(f, before, f.entry(e.ID))
	requireEqual(f, gone, f.entry(closed.ID))
	f.requirePins(1, "k")
	q, fence := f.replays("k", claim)
	f.reopen()
	requireVerdict(f, storage.VerdictOK, f.release(q, fence, storage.EffectNone))
	requireEqual(f, failure(9), f.reserve(f.request("k")).Outcome)
}
