package storagetest

import (
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func resolveCases() []testCase {
	return []testCase{
		{name: "a verdict before the lease has ended is refused", run: resolveTooEarly},
		{name: "A06 an operator completes a record with the outcome that was seen", clock: true, run: resolveCompleted},
		{name: "A06 an operator completes a record without an outcome", clock: true, run: resolveWithoutOutcome},
		{name: "A06 an operator releases a record", clock: true, run: resolveReleased},
		{name: "a verdict on another version changes nothing", clock: true, run: resolveOtherVersion},
	}
}

func resolveTooEarly(f *fixture) {
	f.unknown("k")
	before := f.record("k")
	ans := f.resolve("k", storage.Resolve{Version: before.Version, Terms: terms()})
	requireVerdict(f, storage.VerdictInProgress, ans)
	require.Positive(f, ans.RetryAfter)
	requireEqual(f, before, f.record("k"))
}

// lapsed leaves a key whose holder never came back, and returns its version.
func (f *fixture) lapsed(key string) (storage.Reserve, storage.Fence, int64) {
	f.Helper()
	q, fence := f.grant(key)
	f.lapse(q.Lease)
	return q, fence, f.record(key).Version
}

func resolveCompleted(f *fixture) {
	q, fence, version := f.lapsed("k")
	verdict := storage.Resolve{Version: version, Completed: true, Outcome: success("seen"), Note: "ticket 7", Terms: terms()}
	ans := f.resolve("k", verdict)
	requireVerdict(f, storage.VerdictOK, ans)
	require.True(f, ans.Record.ByOperator())
	require.Equal(f, fence, ans.Record.Fence)
	requireVerdict(f, storage.VerdictOK, f.resolve("k", verdict))
	requireEqual(f, success("seen"), f.reserve(f.request("k")).Outcome)
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("seen")))
	requireVerdict(f, storage.VerdictStaleHolder, f.complete(q, fence, success("other")))
	verdict.Outcome = success("other")
	requireVerdict(f, storage.VerdictRecordChanged, f.resolve("k", verdict))
	require.Equal(f, "ticket 7", f.record("k").Note)
}

func resolveWithoutOutcome(f *fixture) {
	_, _, version := f.lapsed("k")
	requireVerdict(f, storage.VerdictOK, f.resolve("k", storage.Resolve{Version: version, Completed: true, Terms: terms()}))
	ans := f.reserve(f.request("k"))
	requireVerdict(f, storage.VerdictCompleted, ans)
	require.Nil(f, ans.Outcome)
	require.True(f, ans.Record.ByOperator())
}

func resolveReleased(f *fixture) {
	q, fence, version := f.lapsed("k")
	verdict := storage.Resolve{Version: version, Terms: terms()}
	requireVerdict(f, storage.VerdictOK, f.resolve("k", verdict))
	requireVerdict(f, storage.VerdictOK, f.resolve("k", verdict))
	requireVerdict(f, storage.VerdictStaleHolder, f.reserve(q))
	_, again := f.grant("k")
	require.Greater(f, again, fence)
	requireVerdict(f, storage.VerdictRecordChanged, f.resolve("k", verdict))
}

func resolveOtherVersion(f *fixture) {
	q, fence, version := f.lapsed("k")
	before := f.record("k")
	requireVerdict(f, storage.VerdictRecordChanged, f.resolve("k", storage.Resolve{Version: version + 1, Terms: terms()}))
	requireEqual(f, before, f.record("k"))
	f.complete(q, fence, success("late"))
	requireVerdict(f, storage.VerdictRecordChanged, f.resolve("k", storage.Resolve{Version: version, Terms: terms()}))
	requireEqual(f, success("late"), f.reserve(f.request("k")).Outcome)
}
