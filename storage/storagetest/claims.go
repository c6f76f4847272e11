package storagetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func claimCases() []testCase {
	return []testCase{
		{name: "G01 of 50 that claim an entry at once one gets it", run: claimRace},
		{name: "a claim tells the request, and a repeated Claim the same claim", run: claimRepeat},
		{name: "a claim that lapsed is no claim", clock: true, run: claimLapse},
		{name: "a failed replay parks the entry again, told to wait", clock: true, run: settleFailed},
		{name: "a claim that is given back is not counted", run: settleGivenBack},
		{name: "a settled entry stays as it is", run: settleOnce},
		{name: "while a run of the key goes on its entry is not claimed", clock: true, run: claimLive},
		{name: "an entry older than the retention is claimed only by force", clock: true, run: claimOld},
		{name: "a discarded entry is closed, and refused while it is claimed", run: discardOnce},
		{name: "Requeue asks for a replay in an operator's name", clock: true, run: requeueMarks},
		{name: "without a request only a person can claim, and a conflict is a person's to close", run: claimWithoutRequest},
		{name: "what is about no entry is answered so", run: noSuchEntry},
	}
}

func claimRace(f *fixture) {
	e := f.parked("k")
	var t tally
	together(50, func(int) { t.add(f.Store.Claim(f.Context(), claimOf(e))) })
	require.NoError(f, t.err)
	require.Equal(f, map[string]int{"ok": 1, "entry_changed": 49}, t.counts)
	require.EqualValues(f, 1, f.entry(e.ID).Replays)
}

func claimRepeat(f *fixture) {
	e := f.parked("k")
	q := claimOf(e)
	first := f.claim(q)
	requireVerdict(f, storage.VerdictOK, first)
	require.Equal(f, []byte("request of k"), first.Entry.Request)
	require.Equal(f, storage.EntryReplaying, first.Entry.State)
	require.Equal(f, storage.MaxClaim, first.Entry.ClaimEnd.Sub(first.Entry.LastParkedAt).Truncate(storage.MaxClaim))
	again := f.claim(q)
	requireVerdict(f, storage.VerdictOK, again)
	requireEqual(f, first.Entry, again.Entry)
	requireVerdict(f, storage.VerdictOK, f.settle(q, storage.ResultGivenBack))
	requireVerdict(f, storage.VerdictEntryChanged, f.claim(q))
	f.claimed(claimOf(e))
}

func claimLapse(f *fixture) {
	e := f.parked("k")
	q := claimOf(e)
	q.Lease = storage.MinClaim
	first := f.claimed(q)
	f.lapse(time.Minute)
	parked := storage.ListEntries{Namespace: f.namespace, States: []storage.EntryState{storage.EntryParked}, Limit: 10}
	require.Len(f, f.entries(parked), 1, "whoever reads it judges it by the clock")
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", first)))
	second := f.claimed(claimOf(e))
	requireVerdict(f, storage.VerdictEntryChanged, f.settle(first, storage.ResultReplayed))
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", first)))
	require.EqualValues(f, 2, f.entry(e.ID).Replays)
	f.replays("k", second)
}

func settleFailed(f *fixture) {
	e := f.parked("k")
	c := f.claimed(claimOf(e))
	q := storage.Settle{
		Entry: e.ID, Token: c.Token, Result: storage.ResultFailed, Status: []byte{8, 3}, NotBefore: time.Hour, Terms: terms(),
	}
	requireVerdict(f, storage.VerdictOK, f.settleWith(q))
	got := f.entry(e.ID)
	f.requireEntry(e.ID, storage.EntryParked, storage.ResultFailed)
	require.Equal(f, []byte{8, 3}, got.ReplayStatus)
	require.Equal(f, e.Code, got.Code, "it stays in its group")
	require.Equal(f, e.Status, got.Status)
	require.Equal(f, e.Signature, got.Signature)
	groups, err := f.Store.Groups(f.Context(), storage.ListEntries{Namespace: f.namespace, Limit: 10})
	require.NoError(f, err)
	require.Len(f, groups, 1)
	require.Equal(f, "connection refused to #", groups[0].Signature)
	requireVerdict(f, storage.VerdictOK, f.settleWith(q))
	requireEqual(f, got, f.entry(e.ID))
	requireVerdict(f, storage.VerdictEntryChanged, f.settle(c, storage.ResultReplayed))
	ready := storage.ListEntries{Namespace: f.namespace, Ready: true, Limit: 10}
	require.Empty(f, f.entries(ready))
	f.Advance(time.Hour)
	require.Len(f, f.entries(ready), 1)
}

func settleGivenBack(f *fixture) {
	e := f.parked("k")
	f.requeue(e.ID)
	c := f.claimed(claimOf(e))
	requireVerdict(f, storage.VerdictOK, f.settle(c, storage.ResultGivenBack))
	got := f.entry(e.ID)
	f.requireEntry(e.ID, storage.EntryParked, storage.ResultGivenBack)
	require.Zero(f, got.Replays)
	require.True(f, got.Requested, "the wish still stands")
	require.EqualValues(f, 14, got.Code)
	c = f.claimed(claimOf(e))
	requireVerdict(f, storage.VerdictOK, f.settle(c, storage.ResultFailed))
	require.False(f, f.entry(e.ID).Requested, "it was tried as asked")
}

func settleOnce(f *fixture) {
	e := f.parked("k")
	c := f.claimed(claimOf(e))
	forged := c
	forged.Token = token()
	requireVerdict(f, storage.VerdictEntryChanged, f.settle(forged, storage.ResultReplayed))
	requireVerdict(f, storage.VerdictOK, f.settle(c, storage.ResultAlreadyDone))
	f.requireEntry(e.ID, storage.EntryResolved, storage.ResultAlreadyDone)
	closed := f.entry(e.ID)
	for _, r := range []storage.EntryResult{storage.ResultAlreadyDone, storage.ResultFailed, storage.ResultReplayed} {
		requireVerdict(f, storage.VerdictOK, f.settle(c, r))
	}
	requireVerdict(f, storage.VerdictEntryChanged, f.settle(forged, storage.ResultFailed))
	requireVerdict(f, storage.VerdictEntryChanged, f.claim(claimOf(e)))
	requireVerdict(f, storage.VerdictEntryChanged, f.requeue(e.ID))
	requireVerdict(f, storage.VerdictEntryChanged, f.discard(e.ID))
	requireEqual(f, closed, f.entry(e.ID))
	next := f.parked("k")
	require.NotEqual(f, e.ID, next.ID, "what comes after it is another entry")
}

func claimLive(f *fixture) {
	f.grant("k")
	e := f.parked("k")
	ans := f.claim(claimOf(e))
	requireVerdict(f, storage.VerdictInProgress, ans)
	require.Positive(f, ans.RetryAfter)
	require.Equal(f, storage.EntryParked, f.entry(e.ID).State)
	f.lapse(storage.MaxLease)
	f.claimed(claimOf(e))
}

func claimOld(f *fixture) {
	f.completed("expired", success("x"))
	f.Advance(terms().Retention + margin)
	expired := f.parked("expired")
	requireVerdict(f, storage.VerdictKeyExpired, f.claim(claimOf(expired)))
	absent := f.parked("absent")
	f.Advance(terms().Retention - margin)
	requireVerdict(f, storage.VerdictOK, f.settle(f.claimed(claimOf(absent)), storage.ResultGivenBack))
	f.Advance(margin + margin)
	requireVerdict(f, storage.VerdictKeyExpired, f.claim(claimOf(absent)))
	for key, e := range map[string]*storage.DeadLetter{"expired": expired, "absent": absent} {
		q := claimOf(e)
		q.Force = true
		requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.replay(key, f.claimed(q))))
	}
}

func discardOnce(f *fixture) {
	e := f.parked("k")
	c := f.claimed(claimOf(e))
	requireVerdict(f, storage.VerdictEntryChanged, f.discard(e.ID))
	f.settle(c, storage.ResultGivenBack)
	requireVerdict(f, storage.VerdictOK, f.discard(e.ID))
	f.requireEntry(e.ID, storage.EntryDiscarded, storage.ResultGivenBack)
	closed := f.entry(e.ID)
	require.Equal(f, "discarded", closed.Note)
	requireVerdict(f, storage.VerdictOK, f.discard(e.ID))
	requireVerdict(f, storage.VerdictEntryChanged, f.claim(claimOf(e)))
	requireVerdict(f, storage.VerdictEntryChanged, f.settle(c, storage.ResultReplayed))
	requireEqual(f, closed, f.entry(e.ID))
	require.Equal(f, storage.StateAbsent, f.look("k").State)
	f.grant("k")
	f.requirePins(0, "k")
}

func requeueMarks(f *fixture) {
	e := f.parked("k")
	f.parked("other")
	c := f.claimed(claimOf(e))
	requireVerdict(f, storage.VerdictEntryChanged, f.requeue(e.ID))
	f.settleWith(storage.Settle{Entry: e.ID, Token: c.Token, Result: storage.ResultFailed, NotBefore: time.Hour})
	requireVerdict(f, storage.VerdictOK, f.requeue(e.ID))
	got := f.entry(e.ID)
	require.True(f, got.Requested)
	require.Equal(f, "requeued", got.Note)
	requested := storage.ListEntries{Namespace: f.namespace, Ready: true, Requested: true, Limit: 10}
	require.Equal(f, []storage.EntryID{e.ID}, idsOf(f.entries(requested)), "it need not wait any more")
	requireVerdict(f, storage.VerdictOK, f.requeue(e.ID))
	requireEqual(f, got, f.entry(e.ID))
	ans := f.claim(claimOf(e))
	requireVerdict(f, storage.VerdictOK, ans)
	require.True(f, ans.Entry.ByOperator)
}

func claimWithoutRequest(f *fixture) {
	f.unknown("k")
	q := f.letter("k")
	q.Entry.Kind, q.Entry.HasRequest, q.Entry.Request = storage.EntryUnreconciled, false, nil
	e := f.parks(q)
	requireVerdict(f, storage.VerdictEntryChanged, f.claim(claimOf(e)))
	requireVerdict(f, storage.VerdictEntryChanged, f.requeue(e.ID))
	require.Empty(f, f.entries(storage.ListEntries{Namespace: f.namespace, Ready: true, Limit: 10}))
	c := f.claimed(byOperator(claimOf(e)))
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", c)))
	requireVerdict(f, storage.VerdictOK, f.settle(c, storage.ResultSuperseded))

	refused := f.complete(f.request("conflict"), 7, success("x"))
	c = f.claimed(byOperator(claimOf(refused.Entry)))
	requireVerdict(f, storage.VerdictOK, f.settle(c, storage.ResultAlreadyDone))
	f.requireEntry(refused.Entry.ID, storage.EntryResolved, storage.ResultAlreadyDone)
}

func noSuchEntry(f *fixture) {
	e := &storage.DeadLetter{ID: storage.EntryID{1}}
	requireVerdict(f, storage.VerdictNotFound, f.claim(claimOf(e)))
	requireVerdict(f, storage.VerdictNotFound, f.settle(claimOf(e), storage.ResultFailed))
	requireVerdict(f, storage.VerdictNotFound, f.requeue(e.ID))
	requireVerdict(f, storage.VerdictNotFound, f.discard(e.ID))
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", claimOf(e))))
	require.Equal(f, storage.StateAbsent, f.look("k").State)
}
