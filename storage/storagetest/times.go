package storagetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func timeCases() []testCase {
	return []testCase{
		{name: "a lease ends at its end and not before", clock: true, run: leaseEdge},
		{name: "B11 an outcome is told until its retention ends, then the key is expired, then absent", clock: true, run: expiryEdges},
		{name: "without a tombstone the key is free when its retention ends", clock: true, run: noTombstone},
		{name: "a holder lengthens the retention and cannot shorten it", run: holderRetention},
		{name: "B12 replays and look-ups do not move the ends of a record", clock: true, run: readsMoveNothing},
		{name: "a free released record is absent after its retention, a bound one expired", clock: true, run: releasedEnds},
		{name: "A02 an unfinished record has no end", clock: true, run: unfinishedStays},
		{name: "an unknown outcome says when it may still settle", clock: true, run: settleHint},
		{name: "the clock moves on", clock: true, run: clockMoves},
	}
}

func leaseEdge(f *fixture) {
	q, fence := f.grant("k")
	f.Advance(q.Lease - margin)
	held := f.reserve(f.request("k"))
	requireVerdict(f, storage.VerdictInProgress, held)
	require.LessOrEqual(f, held.RetryAfter, time.Second)
	require.Positive(f, held.LeaseLeft())
	f.Advance(margin + f.Store.Skew())
	requireVerdict(f, storage.VerdictOutcomeUnknown, f.reserve(f.request("k")))
	require.Equal(f, storage.StateUnknown, f.look("k").State)
	next := f.request("k")
	next.OnUnknown, next.Basis = storage.OnUnknownReconcile, storage.BasisBounded
	require.Greater(f, f.granted(next, storage.ModeReconcile), fence)
}

func expiryEdges(f *fixture) {
	q, fence := f.grant("k")
	f.complete(q, fence, success("x"))
	f.Advance(terms().Retention - margin)
	requireVerdict(f, storage.VerdictCompleted, f.reserve(f.request("k")))
	f.Advance(margin)
	expired := f.reserve(f.request("k"))
	requireVerdict(f, storage.VerdictKeyExpired, expired)
	require.Equal(f, storage.StateExpired, expired.State)
	require.Nil(f, expired.Outcome)
	repeat, err := f.Store.Lookup(f.Context(), q.Identity.RecordID(), storage.Lookup{Fingerprint: q.Fingerprint})
	require.NoError(f, err)
	require.Nil(f, repeat.Outcome, "past its retention an outcome is gone for every call")
	requireVerdict(f, storage.VerdictStaleHolder, f.complete(q, fence, success("x")))
	f.Advance(terms().Tombstone - margin)
	requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("k")))
	f.Advance(margin)
	require.Equal(f, storage.StateAbsent, f.look("k").State)
	requireVerdict(f, storage.VerdictStaleHolder, f.complete(q, fence, success("x")))
	_, again := f.grant("k")
	require.Greater(f, again, fence)
}

func noTombstone(f *fixture) {
	q, fence := f.grant("k")
	_, err := f.Store.Complete(f.Context(), q.Identity.RecordID(), storage.Complete{
		Attempt: q.Attempt, Fence: fence, Outcome: success("x"), Terms: storage.Terms{Retention: storage.MinRetention},
	})
	require.NoError(f, err)
	f.Advance(storage.MinRetention)
	f.grant("k")
}

func holderRetention(f *fixture) {
	tries := []struct {
		key                        string
		asked, namespace, retained time.Duration
	}{
		{"longer", 2 * time.Hour, time.Hour, 2 * time.Hour},
		{"shorter", time.Minute, time.Hour, time.Hour},
		{"longest", storage.MaxRetention, 0, storage.MaxRetention},
		{"neither", 0, 0, storage.DefaultRetention},
	}
	for _, try := range tries {
		q, fence := f.grant(try.key)
		ans, err := f.Store.Complete(f.Context(), q.Identity.RecordID(), storage.Complete{
			Attempt: q.Attempt, Fence: fence, Outcome: success("x"), Retention: try.asked,
			Terms: storage.Terms{Retention: try.namespace, Tombstone: storage.MaxTombstone},
		})
		require.NoError(f, err)
		require.Equal(f, try.retained, ans.Record.ExpiresAt.Sub(ans.Record.CompletedAt), try.key)
		require.Equal(f, storage.MaxTombstone, ans.Record.DropAt.Sub(ans.Record.ExpiresAt), try.key)
	}
}

func readsMoveNothing(f *fixture) {
	q := f.completed("k", success("x"))
	before := f.record("k")
	require.Equal(f, terms().Retention, before.ExpiresAt.Sub(before.CompletedAt), "retention counts from completion")
	for range 5 {
		f.Advance(10 * time.Minute)
		requireVerdict(f, storage.VerdictCompleted, f.reserve(f.request("k")))
		requireVerdict(f, storage.VerdictCompleted, f.reserve(q))
		requireEqual(f, before, f.record("k"))
	}
	f.Advance(10 * time.Minute)
	requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("k")))
}

func releasedEnds(f *fixture) {
	free, fence := f.grant("free")
	f.release(free, fence, storage.EffectNone)
	bound, fence := f.grant("bound")
	f.release(bound, fence, storage.EffectRepeatable)
	f.Advance(terms().Retention)
	require.Equal(f, storage.StateAbsent, f.look("free").State)
	requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("bound")))
	f.Advance(terms().Tombstone)
	require.Equal(f, storage.StateAbsent, f.look("bound").State)
}

func unfinishedStays(f *fixture) {
	f.grant("reserved")
	f.unknown("unknown")
	f.Advance(2 * storage.MaxRetention)
	f.sweep(100)
	for _, key := range []string{"reserved", "unknown"} {
		ans := f.reserve(f.request(key))
		require.Equal(f, storage.VerdictOutcomeUnknown, ans.Verdict, "the %s record is never freed by age or sweep", key)
		require.Zero(f, ans.RetryAfter, "nothing settles it by itself any more")
		require.Equal(f, storage.StateUnknown, ans.State)
	}
}

func settleHint(f *fixture) {
	q, _ := f.grant("k")
	f.lapse(q.Lease)
	require.Positive(f, f.reserve(f.request("k")).RetryAfter)
	f.Advance(q.Lease + time.Minute)
	require.Zero(f, f.reserve(f.request("k")).RetryAfter)
}

func clockMoves(f *fixture) {
	first := f.look("k").Now
	f.Advance(time.Hour)
	second := f.look("k").Now
	require.InDelta(f, time.Hour.Seconds(), second.Sub(first).Seconds(), margin.Seconds())
	_, fence := f.grant("k")
	require.GreaterOrEqual(f, fence, storage.Fence(second), "the first fence is the clock in microseconds")
}
