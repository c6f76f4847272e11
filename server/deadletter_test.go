package server

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// failure is a serialised status.
func failure(t *testing.T, code codes.Code, message string) []byte {
	t.Helper()
	b, err := proto.Marshal(&spb.Status{Code: int32(code), Message: message})
	require.NoError(t, err)
	return b
}

// parkReq parks the call of one key; n names the Park.
func parkReq(t *testing.T, key string, n byte) *dedupv1.ParkRequest {
	t.Helper()
	id := identity()
	id.Key = []byte(key)
	return &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: id},
		ParkId: attempt(n), Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED,
		Target: "payments:443", Method: testOperation,
		Request:      &dedupv1.Response{TypeUrl: "type.googleapis.com/x.Charge", Value: []byte("charge 5")},
		Metadata:     []*dedupv1.MetadataEntry{{Key: "x-tenant", Value: []byte("t")}},
		Fingerprints: prints("request"),
		Status:       failure(t, codes.Unavailable, "shard 7 is down"),
		Attempts:     []*dedupv1.CallAttempt{{At: timestamppb.New(time.Unix(1000, 0)), Code: int32(codes.Unavailable)}},
	}
}

// park parks a call and returns its entry.
func (b *bundle) park(t *testing.T, key string) *dedupv1.DeadLetter {
	t.Helper()
	res, err := b.dead.Park(t.Context(), parkReq(t, key, 1))
	require.NoError(t, err)
	return res.GetEntry()
}

// claim claims one entry, which must be had.
func (b *bundle) claim(t *testing.T, id []byte, token byte) *dedupv1.DeadLetter {
	t.Helper()
	res, err := b.dead.Claim(t.Context(), &dedupv1.ClaimRequest{Token: attempt(token), EntryIds: [][]byte{id}})
	require.NoError(t, err)
	require.Len(t, res.GetEntries(), 1, "%v", res.GetRefusals())
	return res.GetEntries()[0]
}

func (b *bundle) entry(t *testing.T, id []byte) *dedupv1.DeadLetter {
	t.Helper()
	res, err := b.dead.Get(t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
	require.NoError(t, err)
	return res.GetEntry()
}

func TestAParkedCallIsToldAsItWasParked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := parkReq(t, secretKey, 1)
	req.Note = "gave up"
	res, err := b.dead.Park(t.Context(), req)
	require.NoError(t, err)
	require.True(t, res.GetCreated())
	want := &dedupv1.DeadLetter{
		Kind: req.GetKind(), State: dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, Identity: identity(),
		Target: "payments:443", Method: testOperation, RequestSize: 8, HasRequest: true, Metadata: req.GetMetadata(),
		Status: req.GetStatus(), Code: int32(codes.Unavailable), Signature: "shard … is down", Attempts: req.GetAttempts(),
		Count: 1, Note: "gave up", RecordId: res.GetEntry().GetRecordId(),
	}
	same := cmp.Options{protocmp.Transform(), protocmp.IgnoreFields(want, "entry_id", "parked_at", "last_parked_at", "age")}
	require.Empty(t, cmp.Diff(want, res.GetEntry(), same))
	require.NotNil(t, res.GetEntry().GetParkedAt())

	b.store.advance(time.Minute)
	want.Request, want.RecordState = req.GetRequest(), dedupv1.State_STATE_ABSENT
	got := b.entry(t, res.GetEntry().GetEntryId())
	require.Empty(t, cmp.Diff(want, got, same))
	require.GreaterOrEqual(t, got.GetAge().AsDuration(), time.Minute)

	_, err = b.dead.Get(t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: attempt(9)})
	d := requireRefused(t, err, codes.NotFound, dedupv1.Reason_REASON_ENTRY_NOT_FOUND)
	require.Equal(t, hex.EncodeToString(attempt(9)), d.info.GetMetadata()["entry"])
	require.NotContains(t, b.logs.String(), secretKey)
}

// G03: the same key exhausted again is one entry, and every park moves the counter.
func TestG03ARepeatRaisesTheCountAndEveryParkIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	parked := func(entry string) float64 {
		return b.metric(t, "dedupd_dead_letters_parked_total", "namespace", testNamespace, "kind", "exhausted", "entry", entry)
	}
	first := b.park(t, "a")
	for range 2 { // the reply was lost
		res, err := b.dead.Park(t.Context(), parkReq(t, "a", 1))
		require.NoError(t, err)
		require.True(t, res.GetCreated())
		require.EqualValues(t, 1, res.GetEntry().GetCount())
	}
	require.InDelta(t, 1, parked("created"), 0)
	res, err := b.dead.Park(t.Context(), parkReq(t, "a", 2))
	require.NoError(t, err)
	require.False(t, res.GetCreated())
	require.Equal(t, first.GetEntryId(), res.GetEntry().GetEntryId())
	require.EqualValues(t, 2, res.GetEntry().GetCount())
	require.InDelta(t, 1, parked("repeated"), 0)
	for n := range 3 {
		b.park(t, fmt.Sprint("other", n))
		require.InDelta(t, 2+n, parked("created"), 0)
	}
}

// G03: at the cap new entries are refused and counted; what is kept stays.
func TestG03AtTheCapParkIsRefusedAndNothingIsDropped(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.EntryCap = 2 })
	first := b.park(t, "a")
	b.park(t, "b")
	_, err := b.dead.Park(t.Context(), parkReq(t, "c", 1))
	d := requireRefused(t, err, codes.ResourceExhausted, dedupv1.Reason_REASON_QUOTA_EXCEEDED)
	require.Positive(t, d.retry.GetRetryDelay().AsDuration())
	require.InDelta(t, 1, b.metric(t, "dedupd_dead_letters_refused_total", "namespace", testNamespace), 0)
	_, err = b.dead.Park(t.Context(), parkReq(t, "a", 2))
	require.NoError(t, err, "an open entry takes it in")
	require.EqualValues(t, 2, b.entry(t, first.GetEntryId()).GetCount())
	_, err = b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: [][]byte{first.GetEntryId()}, Note: "n"})
	require.NoError(t, err)
	b.park(t, "c")
}

func TestARequestThatIsTooLargeIsLeftOutAndItsSizeTold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for size, kept := range map[int]bool{storage.MaxEntryRequest: true, storage.MaxEntryRequest + 1: false} {
		req := parkReq(t, fmt.Sprint("k", size), 1)
		req.Request.Value = make([]byte, size)
		res, err := b.dead.Park(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, kept, res.GetEntry().GetHasRequest())
		require.EqualValues(t, size, res.GetEntry().GetRequestSize())
		require.Equal(t, kept, b.entry(t, res.GetEntry().GetEntryId()).GetRequest() != nil)
	}
}

func TestParkByRecordIdNeedsARecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := storageIdentity().RecordID()
	req := parkReq(t, secretKey, 1)
	req.Record = &dedupv1.ParkRequest_RecordId{RecordId: id[:]}
	_, err := b.dead.Park(t.Context(), req)
	requireRefused(t, err, codes.NotFound, dedupv1.Reason_REASON_ENTRY_NOT_FOUND)
	b.grant(t, 1)
	res, err := b.dead.Park(t.Context(), req)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(identity(), res.GetEntry().GetIdentity(), protocmp.Transform()))
	require.EqualValues(t, 1, b.look(t).GetPins())
}

// The key is masked too where the entry names its record by its id only.
func TestAKeyThatOnlyTheStoreKnowsIsMasked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const secret = "a key of only words"
	id := identity()
	id.Key = []byte(secret)
	byID := func(n byte) *dedupv1.DeadLetter {
		req := parkReq(t, secret, n)
		req.Status = failure(t, codes.Internal, "refused a key of only words")
		record := storage.Identity{Namespace: testNamespace, Operation: testOperation, Caller: "customer-7", Key: secret}.RecordID()
		req.Record = &dedupv1.ParkRequest_RecordId{RecordId: record[:]}
		res, err := b.dead.Park(t.Context(), req)
		require.NoError(t, err)
		return res.GetEntry()
	}
	b.park(t, secret) // a stub
	require.Equal(t, "refused …", byID(2).GetSignature())
	reserve := reserveReq(1)
	reserve.Identity = id
	_, err := b.dedup.Reserve(t.Context(), reserve)
	require.NoError(t, err)
	require.Equal(t, "refused …", byID(3).GetSignature())

	b.store.advance(time.Hour)
	b.erases(t, false, &dedupv1.RecordSelector{Choice: &dedupv1.RecordSelector_Identity{Identity: id}}, false)
	require.Empty(t, byID(4).GetSignature(), "nobody knows what to mask")
}

func TestListsOfDeadLettersHoldEveryEntryOnceInBothOrders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		var ids []string
		for n := range 9 {
			b.store.advance(time.Second) // ids are in the order of parking
			ids = append(ids, string(b.park(t, fmt.Sprint("k", n)).GetEntryId()))
		}
		list := func(req *dedupv1.DeadLetterServiceListRequest) (got []string) {
			for {
				res, err := b.dead.List(t.Context(), req)
				require.NoError(t, err)
				for _, e := range res.GetEntries() {
					require.Nil(t, e.GetRequest())
					require.True(t, e.GetHasRequest())
					got = append(got, string(e.GetEntryId()))
				}
				if req.PageToken = res.GetNextPageToken(); len(req.GetPageToken()) == 0 {
					return got
				}
			}
		}
		require.Equal(t, ids, list(&dedupv1.DeadLetterServiceListRequest{PageSize: 2}))
		newest := list(&dedupv1.DeadLetterServiceListRequest{PageSize: 4, NewestFirst: true})
		require.Len(t, newest, 9)
		require.Equal(t, ids[8], newest[0])
		for name, c := range map[string]struct {
			filter *dedupv1.DeadLetterFilter
			want   int
		}{
			"namespace":  {&dedupv1.DeadLetterFilter{Namespace: "shipping"}, 0},
			"operation":  {&dedupv1.DeadLetterFilter{Operation: testOperation}, 9},
			"kind":       {&dedupv1.DeadLetterFilter{Kinds: []dedupv1.DeadLetterKind{dedupv1.DeadLetterKind_DEAD_LETTER_KIND_CONFLICT}}, 0},
			"state":      {&dedupv1.DeadLetterFilter{States: []dedupv1.DeadLetterState{dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED}}, 0},
			"code":       {&dedupv1.DeadLetterFilter{Codes: []int32{int32(codes.Unavailable)}}, 9},
			"signature":  {&dedupv1.DeadLetterFilter{Signature: "shard … is down"}, 9},
			"older than": {&dedupv1.DeadLetterFilter{OlderThan: durationpb.New(4*time.Second + time.Second/2)}, 4},
			"younger":    {&dedupv1.DeadLetterFilter{YoungerThan: durationpb.New(4*time.Second + time.Second/2)}, 5},
			"record":     {&dedupv1.DeadLetterFilter{RecordId: b.entry(t, []byte(ids[3])).GetRecordId()}, 1},
		} {
			require.Len(t, list(&dedupv1.DeadLetterServiceListRequest{Filter: c.filter}), c.want, name)
		}
	})
}

func TestDeadLettersAreGroupedByWhatFailedAndHow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		for n := range 5 {
			b.store.advance(time.Minute)
			req := parkReq(t, fmt.Sprint("key-number-", n), 1)
			req.Status = failure(t, codes.Unavailable, fmt.Sprintf("shard %d refused key-number-%d", n, n))
			if n == 0 {
				req.Status = failure(t, codes.Internal, "no disk")
			}
			_, err := b.dead.Park(t.Context(), req)
			require.NoError(t, err)
		}
		res, err := b.dead.Groups(t.Context(), &dedupv1.GroupsRequest{})
		require.NoError(t, err)
		require.Len(t, res.GetGroups(), 2)
		g := res.GetGroups()[0]
		require.Equal(t, "shard … refused …", g.GetSignature())
		require.EqualValues(t, 4, g.GetEntries())
		require.Equal(t, int32(codes.Unavailable), g.GetCode())
		require.Equal(t, 3*time.Minute, g.GetOldestAge().AsDuration())
		require.Zero(t, g.GetNewestAge().AsDuration())
		require.Equal(t, "no disk", b.entry(t, res.GetGroups()[1].GetSampleId()).GetSignature())
	})
}

func TestMalformedDeadLetterCallsAreRefusedWithTheirField(t *testing.T) {
	t.Parallel()
	list := func(change func(*dedupv1.DeadLetterServiceListRequest)) func(context.Context, *bundle) error {
		return func(ctx context.Context, b *bundle) error {
			req := &dedupv1.DeadLetterServiceListRequest{Filter: &dedupv1.DeadLetterFilter{}}
			change(req)
			_, err := b.dead.List(ctx, req)
			return err
		}
	}
	park := func(change func(*dedupv1.ParkRequest)) func(context.Context, *bundle) error {
		return func(ctx context.Context, b *bundle) error {
			req := parkReq(t, "a", 1)
			change(req)
			_, err := b.dead.Park(ctx, req)
			return err
		}
	}
	for name, c := range map[string]struct {
		field string
		call  func(context.Context, *bundle) error
	}{
		"token of another list":       {"page_token", list(func(r *dedupv1.DeadLetterServiceListRequest) { r.PageToken = []byte("x") })},
		"token of another order":      {"page_token", list(func(r *dedupv1.DeadLetterServiceListRequest) { r.PageToken = entryPageToken(true, storage.EntryID{1}) })},
		"record id":                   {"filter.record_id", list(func(r *dedupv1.DeadLetterServiceListRequest) { r.Filter.RecordId = []byte("x") })},
		"status":                      {"status", park(func(r *dedupv1.ParkRequest) { r.Status = []byte{0xff} })},
		"metadata of one caller":      {"metadata[0]", park(func(r *dedupv1.ParkRequest) { r.Metadata[0].Key = "authorization" })},
		"kind that only dedupd parks": {"kind", park(func(r *dedupv1.ParkRequest) { r.Kind = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_CONFLICT })},
		"park id":                     {"park_id", park(func(r *dedupv1.ParkRequest) { r.ParkId = nil })},
		"no entries": {"entry_ids", func(ctx context.Context, b *bundle) error {
			_, err := b.dead.Requeue(ctx, &dedupv1.RequeueRequest{Note: "n"})
			return err
		}},
		"replay": {"replay.token", func(ctx context.Context, b *bundle) error {
			req := reserveReq(1)
			req.Replay = &dedupv1.ReplayClaim{EntryId: attempt(1)}
			_, err := b.dedup.Reserve(ctx, req)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			d := requireRefused(t, c.call(t.Context(), b), codes.InvalidArgument, dedupv1.Reason_REASON_INPUT_INVALID)
			require.Equal(t, c.field, d.bad.GetFieldViolations()[0].GetField())
			require.Empty(t, b.store.asked, "refused before any store call")
		})
	}
}

// The enums of the proto and of storage have the same numbers and names.
func TestDeadLetterEnumsAreThoseOfStorage(t *testing.T) {
	t.Parallel()
	for n, name := range dedupv1.DeadLetterKind_name {
		if n > 0 {
			require.Equal(t, name, "DEAD_LETTER_KIND_"+upper(kindFrom(dedupv1.DeadLetterKind(n))))
		}
	}
	for n, name := range dedupv1.DeadLetterState_name {
		if n > 0 {
			require.Equal(t, name, "DEAD_LETTER_STATE_"+upper(entryStateFrom(dedupv1.DeadLetterState(n))))
		}
	}
	require.Equal(t, storage.ResultReplayed, resultFrom(dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED))
	require.Equal(t, storage.ResultAlreadyDone, resultFrom(dedupv1.ReplayResult_REPLAY_RESULT_ALREADY_DONE))
	require.Equal(t, storage.ResultSuperseded, resultFrom(dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED))
	require.Equal(t, storage.ResultFailed, resultFrom(dedupv1.ReplayResult_REPLAY_RESULT_FAILED))
	require.Equal(t, storage.ResultGivenBack, resultFrom(dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK))
}

func upper(name interface{ String() string }) string { return strings.ToUpper(name.String()) }
