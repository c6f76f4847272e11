package storagetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

func erasureCases() []testCase {
	return []testCase{
		{name: "a redacted record still knows its request, and tells nothing else", run: redactRecord},
		{name: "entries are redacted with their record, closed ones too", run: redactEntries},
		{name: "what is redacted stays so after a restart", reopen: true, run: redactRestart},
		{name: "a key that is used again after its redaction is told of again", run: redactThenUse},
		{name: "a forgotten record is gone with all of its entries, and its key is new", run: forgetRecord},
		{name: "neither is done while an effect may land", clock: true, run: eraseLive},
		{name: "what is erased twice, or was never there, is answered so", run: eraseNothing},
		{name: "records are found by caller, key and age", clock: true, run: listForErasure},
	}
}

func (f *fixture) redact(key string) storage.Answer {
	f.Helper()
	ans, err := f.Store.Redact(f.Context(), f.identity(key).RecordID(), storage.Redact{Note: "asked for"})
	require.NoError(f, err)
	return ans
}

func (f *fixture) forget(key string) storage.Answer {
	f.Helper()
	ans, err := f.Store.Forget(f.Context(), f.identity(key).RecordID(), storage.Forget{Note: "asked for"})
	require.NoError(f, err)
	return ans
}

// requireRedacted looks at what is left of an identity.
func (f *fixture) requireRedacted(id storage.Identity) {
	f.Helper()
	require.Equal(f, storage.Identity{Namespace: f.namespace, Operation: f.identity("").Operation}, id)
}

func redactRecord(f *fixture) {
	o := success("secret")
	o.Headers = []storage.MetadataEntry{{Key: "name", Value: []byte("secret")}}
	q, fence := f.grant("k")
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, o))
	before := f.record("k")
	requireVerdict(f, storage.VerdictOK, f.redact("k"))
	after := f.record("k")
	require.True(f, after.Redacted)
	f.requireRedacted(after.Identity)
	require.Equal(f, f.identity("k").RecordID(), after.ID())
	requireEqual(f, &storage.Outcome{Omitted: true, Erased: true, Size: int64(len("secret")), Sum: o.Hash()}, after.Outcome)
	requireEqual(f, before.Fingerprint, after.Fingerprint)
	require.Equal(f, before.ExpiresAt, after.ExpiresAt)
	listed := f.pages(storage.List{Namespace: f.namespace, Limit: 10}, nil)
	require.Len(f, listed, 1)
	require.Equal(f, f.identity("k").RecordID(), listed[0].ID())

	again := f.reserve(f.request("k"))
	requireVerdict(f, storage.VerdictCompleted, again)
	require.True(f, again.Outcome.Omitted)
	other := f.request("k")
	other.Fingerprint = fingerprint("b")
	requireVerdict(f, storage.VerdictKeyReused, f.reserve(other))
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, o))
	refused := f.complete(q, fence, success("another"))
	requireVerdict(f, storage.VerdictStaleHolder, refused)
	require.True(f, refused.Parked, "a conflict is still noticed")

	f.releaseWith(storage.Release{
		Identity: f.identity("kept"), Attempt: q.Attempt, Fence: f.grantAs("kept", q.Attempt), Effect: storage.EffectNone,
		Error: failure(9), Hold: time.Hour, Note: "secret", Terms: terms(),
	})
	requireVerdict(f, storage.VerdictOK, f.redact("kept"))
	require.Nil(f, f.record("kept").Outcome)
	require.Empty(f, f.record("kept").Note)
}

// grantAs grants the key to the attempt.
func (f *fixture) grantAs(key string, a storage.AttemptID) storage.Fence {
	q := f.request(key)
	q.Attempt = a
	return f.granted(q, storage.ModeRun)
}

func redactEntries(f *fixture) {
	f.failed("k", 9)
	closed := f.parked("k")
	f.discard(closed.ID)
	open := f.parked("k")
	c := f.claimed(byOperator(claimOf(open)))
	f.replays("k", c)
	requireVerdict(f, storage.VerdictInProgress, f.redact("k"))
	f.release(f.sameHolder("k"), f.record("k").Fence, storage.EffectNone)
	requireVerdict(f, storage.VerdictOK, f.redact("k"))
	for _, id := range []storage.EntryID{closed.ID, open.ID} {
		e := f.entry(id)
		f.requireRedacted(e.Identity)
		require.Equal(f, f.identity("k").RecordID(), e.Record)
		requireEqual(f, e.Redacted(), e)
		require.False(f, e.HasRequest)
		require.Empty(f, e.Request)
		require.Empty(f, e.Metadata)
		require.Empty(f, e.Status)
		require.EqualValues(f, len("request of k"), e.RequestSize)
	}
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", c)))
	f.settle(c, storage.ResultGivenBack)
	requireVerdict(f, storage.VerdictEntryChanged, f.claim(claimOf(open)))
	f.requirePins(1, "k")
	requireVerdict(f, storage.VerdictOK, f.discard(open.ID))

	stub := f.parked("stub")
	requireVerdict(f, storage.VerdictOK, f.redact("stub"))
	f.requireRedacted(f.entry(stub.ID).Identity)
}

// sameHolder is the request of who holds the key.
func (f *fixture) sameHolder(key string) storage.Reserve {
	return storage.Reserve{Identity: f.identity(key), Attempt: f.record(key).Attempt}
}

func redactRestart(f *fixture) {
	f.failed("k", 9)
	e := f.parked("k")
	q, fence := f.replays("k", f.claimed(byOperator(claimOf(e))))
	f.release(q, fence, storage.EffectUnknown)
	before := f.record("k")
	f.reopen()
	requireEqual(f, before, f.record("k"))
	f.completed("done", success("x"))
	f.redact("done")
	before = f.record("done")
	f.reopen()
	requireEqual(f, before, f.record("done"))
}

func redactThenUse(f *fixture) {
	q, fence := f.grant("k")
	f.release(q, fence, storage.EffectNone)
	f.redact("k")
	f.requireRedacted(f.record("k").Identity)
	q, fence = f.grant("k")
	requireEqual(f, f.identity("k"), f.record("k").Identity)
	require.False(f, f.record("k").Redacted)
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, success("x")))
}

func forgetRecord(f *fixture) {
	first := f.failed("k", 9)
	closed := f.parked("k")
	f.discard(closed.ID)
	open := f.parked("k")
	c := f.claimed(claimOf(open))
	before := f.record("k").Fence
	ans := f.forget("k")
	requireVerdict(f, storage.VerdictOK, ans)
	require.Equal(f, storage.StateAbsent, ans.State)
	require.Nil(f, ans.Record)
	for _, id := range []storage.EntryID{closed.ID, open.ID} {
		gone, err := f.Store.Entry(f.Context(), id)
		require.NoError(f, err)
		requireVerdict(f, storage.VerdictNotFound, gone)
	}
	require.Empty(f, f.entries(storage.ListEntries{Namespace: f.namespace, Limit: 10}))
	require.Empty(f, f.pages(storage.List{Namespace: f.namespace, Limit: 10}, nil))
	requireVerdict(f, storage.VerdictClaimInvalid, f.reserve(f.replay("k", c)))
	requireVerdict(f, storage.VerdictNotFound, f.settle(c, storage.ResultReplayed))
	for _, key := range []string{"full", "next"} {
		q := f.letter(key)
		q.Terms.EntryCap = 1
		f.parks(q)
		requireVerdict(f, storage.VerdictOK, f.forget(key))
	}

	again := f.request("k")
	again.Fingerprint = fingerprint("b")
	require.Greater(f, f.granted(again, storage.ModeRun), before)
	f.requirePins(0, "k")
	requireVerdict(f, storage.VerdictStaleHolder, f.complete(first, before, failure(9)))
}

func eraseLive(f *fixture) {
	f.grant("reserved")
	f.unknown("unknown")
	for _, key := range []string{"reserved", "unknown"} {
		for _, ans := range []storage.Answer{f.redact(key), f.forget(key)} {
			requireVerdict(f, storage.VerdictInProgress, ans)
			require.Positive(f, ans.RetryAfter)
		}
		requireEqual(f, f.identity(key), f.record(key).Identity)
	}
	f.lapse(storage.MaxLease)
	requireVerdict(f, storage.VerdictOK, f.redact("reserved"))
	require.Equal(f, storage.StateUnknown, f.look("reserved").State, "an unknown outcome stays one")
	requireVerdict(f, storage.VerdictOutcomeUnknown, f.reserve(f.request("reserved")))
	requireVerdict(f, storage.VerdictOK, f.forget("unknown"))
	f.grant("unknown")
}

func eraseNothing(f *fixture) {
	requireVerdict(f, storage.VerdictNotFound, f.redact("k"))
	requireVerdict(f, storage.VerdictNotFound, f.forget("k"))
	f.completed("k", success("x"))
	requireVerdict(f, storage.VerdictOK, f.redact("k"))
	before := f.record("k")
	requireVerdict(f, storage.VerdictOK, f.redact("k"))
	requireEqual(f, before, f.record("k"))
	requireVerdict(f, storage.VerdictOK, f.forget("k"))
	requireVerdict(f, storage.VerdictNotFound, f.forget("k"))

	e := f.parked("closed")
	f.discard(e.ID)
	requireVerdict(f, storage.VerdictNotFound, f.redact("closed"))
	f.requireRedacted(f.entry(e.ID).Identity)
	requireVerdict(f, storage.VerdictNotFound, f.forget("closed"))
	require.Empty(f, f.entries(storage.ListEntries{Record: e.Record, Limit: 10}), "a closed entry alone is erased too")
}

func listForErasure(f *fixture) {
	for i := range 4 {
		q := f.request(fmt.Sprintf("k%d", i/2))
		q.Identity.Caller = fmt.Sprintf("caller%d", i%2)
		f.granted(q, storage.ModeRun)
		if i == 1 {
			f.Advance(time.Hour)
		}
	}
	list := func(q storage.List) []string {
		q.Namespace, q.Limit = f.namespace, 2
		var got []string
		for _, r := range f.pages(q, nil) {
			got = append(got, r.Identity.Caller+" "+r.Identity.Key)
		}
		return got
	}
	require.ElementsMatch(f, []string{"caller0 k0", "caller0 k1"}, list(storage.List{Caller: []byte("caller0")}))
	require.ElementsMatch(f, []string{"caller0 k0", "caller1 k0"}, list(storage.List{Key: []byte("k0")}))
	require.Equal(f, []string{"caller1 k1"}, list(storage.List{Key: []byte("k1"), Caller: []byte("caller1")}))
	require.ElementsMatch(f, []string{"caller0 k0", "caller1 k0"}, list(storage.List{OlderThan: 30 * time.Minute}))
	require.Empty(f, list(storage.List{OlderThan: 2 * time.Hour}))
	require.Len(f, list(storage.List{States: []storage.State{storage.StateReserved, storage.StateUnknown}}), 4)
}
