package server

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// withKey returns req for another key of the test's caller.
func withKey[R interface{ GetIdentity() *dedupv1.Identity }](req R, key string) R {
	req.GetIdentity().Key = []byte(key)
	return req
}

// remnants fills a store with everything that an erasure may meet.
func (b *bundle) remnants(t *testing.T) {
	t.Helper()
	reserve := func(n byte, key string) int64 {
		res, err := b.dedup.Reserve(t.Context(), withKey(reserveReq(n), key))
		require.NoError(t, err)
		return res.GetGranted().GetFence()
	}
	release := func(n byte, key string, fence int64, effect dedupv1.Effect) {
		_, err := b.dedup.Release(t.Context(), withKey(releaseReq(n, fence, effect), key))
		require.NoError(t, err)
	}
	discard := func(id []byte) {
		res, err := b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: [][]byte{id}, Note: "n"})
		require.NoError(t, err)
		require.Empty(t, res.GetAnswers()[0].GetMessage())
	}

	b.completed(t, "customer-7", "past its time")
	discard(b.park(t, "past its time").GetEntryId())
	b.store.advance(storage.DefaultRetention + storage.DefaultTombstone + time.Hour)

	b.completed(t, "customer-7", "done")
	b.park(t, "done")
	reserve(1, "live")
	b.park(t, "live")
	reserve(1, "lapsed")
	b.store.advance(time.Hour)
	reserve(1, "held")
	release(1, "unknown", reserve(1, "unknown"), dedupv1.Effect_EFFECT_UNKNOWN) // its effect may still land
	release(1, "free", reserve(1, "free"), dedupv1.Effect_EFFECT_NONE)
	release(1, "a mark", 0, dedupv1.Effect_EFFECT_NONE)
	b.park(t, "a stub")
	for _, key := range []string{"often", "done"} { // closed ones stay for a while
		id := storage.EntryID(b.park(t, key).GetEntryId())
		discard(id[:])
		for n := range erasePage {
			e := *b.store.entries[id]
			binary.BigEndian.PutUint16(e.ID[len(e.ID)-2:], uint16(n))
			b.store.entries[e.ID] = &e
		}
	}
	b.park(t, "often")
	_, err := b.dedup.Complete(t.Context(), withKey(completeReq(2, 1, "a conflict with nothing"), "conflict"))
	require.Equal(t, codes.FailedPrecondition, status.Code(err), err)
	_, err = b.admin.Redact(t.Context(), &dedupv1.RedactRequest{Note: "n", Selector: &dedupv1.RecordSelector{
		Choice: &dedupv1.RecordSelector_Identity{Identity: withKey(reserveReq(1), "done").GetIdentity()},
	}})
	require.NoError(t, err)
	b.park(t, "done") // told again, of a record that is redacted
	b.completed(t, "customer-8", "of somebody else")
}

// What a dry run counts is what is erased, whatever a list shows of it.
func TestADryRunCountsWhatIsErased(t *testing.T) {
	t.Parallel()
	whole := &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Namespace{Namespace: testNamespace}}
	selectors := map[string]*dedupv1.RecordSelector{"caller": callerSelector("customer-7"), "namespace": whole}
	for _, key := range []string{"past its time", "done", "live", "lapsed", "unknown", "free", "a mark", "a stub", "often", "conflict", "never"} {
		selectors[key] = &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Identity{Identity: withKey(reserveReq(1), key).GetIdentity()}}
	}
	for what, selector := range selectors {
		for _, forget := range []bool{false, true} {
			t.Run(fmt.Sprint(what, ", forget ", forget), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.remnants(t)
				rows, entries := len(b.store.rows), len(b.store.entries)
				counted := b.erases(t, forget, selector, true)
				require.Equal(t, counted, b.erases(t, forget, selector, true), "counting changes nothing")
				did := b.erases(t, forget, selector, false)
				require.Equal(t, counted, did)
				if forget {
					require.EqualValues(t, rows-len(b.store.rows), did.records)
					require.EqualValues(t, entries-len(b.store.entries), did.deadLetters)
				}
				require.Equal(t, erased{live: did.live}, b.erases(t, forget, selector, true), "nothing is left but what runs")
			})
		}
	}
}
