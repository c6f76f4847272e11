package cockroach

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
)

// letter is a Park of an exhausted call on the holder's key.
func (h *holder) letter() storage.Park {
	return storage.Park{Entry: storage.DeadLetter{
		Kind: storage.EntryExhausted, Identity: h.Identity, ParkID: newHolder("").Attempt,
		HasRequest: true, Request: []byte("request"), RequestSize: 7, Fingerprint: h.Fingerprint, Code: 14, Signature: "s",
	}}
}

func newToken() (token storage.ClaimToken) {
	_, _ = rand.Read(token[:])
	return token
}

// fullEntry has no field that is zero.
func fullEntry(h *holder) *storage.DeadLetter {
	return &storage.DeadLetter{
		ID: storage.EntryID{1}, Kind: storage.EntryConflict, State: storage.EntryReplaying, Record: h.id, Identity: h.Identity, Pinned: true,
		Target: "dns:///pay\x00", Method: "/m", HasRequest: true, TypeURL: "t", Request: incompressible(5000), RequestSize: 5000,
		Metadata: []storage.MetadataEntry{{Key: "b-bin", Value: []byte{0, 1}}}, Fingerprint: h.Fingerprint,
		Code: -7, Status: []byte{8, 9}, Signature: "s\x00\xff", Attempts: []storage.EntryAttempt{{At: 1, Code: 14}, {At: -2, Code: -3}},
		ParkID: storage.AttemptID{2}, Count: 3, ParkedAt: 4, LastParkedAt: 5, Parent: storage.EntryID{6},
		Claim: storage.ClaimToken{7}, ClaimEnd: 8, ClaimFence: 9, ByOperator: true, Requested: true, NotBefore: 10, Replays: 11,
		Result: storage.ResultFailed, ReplayStatus: []byte{8, 3}, Note: "n\x00", ClosedAt: 12, DropAt: 13,
		Conflict: &storage.Conflict{RefusedFence: 1, RecordFence: 2, Success: true, RefusedHash: [32]byte{3}, RecordHash: [32]byte{4}, At: 5},
	}
}

func TestAnEntryComesBackAsItWas(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	h := newHolder("k")
	e := fullEntry(h)
	for _, v := range []reflect.Value{reflect.ValueOf(*e), reflect.ValueOf(*e.Conflict)} {
		for i := range v.NumField() {
			require.False(t, v.Field(i).IsZero(), "%s is not tested", v.Type().Field(i).Name)
		}
	}
	c := lockedCase{read: map[storage.EntryID]entry{}}
	write := func(e *storage.DeadLetter, read int64) error {
		return pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			if read > 0 {
				c.read[e.ID] = entry{e, read}
			}
			_, err := s.writeEntries(t.Context(), tx, h.id, c, storage.Change{Entries: []*storage.DeadLetter{e}})
			return err
		})
	}
	require.NoError(t, write(e, 0))
	got, err := s.Entry(t.Context(), e.ID)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(e, got.Entry))

	listed := *e
	listed.Request = nil
	page, err := s.Entries(t.Context(), storage.ListEntries{Limit: 1})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]*storage.DeadLetter{&listed}, page.Entries), "a listing reads no requests")

	empty := &storage.DeadLetter{ID: e.ID, Kind: e.Kind, State: storage.EntryParked, Record: h.id, Identity: h.Identity, ParkedAt: 1, LastParkedAt: 1}
	require.NoError(t, write(empty, 1))
	got, err = s.Entry(t.Context(), e.ID)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(empty, got.Entry, cmpopts.EquateEmpty()))
	require.ErrorIs(t, write(empty, 1), errChanged, "nothing is written over what was not read")
	again := *empty
	again.ID = storage.EntryID{2}
	require.ErrorIs(t, write(&again, 0), errChanged, "a record has one open entry of a kind")

	b := encodeDetail(e)
	require.ErrorIs(t, readDetail(append([]byte{formatV1 + 1}, b[1:]...), &storage.DeadLetter{}), errCorrupt)
	for i := range b {
		require.ErrorIs(t, readDetail(b[:i], &storage.DeadLetter{}), errCorrupt)
	}
	_, err = s.codec.readRequest([]byte{formatV1 + 1, 0})
	require.ErrorIs(t, err, errCorrupt)
	require.Less(t, len(s.codec.request(make([]byte, 1<<20))), 1<<12, "what shrinks is compressed")
}

// The database holds no more entries than the cap, whichever replica parks, while
// they take turns; a count is kept only while it may err by little.
func TestTheCapIsThatOfAllReplicasTogether(t *testing.T) {
	t.Parallel()
	opts := migrated(t)
	stores := []*Store{open(t, opts), open(t, opts)}
	const limit = 5
	park := func(i int, kind storage.EntryKind) storage.Answer {
		q := newHolder(fmt.Sprint(i)).letter()
		q.Terms.EntryCap, q.Entry.Kind = limit, kind
		ans, err := stores[i%2].Park(t.Context(), q)
		require.NoError(t, err)
		return ans
	}
	var last storage.EntryID
	for i := range limit {
		last = park(i, storage.EntryExhausted).Entry.ID
	}
	for i := limit; i < limit+4; i++ {
		require.Equal(t, storage.VerdictFull.String(), park(i, storage.EntryExhausted).Verdict.String())
		require.Equal(t, storage.VerdictFull.String(), park(i, storage.EntryUnreconciled).Verdict.String())
	}
	require.EqualValues(t, 2, park(0, storage.EntryExhausted).Entry.Count, "an open entry takes in what comes again")
	beyond := park(limit, storage.EntryOverdue)
	require.Equal(t, storage.VerdictOK.String(), beyond.Verdict.String(), "dedupd's own are parked beyond it")
	for _, id := range []storage.EntryID{last, beyond.Entry.ID} {
		_, err := stores[0].Discard(t.Context(), storage.Discard{Entry: id})
		require.NoError(t, err)
	}
	require.Equal(t, storage.VerdictOK.String(), park(limit+1, storage.EntryExhausted).Verdict.String())
	require.Equal(t, storage.VerdictFull.String(), park(limit+2, storage.EntryExhausted).Verdict.String())
}

func TestACountIsKeptForTenMicrosecondsAnEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var counts openCounts
		c := counts.of("n")
		_, ok := c.good()
		require.False(t, ok, "nothing was counted")
		counts.add(gain{"n", 1})
		require.False(t, c.enter(1000, false))
		c.set(1000)
		counts.add(gain{"n", 2})
		counts.add(gain{"n", -1})
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // inside a synctest bubble
		n, ok := c.good()
		require.True(t, ok)
		require.Equal(t, 1001, n)
		require.True(t, c.enter(1001+nearCap, false))
		require.False(t, c.enter(1001+nearCap, false), "near the cap they go one at a time")
		c.leave()
		require.True(t, c.enter(1001+nearCap, false))
		time.Sleep(time.Millisecond) //nolint:forbidigo // inside a synctest bubble
		_, ok = c.good()
		require.False(t, ok)
		for i := range 2 * maxCounted {
			counts.of(fmt.Sprint(i))
		}
		require.LessOrEqual(t, len(counts.counts), maxCounted)
	})
}

// However many replicas act on a few keys at once, a record's pins are its open
// entries, and no kind has two of them.
func TestPinsAreTheOpenEntriesHoweverManyActAtOnce(t *testing.T) {
	t.Parallel()
	opts := migrated(t)
	stores := []*Store{open(t, opts), open(t, opts), open(t, opts)}
	const keys, callers, each = 3, 12, 40
	var load sync.WaitGroup
	for i := range callers {
		load.Go(func() {
			rng := mathrand.New(mathrand.NewPCG(1, uint64(i)))
			for range each {
				h := newHolder(fmt.Sprint(rng.IntN(keys)))
				h.Lease = storage.MinLease
				if err := act(t.Context(), rng, stores[rng.IntN(len(stores))], h); err != nil {
					t.Error(err)
				}
			}
		})
	}
	load.Wait()
	for i := range keys {
		id := newHolder(fmt.Sprint(i)).id
		page, err := stores[0].Entries(t.Context(), storage.ListEntries{Record: id, Limit: 1000})
		require.NoError(t, err)
		open := map[storage.EntryKind]int32{}
		pins := int32(0)
		for _, e := range page.Entries {
			if e.Open() {
				open[e.Kind]++
				pins++
			}
		}
		for kind, n := range open {
			require.Equal(t, int32(1), n, kind)
		}
		var have int32
		require.NoError(t, stores[0].pool.QueryRow(t.Context(), `SELECT pins FROM dedup_records WHERE id = $1`, id[:]).Scan(&have))
		require.Equal(t, pins, have)
	}
}

// act makes one of the calls that change a record with its entries.
func act(ctx context.Context, rng *mathrand.Rand, s *Store, h *holder) error {
	switch rng.IntN(4) {
	case 0:
		if ans, err := h.reserve(ctx, s); err != nil || ans.Verdict != storage.VerdictGranted {
			return err
		}
		if rng.IntN(2) == 0 {
			_, err := h.release(ctx, s)
			return err
		}
		_, err := h.complete(ctx, s)
		return err
	case 1:
		q := h.letter()
		q.Entry.Kind = storage.EntryKind(1 + rng.IntN(3))
		_, err := s.Park(ctx, q)
		return err
	case 2: // a stranger's Complete may be a conflict
		_, err := s.Complete(ctx, h.id, storage.Complete{Identity: h.Identity, Attempt: h.Attempt, Fence: 1, Outcome: &storage.Outcome{}})
		return err
	}
	page, err := s.Entries(ctx, storage.ListEntries{Record: h.id, States: []storage.EntryState{storage.EntryParked}, Limit: 1})
	if err != nil || len(page.Entries) == 0 {
		return err
	}
	e, token := page.Entries[0].ID, newToken()
	if rng.IntN(2) == 0 {
		_, err := s.Discard(ctx, storage.Discard{Entry: e})
		return err
	}
	if _, err := s.Claim(ctx, storage.Claim{Entry: e, Token: token, Operator: true, Force: true}); err != nil {
		return err
	}
	result := []storage.EntryResult{storage.ResultFailed, storage.ResultAlreadyDone}[rng.IntN(2)]
	_, err = s.Settle(ctx, storage.Settle{Entry: e, Token: token, Result: result})
	return err
}

// A listing looks at a bounded number of rows a page and loses none, in either
// order, however few of them match.
func TestAListingOfFewAmongManyEntriesLosesNone(t *testing.T) {
	t.Parallel()
	s := open(t, migrated(t))
	_, err := s.pool.Exec(t.Context(), `INSERT INTO dedup_dead_letters (id, revision, record_id, namespace, operation, caller, key,
  kind, state, pinned, code, signature, parks, parked_at, last_parked_at, requested, has_request, detail)
SELECT decode(lpad(to_hex(i), 32, '0'), 'hex'), 1, decode(lpad(to_hex(i), 64, '0'), 'hex'), 'n', 'op' || i % 7000, '', '',
  1, 3, false, 0, '', 1, now(), now(), false, false, $1 FROM generate_series(1, 25000) AS i`, encodeDetail(&storage.DeadLetter{}))
	require.NoError(t, err)
	for _, newest := range []bool{false, true} {
		q := storage.ListEntries{Namespace: "n", Operation: "op77", Newest: newest, Limit: 2}
		var found []storage.EntryID
		pages := 0
		for {
			page, err := s.Entries(t.Context(), q)
			require.NoError(t, err)
			pages++
			for _, e := range page.Entries {
				found = append(found, e.ID)
			}
			if q.After = page.Next; q.After == (storage.EntryID{}) {
				break
			}
		}
		require.Len(t, found, 4)
		require.Equal(t, newest, found[0][14] > found[3][14])
		require.GreaterOrEqual(t, pages, 3)
	}
}
