package cockroach

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dedupd/dedupd/storage"
)

// The single statements do what storage.ApplyCase does: from any stored record, live
// or lapsed, pinned or not, for the current holder, the last running one and
// strangers. When the store judged is read off the answer: the version of what was
// written is its time.
func TestEveryStatementDoesWhatApplyCaseDoes(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	key := 0
	rapid.Check(t, func(rt *rapid.T) {
		for range 10 {
			key++
			compareWithRules(t, rt, s, newHolder(time.Duration(key).String()))
		}
	})
}

func compareWithRules(t *testing.T, rt *rapid.T, s *Store, h *holder) {
	t.Helper()
	row := drawRecord(rt, h, lookup(t, s, h.id).Now)
	require.NoError(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		_, err := s.write(t.Context(), tx, h.id, nil, row)
		return err
	}))
	req, got, err := drawCall(t, rt, s, h, row)
	require.NoError(t, err)

	judged := got.Now
	if got.Record.Version != row.Version {
		judged = storage.Instant(got.Record.Version)
		require.GreaterOrEqual(t, got.Now, judged)
	}
	change, want := storage.ApplyCase(storage.Case{Record: row}, req, judged, s.Skew())
	want.Now = got.Now
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		rt.Fatalf("%T differs from storage.ApplyCase (-want +got):\n%s", req, diff)
	}
	next := change.Record
	if next == nil {
		next = row
	}
	if diff := cmp.Diff(next, lookup(t, s, h.id).Record, cmpopts.EquateEmpty()); diff != "" {
		rt.Fatalf("%T stores something else (-want +got):\n%s", req, diff)
	}
}

func lookup(t *testing.T, s *Store, id storage.RecordID) storage.Answer {
	t.Helper()
	ans, err := s.Lookup(t.Context(), id, storage.Lookup{})
	require.NoError(t, err)
	return ans
}

func oneOf[T any](rt *rapid.T, name string, values ...T) T {
	return rapid.SampledFrom(values).Draw(rt, name)
}

// drawRecord draws a record as grants leave it, reserved more often than not, by h
// or with h as the last that ran.
func drawRecord(rt *rapid.T, h *holder, now storage.Instant) *storage.Record {
	fence := storage.Fence(now) - 1000
	r := &storage.Record{
		Identity: h.Identity, State: oneOf(rt, "state", storage.StateReserved, storage.StateReserved, storage.StateReserved, storage.StateUnknown),
		Version: int64(fence), Fence: fence, Attempt: h.Attempt, Mode: oneOf(rt, "mode", storage.ModeRun, storage.ModeRun, storage.ModeReconcile),
		Lease: time.Minute, LeaseEnd: now.Add(oneOf(rt, "lease left", time.Minute, time.Minute, -time.Minute)), GrantedAt: now - 1000,
		Grants: 2, PrevGrant: now - 2000, CreatedAt: now - 3000,
		Open: rapid.Bool().Draw(rt, "open"), Bound: rapid.Bool().Draw(rt, "bound"),
		Fingerprint: h.Fingerprint,
	}
	for range rapid.IntRange(0, 8).Draw(rt, "ended") {
		r.Ended = append(r.Ended, newHolder("").Attempt)
	}
	if rapid.Bool().Draw(rt, "superseded") {
		r.Superseded = []storage.Fingerprint{{{Version: 1, Server: "old"}}}
	}
	r.RunFence, r.RunAttempt, r.RunEnd = r.Fence, r.Attempt, r.LeaseEnd
	r.Trace = oneOf(rt, "trace", nil, []byte("trace"))
	r.Pins = oneOf(rt, "pins", int32(0), 0, 0, 0, 1)
	r.Reopened = oneOf(rt, "reopened", nil, nil, nil, nil, &storage.Outcome{Code: 5, Status: []byte{8, 5}})
	if rapid.IntRange(0, 5).Draw(rt, "redacted") == 0 {
		r.Redacted, r.RedactedID, r.Identity.Caller, r.Identity.Key = true, h.id, "", ""
	}
	h.fence = fence
	if r.Mode == storage.ModeReconcile {
		r.RunFence, r.RunAttempt, r.RunEnd = fence-1, newHolder("").Attempt, now-500
		if rapid.Bool().Draw(rt, "ask as the last that ran") {
			h.Attempt, h.fence = r.RunAttempt, r.RunFence
		}
	}
	return r
}

// drawCall makes one call of the holder or of a stranger.
func drawCall(t *testing.T, rt *rapid.T, s *Store, h *holder, row *storage.Record) (storage.Request, storage.Answer, error) {
	t.Helper()
	switch oneOf(rt, "stranger", 0, 0, 0, 0, 1, 2) {
	case 1:
		h.again()
	case 2:
		h.fence++
	}
	terms := storage.Terms{Retention: oneOf(rt, "retention", 0, time.Hour), Tombstone: oneOf(rt, "tombstone", 0, time.Hour)}
	failure := &storage.Outcome{Code: 9, Status: []byte{8, 9}}
	switch oneOf(rt, "call", "complete", "extend", "release", "reserve") {
	case "complete":
		q := storage.Complete{
			Attempt: h.Attempt, Fence: h.fence, Terms: terms, Retention: oneOf(rt, "longer", 0, 2*time.Hour),
			Outcome: oneOf(rt, "outcome", failure, &storage.Outcome{HasResponse: true, Response: []byte("r")}),
		}
		ans, err := s.Complete(t.Context(), h.id, q)
		return q, ans, err
	case "extend":
		q := storage.Extend{Attempt: h.Attempt, Fence: h.fence, Lease: oneOf(rt, "lease", 0, time.Second, time.Hour)}
		ans, err := s.Extend(t.Context(), h.id, q)
		return q, ans, err
	case "release":
		q := storage.Release{
			Identity: h.Identity, Attempt: h.Attempt, Fence: h.fence, Terms: terms, Note: oneOf(rt, "note", "", "n\x00"),
			Effect: oneOf(rt, "effect", storage.EffectNone, storage.EffectNone, storage.EffectRepeatable, storage.EffectUnknown),
			Error:  oneOf(rt, "error", nil, failure), Hold: oneOf(rt, "hold", 0, time.Minute),
		}
		ans, err := s.Release(t.Context(), q)
		return q, ans, err
	}
	q := h.Reserve
	q.Trace = oneOf(rt, "traced", nil, []byte("another"))
	q.OnUnknown = oneOf(rt, "on unknown", storage.OnUnknownRefuse, storage.OnUnknownReconcile, storage.OnUnknownRerun)
	ans, err := s.Reserve(t.Context(), q)
	return q, ans, err
}
