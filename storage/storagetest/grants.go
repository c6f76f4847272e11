package storagetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func grantCases() []testCase {
	return []testCase{
		{name: "a fresh key is granted and a second caller is told to wait", run: freshKey},
		{name: "A08 a grant without a lease gets the default one and is held", run: defaultLease},
		{name: "B01 a repeat with the same attempt id gets the same grant", run: repeatSameGrant},
		{name: "B01 a repeat after the lapse gets the same grant with no lease left", clock: true, run: repeatAfterLapse},
		{name: "an ended attempt id is never granted again", run: endedAttempt},
		{name: "a fence grows with every grant", run: fencesGrow},
		{name: "a fence grows over the deletion of its record", clock: true, run: fencesGrowOverDeletion},
		{name: "A11 a holder that was overtaken cannot complete, before or after the new one", run: overtakenAfterRelease},
		{name: "A11 a holder whose lease lapsed cannot complete once another runs", clock: true, run: overtakenAfterLapse},
		{name: "a lapsed holder that nobody overtook may still complete", clock: true, run: lateComplete},
		{name: "the last runner may complete until a reconciler begins to run", run: reconcileThenRun},
		{name: "an extension lengthens a lease and never shortens it", run: extendLengthens},
		{name: "an extension after the lapse is refused", clock: true, run: extendAfterLapse},
		{name: "calls on a key that nobody reserved are refused and create nothing", run: nothingFromNothing},
	}
}

func freshKey(f *fixture) {
	q := f.request("k")
	ans := f.reserve(q)
	requireVerdict(f, storage.VerdictGranted, ans)
	require.Equal(f, storage.ModeRun, ans.Record.Mode)
	require.EqualValues(f, 1, ans.Record.Grants)
	require.Positive(f, ans.Now)
	require.InDelta(f, q.Lease.Seconds(), ans.LeaseLeft().Seconds(), margin.Seconds(), "what is left is told, measured after the write")

	other := f.reserve(f.request("k"))
	requireVerdict(f, storage.VerdictInProgress, other)
	require.Positive(f, other.RetryAfter)
	require.Nil(f, other.Outcome)
	requireEqual(f, ans.Record, other.Record)
}

func defaultLease(f *fixture) {
	q := f.request("k")
	q.Lease = 0
	ans := f.reserve(q)
	require.Equal(f, storage.DefaultLease, ans.Record.Lease)
	require.Equal(f, storage.DefaultLease, ans.Record.LeaseEnd.Sub(ans.Record.GrantedAt))
	second := f.request("k")
	second.Lease, second.OnUnknown = 0, storage.OnUnknownRerun
	requireVerdict(f, storage.VerdictInProgress, f.reserve(second))
	require.Equal(f, storage.VerdictOK, f.complete(q, ans.Record.Fence, success("done")).Verdict)
}

func repeatSameGrant(f *fixture) {
	q, fence := f.grant("k")
	first := f.look("k")
	for range 3 {
		require.Equal(f, fence, f.granted(q, storage.ModeRun))
	}
	requireEqual(f, first.Record, f.record("k"))
	requireVerdict(f, storage.VerdictInProgress, f.reserve(f.request("k")))
}

func repeatAfterLapse(f *fixture) {
	q, fence := f.grant("k")
	f.lapse(q.Lease)
	ans := f.reserve(q)
	requireVerdict(f, storage.VerdictGranted, ans)
	require.Equal(f, fence, ans.Record.Fence)
	require.Zero(f, ans.LeaseLeft(), "a repeat renews nothing")
	requireVerdict(f, storage.VerdictOutcomeUnknown, f.reserve(f.request("k")))
}

func endedAttempt(f *fixture) {
	q, fence := f.grant("k")
	f.release(q, fence, storage.EffectNone)
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(q))
	require.Equal(f, storage.StateReleased, f.look("k").State)
	f.grant("k")
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(q))
}

func fencesGrow(f *fixture) {
	last := storage.Fence(0)
	for range 10 {
		q, fence := f.grant("k")
		require.Greater(f, fence, last)
		last = fence
		f.release(q, fence, storage.EffectNone)
	}
	require.EqualValues(f, 10, f.record("k").Grants)
}

func fencesGrowOverDeletion(f *fixture) {
	q, fence := f.grant("k")
	f.release(q, fence, storage.EffectNone)
	f.Advance(terms().Retention)
	require.Equal(f, storage.StateAbsent, f.look("k").State)
	f.sweep(100)
	_, again := f.grant("k")
	require.Greater(f, again, fence)
	require.EqualValues(f, 1, f.record("k").Grants)
}

func overtakenAfterRelease(f *fixture) {
	old, oldFence := f.grant("k")
	f.release(old, oldFence, storage.EffectNone)
	q, fence := f.grant("k")
	requireOvertaken(f, old, oldFence, q, fence)
}

func overtakenAfterLapse(f *fixture) {
	old, oldFence := f.grant("k")
	f.lapse(old.Lease)
	q := f.request("k")
	q.OnUnknown = storage.OnUnknownRerun
	requireOvertaken(f, old, oldFence, q, f.granted(q, storage.ModeRun))
}

func requireOvertaken(f *fixture, old storage.Reserve, oldFence storage.Fence, q storage.Reserve, fence storage.Fence) {
	f.Helper()
	refused := f.complete(old, oldFence, success("old"))
	requireVerdict(f, storage.VerdictStaleHolder, refused)
	require.NotNil(f, refused.Conflict)
	require.Equal(f, fence, refused.Conflict.RecordFence)
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("new")))
	requireVerdict(f, storage.VerdictStaleHolder, f.complete(old, oldFence, success("old")))
	requireVerdict(f, storage.VerdictStaleHolder, f.extend(old, oldFence, time.Minute))
	requireVerdict(f, storage.VerdictStaleHolder, f.release(old, oldFence, storage.EffectNone))
	requireVerdict(f, storage.VerdictStaleHolder, f.beginRun(old, oldFence))
	requireEqual(f, success("new"), f.reserve(f.request("k")).Outcome)
}

func lateComplete(f *fixture) {
	q, fence := f.grant("k")
	f.lapse(q.Lease)
	require.Equal(f, storage.StateUnknown, f.look("k").State)
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("late")))
	requireEqual(f, success("late"), f.reserve(f.request("k")).Outcome)
}

func reconcileThenRun(f *fixture) {
	reconciler := func(key string) (storage.Reserve, storage.Fence) {
		q := f.request(key)
		q.OnUnknown, q.Basis = storage.OnUnknownReconcile, storage.BasisFenced
		return q, f.granted(q, storage.ModeReconcile)
	}
	runner, ran := f.unknown("a")
	q, fence := reconciler("a")
	require.Equal(f, ran, f.record("a").RunFence)
	requireVerdict(f, storage.VerdictNotReconciled, f.release(q, fence, storage.EffectNone))
	requireVerdict(f, storage.VerdictOK, f.complete(runner, ran, success("by the runner")))
	requireEqual(f, success("by the runner"), f.reserve(f.request("a")).Outcome)

	runner, ran = f.unknown("b")
	q, fence = reconciler("b")
	begun := f.beginRun(q, fence)
	requireVerdict(f, storage.VerdictOK, begun)
	require.Equal(f, storage.ModeRun, begun.Record.Mode)
	requireVerdict(f, storage.VerdictOK, f.beginRun(q, fence))
	require.Equal(f, fence, f.granted(q, storage.ModeRun), "a repeat gets the stored mode")
	requireVerdict(f, storage.VerdictStaleHolder, f.complete(runner, ran, success("by the runner")))
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("by the reconciler")))
}

func extendLengthens(f *fixture) {
	q := f.request("k")
	q.Lease = time.Minute
	fence := f.granted(q, storage.ModeRun)
	end := f.record("k").LeaseEnd
	ans := f.extend(q, fence, 10*time.Minute)
	requireVerdict(f, storage.VerdictOK, ans)
	require.Greater(f, ans.Record.LeaseEnd.Sub(end), 8*time.Minute)
	require.InDelta(f, 600, ans.LeaseLeft().Seconds(), margin.Seconds())
	longer := ans.Record.LeaseEnd
	requireVerdict(f, storage.VerdictOK, f.extend(q, fence, time.Second))
	require.Equal(f, longer, f.record("k").LeaseEnd)
	requireVerdict(f, storage.VerdictStaleHolder, f.extend(q, fence-1, time.Minute))
	q.Attempt = attempt()
	requireVerdict(f, storage.VerdictStaleHolder, f.extend(q, fence, time.Minute))
}

func extendAfterLapse(f *fixture) {
	q, fence := f.grant("k")
	f.lapse(q.Lease)
	requireVerdict(f, storage.VerdictStaleHolder, f.extend(q, fence, time.Minute))
	require.Equal(f, storage.StateUnknown, f.look("k").State)
}

func nothingFromNothing(f *fixture) {
	q := f.request("k")
	requireVerdict(f, storage.VerdictStaleHolder, f.complete(q, 1, success("x")))
	requireVerdict(f, storage.VerdictStaleHolder, f.extend(q, 1, time.Minute))
	requireVerdict(f, storage.VerdictStaleHolder, f.beginRun(q, 1))
	requireVerdict(f, storage.VerdictStaleHolder, f.release(q, 1, storage.EffectNone))
	requireVerdict(f, storage.VerdictRecordChanged, f.resolve("k", storage.Resolve{Version: 1}))
	ans := f.look("k")
	require.Equal(f, storage.StateAbsent, ans.State)
	require.Nil(f, ans.Record)
}
