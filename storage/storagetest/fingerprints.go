package storagetest

import (
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func fingerprintCases() []testCase {
	return []testCase{
		{name: "another request under the key is refused in every state that binds it", run: reusedKey},
		{name: "another request is refused within the tombstone time too", clock: true, run: reusedExpired},
		{name: "a corrected request cannot be overtaken by the original", run: supersededRefused},
		{name: "a look-up tells the outcome to an equal fingerprint only", run: lookupFingerprint},
		{name: "fingerprints of several versions are kept and compared", run: fingerprintVersions},
	}
}

func reusedKey(f *fixture) {
	f.grant("reserved")
	f.unknown("unknown")
	f.completed("completed", success("x"))
	q, fence := f.grant("bound")
	f.release(q, fence, storage.EffectRepeatable)
	for _, key := range []string{"reserved", "unknown", "completed", "bound"} {
		before := f.record(key)
		other := f.request(key)
		other.Fingerprint = fingerprint("b")
		ans := f.reserve(other)
		require.Equal(f, storage.VerdictKeyReused, ans.Verdict, "a %s record belongs to its request", key)
		require.Nil(f, ans.Outcome)
		requireEqual(f, before, f.record(key))
	}
	f.grant("bound")
}

func reusedExpired(f *fixture) {
	f.completed("k", success("x"))
	f.Advance(terms().Retention)
	other := f.request("k")
	other.Fingerprint = fingerprint("b")
	requireVerdict(f, storage.VerdictKeyReused, f.reserve(other))
	requireVerdict(f, storage.VerdictKeyExpired, f.reserve(f.request("k")))
}

func supersededRefused(f *fixture) {
	q, fence := f.grant("k")
	f.release(q, fence, storage.EffectNone)
	corrected := f.request("k")
	corrected.Fingerprint = fingerprint("b")
	f.release(corrected, f.granted(corrected, storage.ModeRun), storage.EffectNone)
	requireVerdict(f, storage.VerdictKeyReused, f.reserve(f.request("k")))
	corrected.Attempt = attempt()
	f.granted(corrected, storage.ModeRun)
}

func lookupFingerprint(f *fixture) {
	q := f.completed("k", success("x"))
	id := q.Identity.RecordID()
	equal, err := f.Store.Lookup(f.Context(), id, storage.Lookup{Fingerprint: fingerprint("a")})
	require.NoError(f, err)
	requireVerdict(f, storage.VerdictOK, equal)
	requireEqual(f, success("x"), equal.Outcome)
	other, err := f.Store.Lookup(f.Context(), id, storage.Lookup{Fingerprint: fingerprint("b")})
	require.NoError(f, err)
	requireVerdict(f, storage.VerdictKeyReused, other)
	require.Nil(f, other.Outcome)
	none := f.look("k")
	require.Equal(f, storage.StateCompleted, none.State)
	require.Nil(f, none.Outcome)
}

func fingerprintVersions(f *fixture) {
	q := f.request("k")
	q.Fingerprint = storage.Fingerprint{
		{Version: 1, Server: "s1", Client: "c1"},
		{Version: 2, Server: "s2", UnknownFields: true, Client: "c2"},
	}
	fence := f.granted(q, storage.ModeRun)
	requireEqual(f, q.Fingerprint, f.record("k").Fingerprint)
	f.complete(q, fence, success("x"))
	tries := []struct {
		print storage.Fingerprint
		want  storage.Verdict
	}{
		{storage.Fingerprint{{Version: 1, Server: "s1"}}, storage.VerdictCompleted},
		{storage.Fingerprint{{Version: 2, Server: "s2"}, {Version: 1, Server: "other"}}, storage.VerdictCompleted},
		{storage.Fingerprint{{Version: 2, Server: "other", Client: "c2"}}, storage.VerdictCompleted},
		{storage.Fingerprint{{Version: 1, Server: "other", Client: "c1"}}, storage.VerdictKeyReused},
		{storage.Fingerprint{{Version: 3, Server: "s2"}}, storage.VerdictKeyReused},
	}
	for _, try := range tries {
		again := f.request("k")
		again.Fingerprint = try.print
		requireVerdict(f, try.want, f.reserve(again))
	}
}
