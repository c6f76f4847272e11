package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// completed stores an outcome under a key of a caller.
func (b *bundle) completed(t *testing.T, caller, key string) {
	t.Helper()
	req := reserveReq(1)
	req.Identity.Caller, req.Identity.Key = []byte(caller), []byte(key)
	res, err := b.dedup.Reserve(t.Context(), req)
	require.NoError(t, err)
	done := completeReq(1, res.GetGranted().GetFence(), "personal")
	done.Identity = req.GetIdentity()
	_, err = b.dedup.Complete(t.Context(), done)
	require.NoError(t, err)
}

func callerSelector(caller string) *dedupv1.RecordSelector {
	return &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Caller{Caller: &dedupv1.CallerSelector{
		Namespace: testNamespace, Caller: []byte(caller),
	}}}
}

func oneSelector() *dedupv1.RecordSelector {
	return &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Identity{Identity: identity()}}
}

// erases runs an erasure to its end and adds up what it did.
func (b *bundle) erases(t *testing.T, forget bool, s *dedupv1.RecordSelector, dryRun bool) (did erased) {
	t.Helper()
	var token []byte
	for {
		var res interface {
			GetRecords() int64
			GetDeadLetters() int64
			GetLive() int64
			GetNextPageToken() []byte
		}
		var err error
		if forget {
			res, err = b.admin.Forget(t.Context(), &dedupv1.ForgetRequest{Selector: s, Note: "asked to", PageToken: token, DryRun: dryRun})
		} else {
			res, err = b.admin.Redact(t.Context(), &dedupv1.RedactRequest{Selector: s, Note: "asked to", PageToken: token, DryRun: dryRun})
		}
		require.NoError(t, err)
		did.records += res.GetRecords()
		did.deadLetters += res.GetDeadLetters()
		did.live += res.GetLive()
		if token = res.GetNextPageToken(); len(token) == 0 {
			return did
		}
	}
}

func TestARedactedRecordStillRecognizesItsRepeats(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.completed(t, "customer-7", secretKey)
	e := b.park(t, secretKey)
	require.Equal(t, erased{records: 1, deadLetters: 1}, b.erases(t, false, oneSelector(), false))

	info := b.look(t)
	require.True(t, info.GetRedacted())
	require.Empty(t, info.GetIdentity().GetKey())
	require.Empty(t, info.GetIdentity().GetCaller())
	require.Equal(t, dedupv1.State_STATE_COMPLETED, info.GetState())
	entry := b.entry(t, e.GetEntryId())
	require.Nil(t, entry.GetRequest())
	require.Empty(t, entry.GetIdentity().GetKey())
	res, err := b.dedup.Reserve(t.Context(), reserveReq(2))
	require.NoError(t, err)
	require.NotNil(t, res.GetCompleted().GetOutcome().GetOmitted(), "done, and what it answered is gone")
	require.Empty(t, res.GetCompleted().GetOutcome().GetResponse().GetValue())

	list, err := b.admin.ListRecords(t.Context(), &dedupv1.ListRecordsRequest{})
	require.NoError(t, err)
	id := storageIdentity().RecordID()
	require.Equal(t, id[:], list.GetRecords()[0].GetRecordId(), "its id is still that of the key")
	require.Equal(t, erased{records: 1, deadLetters: 1}, b.erases(t, true, oneSelector(), false))
	require.Zero(t, b.store.size())
	b.grant(t, 3)
}

func TestNothingIsErasedOnALiveLease(t *testing.T) {
	t.Parallel()
	for _, forget := range []bool{false, true} {
		b := setup(t)
		b.grant(t, 1)
		for _, dry := range []bool{true, false} {
			require.Equal(t, erased{live: 1}, b.erases(t, forget, oneSelector(), dry))
			require.Equal(t, erased{live: 1}, b.erases(t, forget, callerSelector("customer-7"), dry))
		}
		require.Equal(t, secretKey, string(b.look(t).GetIdentity().GetKey()))
	}
}

// A person's data goes by caller, page by page, dead letters without a record too.
func TestEverythingOfACallerIsErasedAndNothingOfOthers(t *testing.T) {
	t.Parallel()
	const n = 450 // some pages
	for name, forget := range map[string]bool{"redact": false, "forget": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			for i := range n {
				b.store.advance(time.Microsecond)
				b.completed(t, []string{"customer-7", "customer-8"}[i%2], fmt.Sprint("key-", i))
			}
			for i := range 3 {
				b.park(t, fmt.Sprint("key-", 2*i))         // of a record
				b.park(t, fmt.Sprint("never-granted-", i)) // of none
			}
			want := erased{records: n/2 + 3, deadLetters: 6} // three stubs
			for _, dry := range []bool{true, true, false} {
				require.Equal(t, want, b.erases(t, forget, callerSelector("customer-7"), dry))
			}
			for _, rec := range b.store.rows {
				require.NotEqual(t, "customer-7", rec.Identity.Caller)
			}
			for _, e := range b.store.entries {
				require.Empty(t, e.Identity.Caller)
				require.Empty(t, e.Request)
			}
			list, err := b.admin.ListRecords(t.Context(), &dedupv1.ListRecordsRequest{Caller: []byte("customer-8"), PageSize: 1000})
			require.NoError(t, err)
			require.Len(t, list.GetRecords(), n/2)
			list, err = b.admin.ListRecords(t.Context(), &dedupv1.ListRecordsRequest{Key: []byte("key-1")})
			require.NoError(t, err)
			require.Len(t, list.GetRecords(), 1)

			require.Contains(t, b.logs.String(), "msg="+name+" audit.selector=caller audit.namespace="+testNamespace)
			require.Contains(t, b.logs.String(), `audit.note="asked to" audit.answer=ok`)
			require.NotContains(t, b.logs.String(), "customer-7")

			whole := &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Namespace{Namespace: testNamespace}}
			b.erases(t, true, whole, false)
			require.Zero(t, b.store.size())
			require.Empty(t, b.store.entries)
		})
	}
}

func TestAnErasureThatIsMalformedOrFailsIsRefusedAndAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for field, req := range map[string]*dedupv1.ForgetRequest{
		"selector.choice": {Selector: &dedupv1.RecordSelector{}, Note: "n"},
		"note":            {Selector: oneSelector()},
		"page_token":      {Selector: callerSelector("c"), Note: "n", PageToken: []byte{eraseRecords, 1}},
		"identity.operation": {Selector: &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Identity{
			Identity: &dedupv1.Identity{Namespace: "n", Operation: "a\nb", Key: []byte("k")},
		}}, Note: "n"},
	} {
		_, err := b.admin.Forget(t.Context(), req)
		d := requireRefused(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_INPUT_INVALID)
		require.Equal(t, field, d.bad.GetFieldViolations()[0].GetField())
	}
	_, err := b.admin.Forget(t.Context(), &dedupv1.ForgetRequest{Selector: oneSelector(), Note: "n", PageToken: []byte("x")})
	requireRefused(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_INPUT_INVALID)
	b.store.fail(errBroken)
	_, err = b.admin.Forget(t.Context(), &dedupv1.ForgetRequest{Selector: oneSelector(), Note: "n"})
	requireRefused(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
	require.Contains(t, b.logs.String(), "audit.record="+storageIdentity().RecordID().Short())
	require.Contains(t, b.logs.String(), "audit.answer=error")
}

// A mark or a row that is not swept yet still tells of a person.
func TestRowsPastTheirTimeAreErasedToo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.dedup.Release(t.Context(), releaseReq(1, 0, dedupv1.Effect_EFFECT_NONE)) // leaves a mark
	require.NoError(t, err)
	b.completed(t, "customer-7", "old")
	b.store.advance(storage.DefaultRetention + storage.DefaultTombstone + time.Hour)
	require.Equal(t, 2, b.store.size())
	b.erases(t, true, callerSelector("customer-7"), false)
	require.Zero(t, b.store.size())
}
