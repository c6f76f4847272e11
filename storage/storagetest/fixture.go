package storagetest

import (
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// margin is added to or taken from the end of a time: a store's clock runs on
// while a case does.
const margin = 10 * time.Second

// fixture is a case's store, with short ways to call it. An error of the store
// ends the case.
type fixture struct {
	testing.TB
	Harness
	namespace string
}

func newFixture(tb testing.TB, h Harness) *fixture {
	tb.Helper()
	var b [6]byte
	_, err := rand.Read(b[:])
	require.NoError(tb, err)
	return &fixture{TB: tb, Harness: h, namespace: "suite-" + hex.EncodeToString(b[:])}
}

// reopen closes the store and opens its data again.
func (f *fixture) reopen() {
	f.Helper()
	require.NoError(f, f.Store.Close())
	f.Harness = f.Reopen(f)
	store := f.Store
	f.Cleanup(func() { require.NoError(f, store.Close()) })
}

func (f *fixture) identity(key string) storage.Identity {
	return storage.Identity{Namespace: f.namespace, Operation: "/pay.v1.Payments/Charge", Caller: "customer-1", Key: key}
}

// request is a Reserve of a new attempt, with a lease that outlasts the case.
func (f *fixture) request(key string) storage.Reserve {
	return storage.Reserve{
		Identity: f.identity(key), Fingerprint: fingerprint("a"), Attempt: attempt(), Lease: storage.MaxLease,
	}
}

func (f *fixture) reserve(q storage.Reserve) storage.Answer {
	f.Helper()
	ans, err := f.Store.Reserve(f.Context(), q)
	require.NoError(f, err)
	return ans
}

// grant reserves a key that must be free.
func (f *fixture) grant(key string) (storage.Reserve, storage.Fence) {
	f.Helper()
	q := f.request(key)
	return q, f.granted(q, storage.ModeRun)
}

// granted reserves and must be granted in the mode.
func (f *fixture) granted(q storage.Reserve, mode storage.Mode) storage.Fence {
	f.Helper()
	ans := f.reserve(q)
	require.Equal(f, storage.VerdictGranted, ans.Verdict)
	require.Equal(f, storage.StateReserved, ans.State)
	require.Equal(f, mode, ans.Record.Mode)
	require.Equal(f, q.Attempt, ans.Record.Attempt)
	require.Positive(f, ans.Record.Fence)
	return ans.Record.Fence
}

func (f *fixture) complete(q storage.Reserve, fence storage.Fence, o *storage.Outcome) storage.Answer {
	f.Helper()
	ans, err := f.Store.Complete(f.Context(), q.Identity.RecordID(), storage.Complete{
		Identity: q.Identity, Attempt: q.Attempt, Fence: fence, Outcome: o, Terms: terms(),
	})
	require.NoError(f, err)
	return ans
}

// completed grants a key and completes it.
func (f *fixture) completed(key string, o *storage.Outcome) storage.Reserve {
	f.Helper()
	q, fence := f.grant(key)
	ans := f.complete(q, fence, o)
	require.Equal(f, storage.VerdictOK, ans.Verdict)
	require.Equal(f, storage.StateCompleted, ans.State)
	return q
}

func (f *fixture) release(q storage.Reserve, fence storage.Fence, e storage.Effect) storage.Answer {
	f.Helper()
	return f.releaseWith(storage.Release{
		Identity: q.Identity, Attempt: q.Attempt, Fence: fence, Effect: e, Terms: terms(),
	})
}

func (f *fixture) releaseWith(q storage.Release) storage.Answer {
	f.Helper()
	ans, err := f.Store.Release(f.Context(), q)
	require.NoError(f, err)
	return ans
}

func (f *fixture) extend(q storage.Reserve, fence storage.Fence, lease time.Duration) storage.Answer {
	f.Helper()
	ans, err := f.Store.Extend(f.Context(), q.Identity.RecordID(),
		storage.Extend{Attempt: q.Attempt, Fence: fence, Lease: lease})
	require.NoError(f, err)
	return ans
}

func (f *fixture) beginRun(q storage.Reserve, fence storage.Fence) storage.Answer {
	f.Helper()
	ans, err := f.Store.BeginRun(f.Context(), q.Identity.RecordID(), storage.BeginRun{Attempt: q.Attempt, Fence: fence})
	require.NoError(f, err)
	return ans
}

// look looks a record up without a fingerprint.
func (f *fixture) look(key string) storage.Answer {
	f.Helper()
	ans, err := f.Store.Lookup(f.Context(), f.identity(key).RecordID(), storage.Lookup{})
	require.NoError(f, err)
	return ans
}

// record looks up a record that must be there.
func (f *fixture) record(key string) *storage.Record {
	f.Helper()
	r := f.look(key).Record
	require.NotNil(f, r)
	return r
}

func (f *fixture) resolve(key string, q storage.Resolve) storage.Answer {
	f.Helper()
	ans, err := f.Store.Resolve(f.Context(), f.identity(key).RecordID(), q)
	require.NoError(f, err)
	return ans
}

// sweep sweeps until nothing is left and returns how many records went.
func (f *fixture) sweep(limit int) int {
	f.Helper()
	total := 0
	for {
		n, err := f.Store.Sweep(f.Context(), limit)
		require.NoError(f, err)
		require.LessOrEqual(f, n, limit, "a sweep is bounded by its limit")
		total += n
		if n == 0 {
			return total
		}
	}
}

// lapse lets a lease of length d that was given just now run out.
func (f *fixture) lapse(d time.Duration) { f.Advance(d + f.Store.Skew()) }

// unknown leaves the key with an outcome that nobody knows.
func (f *fixture) unknown(key string) (storage.Reserve, storage.Fence) {
	f.Helper()
	q, fence := f.grant(key)
	ans := f.release(q, fence, storage.EffectUnknown)
	require.Equal(f, storage.VerdictOK, ans.Verdict)
	require.Equal(f, storage.StateUnknown, ans.State)
	return q, fence
}

// requireVerdict compares verdicts by name.
func requireVerdict(f *fixture, want storage.Verdict, got storage.Answer) {
	f.Helper()
	require.Equal(f, want.String(), got.Verdict.String())
}

// requireEqual compares whole values; an empty slice equals none.
func requireEqual[T any](f *fixture, want, got T) {
	f.Helper()
	require.Empty(f, cmp.Diff(want, got, cmpopts.EquateEmpty()))
}

func terms() storage.Terms {
	return storage.Terms{Retention: time.Hour, Tombstone: time.Hour, EntryHold: 10 * time.Hour}
}

func attempt() (a storage.AttemptID) {
	_, _ = rand.Read(a[:])
	return a
}

func fingerprint(of string) storage.Fingerprint {
	return storage.Fingerprint{{Version: 1, Server: "server-" + of, Client: "client-" + of}}
}

func success(body string) *storage.Outcome {
	return &storage.Outcome{HasResponse: true, TypeURL: "type.googleapis.com/pay.v1.Charge", Response: []byte(body)}
}

func failure(code int32) *storage.Outcome {
	return &storage.Outcome{Code: code, Status: []byte{8, byte(code)}}
}

// randomBytes does not compress.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	var seed [32]byte
	seed[0] = byte(n)
	_, _ = mathrand.NewChaCha8(seed).Read(b)
	return b
}
