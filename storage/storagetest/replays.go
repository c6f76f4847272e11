package storagetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func replayCases() []testCase {
	return []testCase{
		{name: "G01 a replay runs the key once more, under the original caller's record", run: replayRuns},
		{name: "G01 two that replay under one claim are one run", run: replayRace},
		{name: "a forged, foreign, closed or misnamed claim is refused and writes nothing", run: replayForged},
		{name: "D05 a replay passes over a kept error, once", run: replayKept},
		{name: "a final error is opened by an operator's replay alone, once for a claim", run: replayFinal},
		{name: "a final error that a replay opened comes back where nothing was applied", run: replayPutsBack},
		{name: "a final error comes back by an operator's verdict too", clock: true, run: replayResolvedBack},
		{name: "what a reopened run does is stored like any other's", clock: true, run: replayNewOutcome},
		{name: "a completed success is never opened, and a replay finds it done", run: replayDone},
		{name: "another request than the record's is refused as ever", run: replayReused},
		{name: "G04 the caller's own retry resolves the entry in the same step", run: retryResolves},
		{name: "an error does not resolve an exhausted call, but ends what is overdue", run: errorResolvesOverdue},
		{name: "A06 an operator's verdict resolves what waited for it", clock: true, run: verdictResolves},
		{name: "a reconciler's replay that finds the work done says so", clock: true, run: replayReconciles},
		{name: "of many that complete, release and park at once the pins stay right", run: pinsRace},
	}
}

func replayRuns(f *fixture) {
	first, fence := f.grant("k")
	f.release(first, fence, storage.EffectNone)
	e := f.parked("k")
	c := f.claimed(claimOf(e))
	q, fence := f.replays("k", c)
	require.Equal(f, fence, f.granted(f.sameTry("k", c, q.Attempt), storage.ModeRun), "a repeat is the same grant")
	requireVerdict(f, storage.VerdictInProgress, f.reserve(f.replay("k", c)))
	requireVerdict(f, storage.VerdictInProgress, f.reserve(f.request("k")))
	done := f.complete(q, fence, success("x"))
	requireVerdict(f, storage.VerdictOK, done)
	f.requireEntry(e.ID, storage.EntryResolved, storage.ResultReplayed)
	f.requirePins(0, "k")
	requireVerdict(f, storage.VerdictOK, f.settle(c, storage.ResultReplayed))
	for _, again := range []storage.Reserve{f.request("k"), first, f.replay("k", c)} {
		ans := f.reserve(again)
		requireVerdict(f, storage.VerdictCompleted, ans)
		requireEqual(f, success("x"), ans.Outcome)
	}
	other := f.request("k")
	other.Identity.Caller = "replayer"
	ans, err := f.Store.Lookup(f.Context(), other.Identity.RecordID(), storage.Lookup{})
	require.NoError(f, err)
	require.Equal(f, storage.StateAbsent, ans.State, "the replayer's own record was never touched")
}

// sameTry is a repeat of a replay's Reserve.
func (f *fixture) sameTry(key string, c storage.Claim, a storage.AttemptID) storage.Reserve {
	q := f.replay(key, c)
	q.Attempt = a
	return q
}

func replayRace(f *fixture) {
	c := f.claimed(claimOf(f.parked("k")))
	var t tally
	together(50, func(int) { t.add(f.Store.Reserve(f.Context(), f.replay("k", c))) })
	require.NoError(f, t.err)
	require.Equal(f, map[string]int{"granted": 1, "in_progress": 49}, t.counts)
	require.EqualValues(f, 1, f.record("k").Grants)
}

func replayForged(f *fixture) {
	e := f.parked("k")
	c := f.claimed(claimOf(e))
	elsewhere := f.claimed(claimOf(f.parked("other")))
	unclaimed := claimOf(f.parked("unclaimed"))
	forged := c
	forged.Token = token()
	misnamed := []storage.Reserve{f.replay("k", c), f.replay("k", c), f.replay("other", c)}
	misnamed[0].Identity.Operation = "/pay.v1.Payments/Refund"
	misnamed[1].Identity.Namespace += "-b"
	for _, q := range append(misnamed, f.replay("k", forged), f.replay("k", elsewhere), f.replay("unclaimed", unclaimed)) {
		requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(q))
	}
	f.settle(c, storage.ResultGivenBack)
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", c)))
	f.discard(e.ID)
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", c)))
	for _, key := range []string{"k", "other", "unclaimed"} {
		require.Equal(f, storage.StateAbsent, f.look(key).State)
	}
}

func replayKept(f *fixture) {
	keep := func(q storage.Reserve, fence storage.Fence, code int32) {
		f.releaseWith(storage.Release{
			Identity: f.identity("k"), Attempt: q.Attempt, Fence: fence, Effect: storage.EffectNone,
			Error: failure(code), Hold: time.Hour, Terms: terms(),
		})
	}
	q, fence := f.grant("k")
	keep(q, fence, 9)
	ans := f.reserve(f.request("k"))
	require.True(f, ans.Kept)
	c := f.claimed(claimOf(f.parked("k")))
	q, fence = f.replays("k", c)
	keep(q, fence, 5)
	ans = f.reserve(f.replay("k", c))
	requireVerdict(f, storage.VerdictCompleted, ans)
	require.True(f, ans.Kept, "it is the replay's own error")
	requireEqual(f, failure(5), ans.Outcome)
}

func replayFinal(f *fixture) {
	f.failed("k", 9)
	e := f.parked("k")
	c := f.claimed(claimOf(e))
	ans := f.reserve(f.replay("k", c))
	requireVerdict(f, storage.VerdictCompleted, ans)
	requireEqual(f, failure(9), ans.Outcome)
	f.settle(c, storage.ResultFailed)
	f.requireEntry(e.ID, storage.EntryParked, storage.ResultFailed)

	c = f.claimed(byOperator(claimOf(e)))
	q, fence := f.replays("k", c)
	requireEqual(f, failure(9), f.record("k").Reopened)
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, failure(5)))
	for _, again := range []storage.Reserve{f.replay("k", c), f.sameTry("k", c, q.Attempt), f.request("k")} {
		ans := f.reserve(again)
		requireVerdict(f, storage.VerdictCompleted, ans)
		requireEqual(f, failure(5), ans.Outcome)
	}
	f.settle(c, storage.ResultFailed)
	f.requeue(e.ID)
	q, fence = f.replays("k", f.claimed(claimOf(e)))
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("x")))
	f.requireEntry(e.ID, storage.EntryResolved, storage.ResultReplayed)
	require.Nil(f, f.record("k").Reopened)
}

func replayPutsBack(f *fixture) {
	original := f.failed("k", 9)
	e := f.parked("k")
	q, fence := f.replays("k", f.claimed(byOperator(claimOf(e))))
	for range 2 {
		released := f.release(q, fence, storage.EffectNone)
		requireVerdict(f, storage.VerdictOK, released)
		require.Equal(f, storage.StateCompleted, released.State)
	}
	for _, again := range []storage.Reserve{f.request("k"), original} {
		ans := f.reserve(again)
		requireVerdict(f, storage.VerdictCompleted, ans)
		requireEqual(f, failure(9), ans.Outcome)
	}
	require.Nil(f, f.record("k").Reopened)
	f.requireEntry(e.ID, storage.EntryReplaying, 0)
	f.requirePins(1, "k")
}

func replayResolvedBack(f *fixture) {
	f.failed("k", 9)
	e := f.parked("k")
	f.replays("k", f.claimed(byOperator(claimOf(e))))
	f.lapse(storage.MaxLease)
	requireVerdict(f, storage.VerdictOutcomeUnknown, f.reserve(f.request("k")))
	q := storage.Resolve{Version: f.record("k").Version, Note: "nothing was applied", Terms: terms()}
	for range 2 {
		ans := f.resolve("k", q)
		requireVerdict(f, storage.VerdictOK, ans)
		require.Equal(f, storage.StateCompleted, ans.State)
	}
	requireEqual(f, failure(9), f.reserve(f.request("k")).Outcome)
	f.requirePins(1, "k")
}

func replayNewOutcome(f *fixture) {
	f.failed("bound", 9)
	bound := f.claimed(byOperator(claimOf(f.parked("bound"))))
	q, fence := f.replays("bound", bound)
	requireVerdict(f, storage.VerdictOK, f.release(q, fence, storage.EffectRepeatable))
	require.Equal(f, storage.StateReleased, f.look("bound").State, "effects were left under child keys")
	other := f.request("bound")
	other.Fingerprint = fingerprint("b")
	requireVerdict(f, storage.VerdictKeyReused, f.reserve(other))
	require.Nil(f, f.record("bound").Reopened)

	f.failed("late", 9)
	late := f.claimed(byOperator(claimOf(f.parked("late"))))
	q, fence = f.replays("late", late)
	requireVerdict(f, storage.VerdictOK, f.release(q, fence, storage.EffectUnknown))
	requireVerdict(f, storage.VerdictOutcomeUnknown, f.reserve(f.request("late")))
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("x")))
	f.requireEntry(late.Entry, storage.EntryResolved, storage.ResultReplayed)
	requireEqual(f, success("x"), f.reserve(f.request("late")).Outcome)
}

func replayDone(f *fixture) {
	f.completed("k", success("x"))
	before := f.record("k")
	e := f.parked("k")
	c := f.claimed(byOperator(claimOf(e)))
	for range 2 {
		ans := f.reserve(f.replay("k", c))
		requireVerdict(f, storage.VerdictCompleted, ans)
		requireEqual(f, success("x"), ans.Outcome)
		f.requireEntry(e.ID, storage.EntryResolved, storage.ResultAlreadyDone)
	}
	requireVerdict(f, storage.VerdictOK, f.settle(c, storage.ResultFailed))
	f.requireEntry(e.ID, storage.EntryResolved, storage.ResultAlreadyDone)
	after := f.record("k")
	require.Zero(f, after.Pins)
	before.Version = after.Version
	requireEqual(f, before, after)
}

func replayReused(f *fixture) {
	f.failed("k", 9)
	c := f.claimed(byOperator(claimOf(f.parked("k"))))
	q := f.replay("k", c)
	q.Fingerprint = fingerprint("b")
	requireVerdict(f, storage.VerdictKeyReused, f.reserve(q))
	f.replays("k", c)
}

func retryResolves(f *fixture) {
	q, fence := f.grant("k")
	f.release(q, fence, storage.EffectNone)
	e := f.parked("k")
	refused := f.complete(f.request("k"), 1, success("stray"))
	require.True(f, refused.Parked)
	q = f.request("k")
	ans := f.reserve(q)
	requireVerdict(f, storage.VerdictGranted, ans)
	require.Equal(f, e.ID, ans.Entry.ID, "the oldest that waits")
	requireVerdict(f, storage.VerdictOK, f.complete(q, ans.Record.Fence, success("x")))
	f.requireEntry(e.ID, storage.EntryResolved, storage.ResultSuperseded)
	f.requireEntry(refused.Entry.ID, storage.EntryParked, 0)
	f.requirePins(1, "k")
	f.discard(refused.Entry.ID)
	require.Nil(f, f.reserve(f.request("k")).Entry)
}

// overdue parks an OVERDUE entry of the key, as dedupd itself does.
func (f *fixture) overdue(key string) *storage.DeadLetter {
	f.Helper()
	q := f.letter(key)
	q.Entry.Kind, q.Entry.HasRequest, q.Entry.Request = storage.EntryOverdue, false, nil
	return f.parks(q)
}

func errorResolvesOverdue(f *fixture) {
	q, fence := f.grant("k")
	e, overdue := f.parked("k"), f.overdue("k")
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, failure(9)))
	f.requireEntry(e.ID, storage.EntryParked, 0)
	f.requireEntry(overdue.ID, storage.EntryResolved, storage.ResultSuperseded)
	f.requirePins(1, "k")
	q, fence = f.grant("released")
	overdue = f.overdue("released")
	f.release(q, fence, storage.EffectNone)
	f.requireEntry(overdue.ID, storage.EntryResolved, storage.ResultSuperseded)
	q, fence = f.grant("unknown")
	overdue = f.overdue("unknown")
	f.release(q, fence, storage.EffectUnknown)
	f.requireEntry(overdue.ID, storage.EntryParked, 0)
}

func verdictResolves(f *fixture) {
	letters := map[string][]*storage.DeadLetter{}
	for _, key := range []string{"completed", "released"} {
		f.unknown(key)
		unreconciled := f.letter(key)
		unreconciled.Entry.Kind = storage.EntryUnreconciled
		letters[key] = []*storage.DeadLetter{f.parked(key), f.parks(unreconciled), f.overdue(key)}
	}
	live := f.resolve("completed", storage.Resolve{Version: f.record("completed").Version, Completed: true, Terms: terms()})
	requireVerdict(f, storage.VerdictInProgress, live)
	f.lapse(storage.MaxLease)
	requireVerdict(f, storage.VerdictOK, f.resolve("completed", storage.Resolve{
		Version: f.record("completed").Version, Completed: true, Outcome: success("as the first caller saw"), Terms: terms(),
	}))
	requireVerdict(f, storage.VerdictOK, f.resolve("released", storage.Resolve{Version: f.record("released").Version, Terms: terms()}))
	for i := range 3 {
		f.requireEntry(letters["completed"][i].ID, storage.EntryResolved, storage.ResultSuperseded)
	}
	f.requireEntry(letters["released"][0].ID, storage.EntryParked, 0)
	f.requireEntry(letters["released"][1].ID, storage.EntryResolved, storage.ResultSuperseded)
	f.requireEntry(letters["released"][2].ID, storage.EntryResolved, storage.ResultSuperseded)
	f.requirePins(0, "completed")
	f.requirePins(1, "released")
	requireEqual(f, success("as the first caller saw"), f.reserve(f.request("completed")).Outcome)
}

func replayReconciles(f *fixture) {
	f.unknown("k")
	e := f.parked("k")
	f.lapse(storage.MaxLease)
	c := f.claimed(claimOf(e))
	q := f.replay("k", c)
	requireVerdict(f, storage.VerdictOutcomeUnknown, f.reserve(q))
	q.OnUnknown, q.Basis = storage.OnUnknownReconcile, storage.BasisBounded
	fence := f.granted(q, storage.ModeReconcile)
	q.Identity = f.identity("k")
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("found")))
	f.requireEntry(e.ID, storage.EntryResolved, storage.ResultAlreadyDone)
}

func pinsRace(f *fixture) {
	q, fence := f.grant("k")
	var t tally
	together(40, func(i int) {
		switch i % 4 {
		case 0:
			t.add(f.Store.Park(f.Context(), f.letter("k")))
		case 1:
			t.add(f.Store.Complete(f.Context(), q.Identity.RecordID(), storage.Complete{
				Identity: q.Identity, Attempt: q.Attempt, Fence: fence, Outcome: success("x"), Terms: terms(),
			}))
		case 2:
			t.add(f.Store.Complete(f.Context(), q.Identity.RecordID(), storage.Complete{
				Identity: q.Identity, Attempt: attempt(), Fence: 1, Outcome: success("stray"), Terms: terms(),
			}))
		default:
			t.add(f.Store.Reserve(f.Context(), f.request("k")))
		}
	})
	require.NoError(f, t.err)
	open := 0
	for _, e := range f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 100}) {
		if e.Open() {
			open++
		}
	}
	f.requirePins(open, "k")
	requireEqual(f, success("x"), f.reserve(f.request("k")).Outcome)
}
