package cockroach

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// holder is a key with its grant.
type holder struct {
	storage.Reserve
	id    storage.RecordID
	fence storage.Fence
	entry storage.EntryID
	token storage.ClaimToken
	park  storage.AttemptID
}

func newHolder(key string) *holder {
	h := &holder{}
	_, _ = rand.Read(h.Attempt[:])
	h.Identity = storage.Identity{Namespace: "faults", Operation: "op", Caller: "c", Key: key}
	h.id = h.Identity.RecordID()
	h.Fingerprint = storage.Fingerprint{{Version: 1, Server: "f"}}
	h.Lease = storage.MaxLease
	return h
}

func (h *holder) reserve(ctx context.Context, s *Store) (storage.Answer, error) {
	ans, err := s.Reserve(ctx, h.Reserve)
	if err == nil && ans.Verdict == storage.VerdictGranted {
		h.fence = ans.Record.Fence
	}
	return ans, err
}

func (h *holder) complete(ctx context.Context, s *Store) (storage.Answer, error) {
	return s.Complete(ctx, h.id, storage.Complete{Attempt: h.Attempt, Fence: h.fence, Outcome: &storage.Outcome{HasResponse: true, Response: []byte("r")}})
}

func (h *holder) extend(ctx context.Context, s *Store) (storage.Answer, error) {
	return s.Extend(ctx, h.id, storage.Extend{Attempt: h.Attempt, Fence: h.fence, Lease: storage.MaxLease})
}

func (h *holder) release(ctx context.Context, s *Store) (storage.Answer, error) {
	return s.Release(ctx, storage.Release{Identity: h.Identity, Attempt: h.Attempt, Fence: h.fence, Effect: storage.EffectNone})
}

func (h *holder) giveBack(ctx context.Context, s *Store) (storage.Answer, error) {
	return s.Release(ctx, storage.Release{Identity: h.Identity, Attempt: h.Attempt, Effect: storage.EffectNone})
}

func (h *holder) parks(ctx context.Context, s *Store) (storage.Answer, error) {
	q := h.letter()
	if h.park == (storage.AttemptID{}) {
		h.park = q.Entry.ParkID
	}
	q.Entry.ParkID = h.park
	ans, err := s.Park(ctx, q)
	if err == nil {
		h.entry = ans.Entry.ID
	}
	return ans, err
}

func (h *holder) claims(ctx context.Context, s *Store) (storage.Answer, error) {
	if h.token == (storage.ClaimToken{}) {
		h.token = newToken()
	}
	return s.Claim(ctx, storage.Claim{Entry: h.entry, Token: h.token, Lease: storage.MaxClaim})
}

func (h *holder) settles(ctx context.Context, s *Store) (storage.Answer, error) {
	return s.Settle(ctx, storage.Settle{Entry: h.entry, Token: h.token, Result: storage.ResultAlreadyDone})
}

// replays reserves under the claim, as somebody else.
func (h *holder) replays(ctx context.Context, s *Store) (storage.Answer, error) {
	q := h.Reserve
	q.Identity.Caller = "replayer"
	q.Claim = &storage.ReplayClaim{Entry: h.entry, Token: h.token}
	ans, err := s.Reserve(ctx, q)
	if err == nil && ans.Verdict == storage.VerdictGranted {
		h.fence = ans.Record.Fence
	}
	return ans, err
}

// again gives the holder a new attempt.
func (h *holder) again() *holder {
	next := newHolder(h.Identity.Key)
	h.Attempt = next.Attempt
	return h
}

// faultyCall is a call, the statements it sends, and what holds after it.
type faultyCall struct {
	name       string
	prepare    func(t *testing.T, s *Store, h *holder)
	call       func(*holder, context.Context, *Store) (storage.Answer, error)
	statements []string
	verdict    storage.Verdict
	state      storage.State
	grants     int64
	entry      storage.EntryState // of a call about an entry
}

func granted(t *testing.T, s *Store, h *holder) {
	t.Helper()
	ans, err := h.reserve(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, storage.VerdictGranted, ans.Verdict)
}

func released(t *testing.T, s *Store, h *holder) {
	t.Helper()
	granted(t, s, h)
	_, err := h.release(t.Context(), s)
	require.NoError(t, err)
	h.again()
}

func faultyCalls() []faultyCall {
	fresh := func(*testing.T, *Store, *holder) {}
	return []faultyCall{
		{"reserve", fresh, (*holder).reserve, []string{"dedupd reserve"}, storage.VerdictGranted, storage.StateReserved, 1, 0},
		{"complete", granted, (*holder).complete, []string{"dedupd complete"}, storage.VerdictOK, storage.StateCompleted, 1, 0},
		{"extend", granted, (*holder).extend, []string{"dedupd extend"}, storage.VerdictOK, storage.StateReserved, 1, 0},
		{"release", granted, (*holder).release, []string{"dedupd release"}, storage.VerdictOK, storage.StateReleased, 1, 0},
		{
			"reserve in a transaction", released, (*holder).reserve,
			[]string{"dedupd reserve", "dedupd read", "begin", "FOR UPDATE", "SET\n  state", " commit "},
			storage.VerdictGranted, storage.StateReserved, 2, 0,
		},
		{
			"give back", fresh, (*holder).giveBack,
			[]string{"begin", "FOR UPDATE", "INSERT", " commit "},
			storage.VerdictOK, storage.StateAbsent, 0, 0,
		},
		{
			"park", fresh, (*holder).parks,
			[]string{"dedupd count", "begin", "FOR UPDATE", "INSERT INTO dedup_records", "INSERT INTO dedup_dead_letters", " commit "},
			storage.VerdictOK, storage.StateAbsent, 0, storage.EntryParked,
		},
		{
			"claim", parkedAs, (*holder).claims,
			[]string{"dedupd entry", "begin", "FOR UPDATE", "UPDATE dedup_dead_letters", " commit "},
			storage.VerdictOK, storage.StateAbsent, 0, storage.EntryReplaying,
		},
		{
			"settle", claimed, (*holder).settles,
			[]string{"dedupd entry", "begin", "FOR UPDATE", "UPDATE dedup_records", "UPDATE dedup_dead_letters", " commit "},
			storage.VerdictOK, storage.StateAbsent, 0, storage.EntryResolved,
		},
		{
			"replay", claimed, (*holder).replays,
			[]string{"dedupd entry", "begin", "FOR UPDATE", "UPDATE dedup_records", "UPDATE dedup_dead_letters", " commit "},
			storage.VerdictGranted, storage.StateReserved, 1, storage.EntryReplaying,
		},
		{
			"complete a pinned record", replaying, (*holder).complete,
			[]string{"dedupd complete", "dedupd read", "begin", "FOR UPDATE", "SET\n  state", "UPDATE dedup_dead_letters", " commit "},
			storage.VerdictOK, storage.StateCompleted, 1, storage.EntryResolved,
		},
	}
}

func parkedAs(t *testing.T, s *Store, h *holder) {
	t.Helper()
	_, err := h.parks(t.Context(), s)
	require.NoError(t, err)
}

func claimed(t *testing.T, s *Store, h *holder) {
	t.Helper()
	parkedAs(t, s, h)
	_, err := h.claims(t.Context(), s)
	require.NoError(t, err)
}

func replaying(t *testing.T, s *Store, h *holder) {
	t.Helper()
	claimed(t, s, h)
	_, err := h.replays(t.Context(), s)
	require.NoError(t, err)
}

// B02: whatever goes wrong at whatever statement, once, the caller gets the answer
// and the database holds what was answered.
func TestAFaultAtAnyStatementIsHealedWithinTheCall(t *testing.T) {
	t.Parallel()
	direct := open(t, migrated(t))
	for _, c := range faultyCalls() {
		if direct.db.cockroach && slices.Contains(c.statements, "begin") {
			c.statements = append(c.statements, "RELEASE") // which commits there
		}
		for _, statement := range c.statements {
			for _, e := range effects {
				t.Run(c.name+"/"+strings.TrimSpace(statement)+"/"+e.name, func(t *testing.T) {
					t.Parallel()
					proxy := newFaultProxy(t, direct.pool.Config().ConnString())
					s := open(t, Options{URL: proxy.url, MaxConns: 2})
					h := newHolder(t.Name())
					c.prepare(t, direct, h)

					proxy.inject(statement, e, 1)
					ans, err := c.call(h, t.Context(), s)
					require.NoError(t, err)
					require.Equal(t, 1, proxy.hit(), "the fault was met")
					c.holds(t, direct, h, ans)
				})
			}
		}
	}
}

// holds checks what is stored against the answer, and what a repeat and a stranger get.
func (c faultyCall) holds(t *testing.T, s *Store, h *holder, ans storage.Answer) {
	t.Helper()
	require.Equal(t, c.verdict.String(), ans.Verdict.String())
	if c.entry != 0 {
		c.holdsEntry(t, s, h)
	}
	found, err := s.Lookup(t.Context(), h.id, storage.Lookup{})
	require.NoError(t, err)
	require.Equal(t, c.state.String(), found.State.String())
	if c.state == storage.StateAbsent && c.entry != 0 {
		return
	}
	if c.state == storage.StateAbsent {
		spent, err := h.reserve(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, storage.VerdictStaleHolder.String(), spent.Verdict.String(), "what was given back is never granted")
		return
	}
	require.Equal(t, c.grants, found.Record.Grants)
	require.Equal(t, ans.Record.Fence, found.Record.Fence)

	repeat, err := c.call(h, t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, c.verdict.String(), repeat.Verdict.String())
	require.Equal(t, ans.Record.Fence, repeat.Record.Fence, "a repeat is the same grant")

	if c.state == storage.StateReserved {
		other, err := newHolder(h.Identity.Key).reserve(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, storage.VerdictInProgress.String(), other.Verdict.String())
	}
}

// holdsEntry checks the entry, that the record's pins are its open entries, and that
// a repeat of the call changes nothing.
func (c faultyCall) holdsEntry(t *testing.T, s *Store, h *holder) {
	t.Helper()
	var pins int32
	var entries []*storage.DeadLetter
	look := func() {
		page, err := s.Entries(t.Context(), storage.ListEntries{Record: h.id, Limit: 10})
		require.NoError(t, err)
		entries = page.Entries
		require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT pins FROM dedup_records WHERE id = $1`, h.id[:]).Scan(&pins))
	}
	look()
	require.Len(t, entries, 1)
	require.Equal(t, c.entry.String(), entries[0].State.String())
	require.EqualValues(t, 1, entries[0].Count)
	require.LessOrEqual(t, entries[0].Replays, int64(1))
	require.Equal(t, entries[0].Open(), pins == 1)

	before := entries[0]
	repeat, err := c.call(h, t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, c.verdict.String(), repeat.Verdict.String())
	look()
	require.Equal(t, []*storage.DeadLetter{before}, entries)
}

// A stall ends with the call's time; asking again then gives the same grant,
// whether the stalled statement was executed or not.
func TestAStallEndsWithTheCallsTimeAndAskingAgainIsSafe(t *testing.T) {
	t.Parallel()
	direct := open(t, migrated(t))
	for _, c := range faultyCalls() {
		for _, statement := range c.statements {
			t.Run(c.name+"/"+strings.TrimSpace(statement), func(t *testing.T) {
				t.Parallel()
				proxy := newFaultProxy(t, direct.pool.Config().ConnString())
				s := open(t, Options{URL: proxy.url, MaxConns: 2, CallTimeout: time.Second})
				h := newHolder(t.Name())
				c.prepare(t, direct, h)

				proxy.inject(statement, effect{stall: true}, 1)
				_, err := c.call(h, t.Context(), s)
				require.ErrorIs(t, err, storage.ErrUnavailable)
				ans, err := c.call(h, t.Context(), s)
				if err != nil { // the stalled session may hold the row as long again
					ans, err = c.call(h, t.Context(), s)
				}
				require.NoError(t, err)
				c.holds(t, direct, h, ans)
				proxy.end() // or the driver waits for the stalled session when the store closes
			})
		}
	}
}

// B03: contention that does not end is told as unavailable, after a bounded number
// of tries; the code never reaches the caller as anything else.
func TestFaultsThatDoNotEndAreToldAsUnavailable(t *testing.T) {
	t.Parallel()
	direct := open(t, migrated(t))
	for _, e := range effects {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			proxy := newFaultProxy(t, direct.pool.Config().ConnString())
			s := open(t, Options{URL: proxy.url, MaxConns: 2})
			for _, c := range faultyCalls() {
				h := newHolder(t.Name() + c.name)
				c.prepare(t, direct, h)
				proxy.inject(c.statements[0], e, 1000)
				_, err := c.call(h, t.Context(), s)
				require.ErrorIs(t, err, storage.ErrUnavailable)
				require.Equal(t, maxTries, proxy.hit())

				proxy.inject("", effect{}, 0)
				ans, err := c.call(h, t.Context(), s)
				require.NoError(t, err)
				c.holds(t, direct, h, ans)
			}
		})
	}
}

// B02: while connections fail the call is tried again, nothing was sent.
func TestAConnectionThatCannotBeMadeIsTriedAgain(t *testing.T) {
	t.Parallel()
	proxy := newFaultProxy(t, migrated(t).URL)
	s := open(t, Options{URL: proxy.url, MaxConns: 2})
	s.pool.Reset() // the next call must connect
	proxy.refuse(2)
	ans, err := newHolder("k").reserve(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, storage.VerdictGranted, ans.Verdict)
}

// B03: the waits between tries end with the caller, however many tries are left.
func TestACallerThatGivesUpEndsTheTries(t *testing.T) {
	t.Parallel()
	proxy := newFaultProxy(t, migrated(t).URL)
	s := open(t, Options{URL: proxy.url, MaxConns: 2})
	ctx, cancel := context.WithCancel(t.Context())
	s.observer.Retry = func(string) { cancel() }
	proxy.inject("dedupd reserve", effects[0], 1000)
	_, err := newHolder("k").reserve(ctx, s)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	require.Equal(t, 1, proxy.hit(), "nothing is granted to nobody")
}

// migrated is a database with an empty schema.
func migrated(t *testing.T) Options {
	t.Helper()
	opts := Options{URL: server.Schema(t)}
	_, err := Migrate(t.Context(), opts)
	require.NoError(t, err)
	return opts
}
