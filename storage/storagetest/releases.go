package storagetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func releaseCases() []testCase {
	return []testCase{
		{name: "a release without effect frees the key at once", run: releaseFrees},
		{name: "a repeated release of the same kind is fine, of another kind it is refused", run: repeatedRelease},
		{name: "a release as unknown does not open the key before the lease would have ended", run: unknownHolds},
		{name: "a released error is kept for its hold and answers the same request only", run: keptError},
		{name: "a kept error ends with its hold", clock: true, run: keptErrorEnds},
		{name: "an attempt that was given back before it arrived is never granted", run: markOfAbsent},
		{name: "an attempt given back while another holds the key is never granted", run: markOnRecord},
		{name: "the mark of an attempt given back ends after its time", clock: true, run: markEnds},
		{name: "a grant that nobody read is given back by its attempt id", run: giveBackUnread},
		{name: "a note is kept", run: noteKept},
	}
}

func releaseFrees(f *fixture) {
	q, fence := f.grant("k")
	ans := f.release(q, fence, storage.EffectNone)
	requireVerdict(f, storage.VerdictOK, ans)
	require.Equal(f, storage.StateReleased, ans.State)
	_, again := f.grant("k")
	require.Greater(f, again, fence)
}

func repeatedRelease(f *fixture) {
	for _, kind := range []storage.Effect{storage.EffectNone, storage.EffectRepeatable, storage.EffectUnknown} {
		key := string(rune('a' + kind))
		q, fence := f.grant(key)
		requireVerdict(f, storage.VerdictOK, f.release(q, fence, kind))
		before := f.record(key)
		requireVerdict(f, storage.VerdictOK, f.release(q, fence, kind))
		requireVerdict(f, storage.VerdictStaleHolder, f.release(q, fence, kind%3+1))
		requireEqual(f, before, f.record(key))
	}
}

func unknownHolds(f *fixture) {
	f.unknown("k")
	refuse := f.reserve(f.request("k"))
	requireVerdict(f, storage.VerdictOutcomeUnknown, refuse)
	require.Positive(f, refuse.RetryAfter)
	for _, on := range []storage.OnUnknown{storage.OnUnknownReconcile, storage.OnUnknownRerun} {
		q := f.request("k")
		q.OnUnknown, q.Basis = on, storage.BasisBounded
		requireVerdict(f, storage.VerdictInProgress, f.reserve(q))
	}
}

func keptError(f *fixture) {
	q, fence := f.grant("k")
	f.releaseWith(storage.Release{
		Identity: q.Identity, Attempt: q.Attempt, Fence: fence, Effect: storage.EffectNone,
		Error: failure(9), Hold: storage.MaxHold, Note: "declined", Terms: terms(),
	})
	same := f.reserve(f.request("k"))
	requireVerdict(f, storage.VerdictCompleted, same)
	require.True(f, same.Kept)
	requireEqual(f, failure(9), same.Outcome)
	corrected := f.request("k")
	corrected.Fingerprint = fingerprint("b")
	f.granted(corrected, storage.ModeRun)
}

func keptErrorEnds(f *fixture) {
	q, fence := f.grant("k")
	f.releaseWith(storage.Release{
		Identity: q.Identity, Attempt: q.Attempt, Fence: fence, Effect: storage.EffectNone,
		Error: failure(9), Hold: time.Minute, Terms: terms(),
	})
	f.Advance(time.Minute - margin)
	requireVerdict(f, storage.VerdictCompleted, f.reserve(f.request("k")))
	f.Advance(margin)
	f.grant("k")
}

func (f *fixture) giveBack(q storage.Reserve) storage.Answer {
	f.Helper()
	return f.release(q, 0, storage.EffectNone)
}

func markOfAbsent(f *fixture) {
	late := f.request("k")
	ans := f.giveBack(late)
	requireVerdict(f, storage.VerdictOK, ans)
	requireVerdict(f, storage.VerdictOK, f.giveBack(late))
	require.Equal(f, storage.StateAbsent, f.look("k").State)
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(late))
	f.grant("k")
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(late))
}

func markOnRecord(f *fixture) {
	q, fence := f.grant("k")
	late := f.request("k")
	requireVerdict(f, storage.VerdictOK, f.giveBack(late))
	require.Equal(f, fence, f.granted(q, storage.ModeRun), "the holder keeps its grant")
	f.release(q, fence, storage.EffectNone)
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(late))
	f.grant("k")
}

func markEnds(f *fixture) {
	late := f.request("k")
	f.giveBack(late)
	f.Advance(2*time.Minute - margin)
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(late))
	f.Advance(margin)
	f.granted(late, storage.ModeRun)
}

func giveBackUnread(f *fixture) {
	q, _ := f.grant("k")
	ans := f.giveBack(q)
	requireVerdict(f, storage.VerdictOK, ans)
	require.Equal(f, storage.StateReleased, ans.State)
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(q))
	f.grant("k")
}

func noteKept(f *fixture) {
	note := string(make([]byte, storage.MaxNote))
	q, fence := f.grant("k")
	f.releaseWith(storage.Release{
		Identity: q.Identity, Attempt: q.Attempt, Fence: fence, Effect: storage.EffectUnknown, Note: note, Terms: terms(),
	})
	require.Equal(f, note, f.record("k").Note)
}
