package storagetest

import (
	"crypto/rand"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// What the cases about dead letters share.

// letter is a Park of an exhausted call on the key, with every field that a
// client tells.
func (f *fixture) letter(key string) storage.Park {
	return storage.Park{Terms: terms(), Entry: storage.DeadLetter{
		Kind: storage.EntryExhausted, Identity: f.identity(key), ParkID: attempt(),
		Target: "dns:///pay:443", Method: "/pay.v1.Payments/Charge",
		HasRequest: true, TypeURL: "type.googleapis.com/pay.v1.ChargeRequest", Request: []byte("request of " + key),
		RequestSize: int64(len("request of " + key)), Fingerprint: fingerprint("a"),
		Metadata: []storage.MetadataEntry{{Key: "x-tenant", Value: []byte("t1")}, {Key: "b-bin", Value: []byte{0, 0xff}}},
		Code:     14, Status: []byte{8, 14}, Signature: "connection refused to #",
		Attempts: []storage.EntryAttempt{{At: 1, Code: 14}, {At: 2, Code: 4}},
		Note:     "note", Parent: storage.EntryID{1, 2, 3},
	}}
}

func (f *fixture) park(q storage.Park) storage.Answer {
	f.Helper()
	ans, err := f.Store.Park(f.Context(), q)
	require.NoError(f, err)
	return ans
}

// parked parks a call of the key, which must make a new entry.
func (f *fixture) parked(key string) *storage.DeadLetter {
	f.Helper()
	return f.parks(f.letter(key))
}

// parks makes a new entry.
func (f *fixture) parks(q storage.Park) *storage.DeadLetter {
	f.Helper()
	ans := f.park(q)
	requireVerdict(f, storage.VerdictOK, ans)
	require.True(f, ans.Parked)
	require.NotNil(f, ans.Entry)
	require.EqualValues(f, 1, ans.Entry.Count)
	return ans.Entry
}

// entry reads an entry that must be there.
func (f *fixture) entry(id storage.EntryID) *storage.DeadLetter {
	f.Helper()
	ans, err := f.Store.Entry(f.Context(), id)
	require.NoError(f, err)
	requireVerdict(f, storage.VerdictOK, ans)
	require.Equal(f, id, ans.Entry.ID)
	return ans.Entry
}

// requireEntry looks at an entry's state and result.
func (f *fixture) requireEntry(id storage.EntryID, state storage.EntryState, result storage.EntryResult) {
	f.Helper()
	e := f.entry(id)
	require.Equal(f, state.String(), e.State.String())
	require.Equal(f, result, e.Result)
	require.Equal(f, e.Open(), e.Pinned, "an open entry holds its record, a closed one does not")
	require.Equal(f, e.Open(), e.ClosedAt == 0)
}

func token() (t storage.ClaimToken) {
	_, _ = rand.Read(t[:])
	return t
}

// claimOf is a Claim that outlasts the case.
func claimOf(e *storage.DeadLetter) storage.Claim {
	return storage.Claim{Entry: e.ID, Token: token(), Lease: storage.MaxClaim, Terms: terms()}
}

func byOperator(q storage.Claim) storage.Claim {
	q.Operator = true
	return q
}

func (f *fixture) claim(q storage.Claim) storage.Answer {
	f.Helper()
	ans, err := f.Store.Claim(f.Context(), q)
	require.NoError(f, err)
	return ans
}

// claimed claims an entry, which must be free.
func (f *fixture) claimed(q storage.Claim) storage.Claim {
	f.Helper()
	ans := f.claim(q)
	requireVerdict(f, storage.VerdictOK, ans)
	require.Equal(f, storage.EntryReplaying, ans.Entry.State)
	return q
}

// replay is a Reserve of another caller than the entry's, under the claim.
func (f *fixture) replay(key string, c storage.Claim) storage.Reserve {
	q := f.request(key)
	q.Identity.Caller = "replayer"
	q.Claim = &storage.ReplayClaim{Entry: c.Entry, Token: c.Token}
	q.Terms = terms()
	return q
}

// replays reserves under the claim, and must be granted the entry's record. It
// returns the request under its record's identity, to complete or release.
func (f *fixture) replays(key string, c storage.Claim) (storage.Reserve, storage.Fence) {
	f.Helper()
	q := f.replay(key, c)
	fence := f.granted(q, storage.ModeRun)
	q.Identity = f.identity(key)
	requireEqual(f, q.Identity, f.record(key).Identity)
	require.Equal(f, fence, f.entry(c.Entry).ClaimFence)
	return q, fence
}

func (f *fixture) settle(c storage.Claim, r storage.EntryResult) storage.Answer {
	f.Helper()
	return f.settleWith(storage.Settle{Entry: c.Entry, Token: c.Token, Result: r, Terms: terms()})
}

func (f *fixture) settleWith(q storage.Settle) storage.Answer {
	f.Helper()
	ans, err := f.Store.Settle(f.Context(), q)
	require.NoError(f, err)
	return ans
}

func (f *fixture) discard(id storage.EntryID) storage.Answer {
	f.Helper()
	ans, err := f.Store.Discard(f.Context(), storage.Discard{Entry: id, Note: "discarded", Terms: terms()})
	require.NoError(f, err)
	return ans
}

func (f *fixture) requeue(id storage.EntryID) storage.Answer {
	f.Helper()
	ans, err := f.Store.Requeue(f.Context(), storage.Requeue{Entry: id, Note: "requeued"})
	require.NoError(f, err)
	return ans
}

// requirePins looks at how many open entries hold the record.
func (f *fixture) requirePins(want int, key string) {
	f.Helper()
	require.EqualValues(f, want, f.record(key).Pins)
}

// failed leaves the key with a final error.
func (f *fixture) failed(key string, code int32) storage.Reserve {
	f.Helper()
	q, fence := f.grant(key)
	requireVerdict(f, storage.VerdictOK, f.complete(q, fence, failure(code)))
	return q
}
