package server

import (
	"context"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

func TestWhatCannotBeClaimedIsToldEntryByEntry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	entry := map[string][]byte{"free": b.park(t, "free").GetEntryId(), "absent": attempt(9)}
	bare := parkReq(t, "bare", 1)
	bare.Request = nil
	res, err := b.dead.Park(t.Context(), bare)
	require.NoError(t, err)
	entry["bare"] = res.GetEntry().GetEntryId()
	for _, name := range []string{"held", "gone", secretKey} {
		entry[name] = b.park(t, name).GetEntryId()
	}
	b.claim(t, entry["held"], 7)
	_, err = b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: [][]byte{entry["gone"]}, Note: "n"})
	require.NoError(t, err)
	b.grant(t, 1)

	req := &dedupv1.ClaimRequest{Token: attempt(1)}
	for _, id := range entry {
		req.EntryIds = append(req.EntryIds, id)
	}
	claimed, err := b.dead.Claim(t.Context(), req)
	require.NoError(t, err)
	require.Len(t, claimed.GetEntries(), 1)
	require.Equal(t, entry["free"], claimed.GetEntries()[0].GetEntryId())
	require.Positive(t, claimed.GetEntries()[0].GetClaimLeft().AsDuration())
	want := map[string]struct {
		reason dedupv1.Reason
		words  string
	}{
		"absent":  {dedupv1.Reason_REASON_ENTRY_NOT_FOUND, "no such dead letter"},
		"bare":    {dedupv1.Reason_REASON_ENTRY_CHANGED, "no request is kept"},
		"held":    {dedupv1.Reason_REASON_ENTRY_CHANGED, "another replay has claimed it for"},
		"gone":    {dedupv1.Reason_REASON_ENTRY_CHANGED, "was discarded"},
		secretKey: {dedupv1.Reason_REASON_IN_PROGRESS, "a run of the key is going on"},
	}
	require.Len(t, claimed.GetRefusals(), len(want))
	for name, w := range want {
		for _, r := range claimed.GetRefusals() {
			if string(r.GetEntryId()) == string(entry[name]) {
				require.Equal(t, w.reason, r.GetReason(), name)
				require.Contains(t, r.GetMessage(), w.words)
			}
		}
	}
	require.NotContains(t, b.logs.String(), "msg=claim", "a replayer of its owner is no operator")
}

func TestAnEntryOlderThanTheRetentionIsNotClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.park(t, "old")
	b.store.advance(storage.DefaultRetention + time.Minute)
	res, err := b.dead.Claim(t.Context(), &dedupv1.ClaimRequest{Token: attempt(1), EntryIds: [][]byte{e.GetEntryId()}})
	require.NoError(t, err)
	require.Len(t, res.GetRefusals(), 1)
	require.Equal(t, dedupv1.Reason_REASON_KEY_EXPIRED, res.GetRefusals()[0].GetReason())
	require.Contains(t, res.GetRefusals()[0].GetMessage(), "new key")
}

func TestAClaimByFilterTakesWhatOperatorsAskedForThenTheOldest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids [][]byte
	for n := range 6 {
		b.store.advance(time.Second)
		ids = append(ids, b.park(t, fmt.Sprint("k", n)).GetEntryId())
	}
	_, err := b.dead.Requeue(t.Context(), &dedupv1.RequeueRequest{EntryIds: [][]byte{ids[4]}, Note: "fixed"})
	require.NoError(t, err)
	claim := func(token byte, change ...func(*dedupv1.ClaimRequest)) (got [][]byte) {
		req := &dedupv1.ClaimRequest{Token: attempt(token), Limit: 2, Filter: &dedupv1.DeadLetterFilter{Namespace: testNamespace}}
		for _, c := range change {
			c(req)
		}
		res, err := b.dead.Claim(t.Context(), req)
		require.NoError(t, err)
		require.Empty(t, res.GetRefusals())
		for _, e := range res.GetEntries() {
			require.NotNil(t, e.GetRequest())
			got = append(got, e.GetEntryId())
		}
		return got
	}
	requested := func(r *dedupv1.ClaimRequest) { r.RequestedOnly = true }
	elsewhere := func(r *dedupv1.ClaimRequest) { r.Filter.Namespace = "shipping" }
	require.Empty(t, claim(1, elsewhere))
	require.Equal(t, [][]byte{ids[4], ids[0]}, claim(1))
	require.Equal(t, [][]byte{ids[0], ids[4]}, claim(1), "a repeat is told what it holds, and takes nothing more")
	require.Empty(t, claim(2, requested))
	require.Equal(t, [][]byte{ids[1], ids[2]}, claim(3))

	b.store.hook(func(_ context.Context, call string) error { // somebody else is faster
		if call == "Claim" {
			b.store.hook(nil)
			_, err := b.store.Claim(t.Context(), storage.Claim{Entry: storage.EntryID(ids[3]), Token: storage.ClaimToken{9}})
			return err
		}
		return nil
	})
	require.Equal(t, [][]byte{ids[5]}, claim(4))

	_, err = b.dead.Settle(t.Context(), &dedupv1.SettleRequest{
		EntryId: ids[5], Token: attempt(4), Result: dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK, NotBefore: durationpb.New(10 * time.Second),
	})
	require.NoError(t, err)
	require.Empty(t, claim(5), "told to wait")
	b.store.advance(11 * time.Second)
	require.Equal(t, [][]byte{ids[5]}, claim(6))
}

func TestAFailedReplayParksTheEntryAgainAndTellsWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.park(t, secretKey)
	b.claim(t, e.GetEntryId(), 1)
	settle := &dedupv1.SettleRequest{
		EntryId: e.GetEntryId(), Token: attempt(1), Result: dedupv1.ReplayResult_REPLAY_RESULT_FAILED,
		Status: failure(t, codes.NotFound, "no card for "+secretKey),
	}
	for range 2 { // the reply was lost
		res, err := b.dead.Settle(t.Context(), settle)
		require.NoError(t, err)
		require.Equal(t, dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, res.GetEntry().GetState())
		require.Equal(t, e.GetSignature(), res.GetEntry().GetSignature(), "it stays in its group")
		require.Equal(t, int32(codes.Unavailable), res.GetEntry().GetCode())
		require.Equal(t, e.GetStatus(), res.GetEntry().GetStatus())
		require.Equal(t, settle.GetStatus(), res.GetEntry().GetReplayStatus())
		require.EqualValues(t, 1, res.GetEntry().GetReplays())
	}
	settle.Token = attempt(2)
	_, err := b.dead.Settle(t.Context(), settle)
	d := requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_ENTRY_CHANGED)
	require.Equal(t, "parked", d.info.GetMetadata()["state"])
	settle.EntryId = attempt(9)
	_, err = b.dead.Settle(t.Context(), settle)
	requireRefused(t, err, codes.NotFound, dedupv1.Reason_REASON_ENTRY_NOT_FOUND)
}

func TestRequeueAndDiscardAnswerEachEntryAndAreAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a, c, held := b.park(t, secretKey).GetEntryId(), b.park(t, "c").GetEntryId(), b.park(t, "held").GetEntryId()
	b.claim(t, held, 1)
	requeued, err := b.dead.Requeue(t.Context(), &dedupv1.RequeueRequest{EntryIds: [][]byte{a, attempt(9), held}, Note: "callee is back"})
	require.NoError(t, err)
	require.Len(t, requeued.GetAnswers(), 3)
	require.True(t, requeued.GetAnswers()[0].GetEntry().GetRequested())
	require.Zero(t, requeued.GetAnswers()[0].GetReason())
	require.Equal(t, dedupv1.Reason_REASON_ENTRY_NOT_FOUND, requeued.GetAnswers()[1].GetReason())
	require.Equal(t, dedupv1.Reason_REASON_ENTRY_CHANGED, requeued.GetAnswers()[2].GetReason())
	require.Contains(t, requeued.GetAnswers()[2].GetMessage(), "another replay has claimed it")

	b.store.hook(func(_ context.Context, call string) error {
		if call == "Discard" && b.store.calls("Discard") == 1 {
			return errBroken
		}
		return nil
	})
	discarded, err := b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: [][]byte{a, c}, Note: "refunded by hand"})
	require.NoError(t, err)
	require.Equal(t, dedupv1.Reason_REASON_STORE_UNAVAILABLE, discarded.GetAnswers()[0].GetReason())
	require.NotContains(t, discarded.GetAnswers()[0].GetMessage(), "sda1")
	require.Equal(t, dedupv1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED, discarded.GetAnswers()[1].GetEntry().GetState())

	operator := &dedupv1.ClaimRequest{Token: attempt(3), EntryIds: [][]byte{a}, Operator: true}
	_, err = b.dead.Claim(t.Context(), operator)
	require.NoError(t, err)
	edited := parkReq(t, secretKey+"-2", 2)
	edited.ParentId, edited.Note = a, "edited"
	_, err = b.dead.Park(t.Context(), edited)
	require.NoError(t, err)
	for id, token := range map[string]byte{string(a): 3, string(held): 1} {
		_, err = b.dead.Settle(t.Context(), &dedupv1.SettleRequest{
			EntryId: []byte(id), Token: attempt(token), Result: dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED,
		})
		require.NoError(t, err)
	}
	log := b.logs.String()
	for _, line := range []string{
		`msg=requeue audit.entry=` + hex.EncodeToString(a), `audit.note="callee is back"`, "audit.answer=not_found", "audit.answer=entry_changed",
		`msg=discard audit.entry=` + hex.EncodeToString(c), `audit.note="refunded by hand" audit.answer=ok`, "audit.answer=error",
		`msg=claim audit.entry=` + hex.EncodeToString(a), "audit.kind=exhausted", "audit.from=in-process",
		`msg=edit audit.entry=` + hex.EncodeToString(a), "audit.into=", "audit.note=edited",
		`msg=settle audit.entry=` + hex.EncodeToString(a), "audit.result=superseded",
	} {
		require.Contains(t, log, line)
	}
	require.NotContains(t, log, "msg=settle audit.entry="+hex.EncodeToString(held), "its owner's replayer is no operator")
	require.NotContains(t, log, secretKey)
	require.NotContains(t, log, "customer-7")
}

func TestDrainingTurnsNewDeadLettersAwayAndLetsReplaysEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.park(t, secretKey)
	b.claim(t, e.GetEntryId(), 1)
	b.gate.drain()
	_, err := b.dead.Park(t.Context(), parkReq(t, "b", 1))
	requireRefused(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
	_, err = b.dead.Claim(t.Context(), &dedupv1.ClaimRequest{Token: attempt(2)})
	requireRefused(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
	_, err = b.dead.Settle(t.Context(), &dedupv1.SettleRequest{
		EntryId: e.GetEntryId(), Token: attempt(1), Result: dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK,
	})
	require.NoError(t, err)
	b.entry(t, e.GetEntryId())
}

func TestAnAnswerIsBoundedInSize(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids [][]byte
	for n := range 5 {
		b.store.advance(time.Second)
		req := parkReq(t, fmt.Sprint("k", n), 1)
		req.Request.Value = make([]byte, storage.MaxEntryRequest)
		req.Status = failure(t, codes.Internal, string(make([]byte, 60<<10)))
		for i := range 64 {
			req.Metadata = append(req.Metadata[:i], &dedupv1.MetadataEntry{Key: "x-bin", Value: make([]byte, 8192)})
		}
		res, err := b.dead.Park(t.Context(), req)
		require.NoError(t, err)
		ids = append(ids, res.GetEntry().GetEntryId())
	}
	list, err := b.dead.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{})
	require.NoError(t, err)
	require.NotEmpty(t, list.GetEntries())
	claimed, err := b.dead.Claim(t.Context(), &dedupv1.ClaimRequest{Token: attempt(1), EntryIds: append(ids, ids[0])})
	require.NoError(t, err)
	require.Len(t, claimed.GetEntries(), 1)
	require.Len(t, claimed.GetRefusals(), 4)
	require.Equal(t, dedupv1.Reason_REASON_QUOTA_EXCEEDED, claimed.GetRefusals()[0].GetReason())
	claimed, err = b.dead.Claim(t.Context(), &dedupv1.ClaimRequest{Token: attempt(2), Limit: 5})
	require.NoError(t, err)
	require.Len(t, claimed.GetEntries(), 1, "the others are left for the next claim")

	for n := range 15 {
		req := parkReq(t, fmt.Sprint("more", n), 1)
		for i := range 64 {
			req.Metadata = append(req.Metadata[:i], &dedupv1.MetadataEntry{Key: "x-bin", Value: make([]byte, 8192)})
		}
		res, err := b.dead.Park(t.Context(), req)
		require.NoError(t, err)
		ids = append(ids, res.GetEntry().GetEntryId())
	}
	seen := 0
	for req := (&dedupv1.DeadLetterServiceListRequest{}); seen == 0 || len(req.GetPageToken()) > 0; {
		page, err := b.dead.List(t.Context(), req)
		require.NoError(t, err)
		seen += len(page.GetEntries())
		req.PageToken = page.GetNextPageToken()
	}
	require.Equal(t, 20, seen)
	discarded, err := b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: ids, Note: "n"})
	require.NoError(t, err)
	require.Len(t, discarded.GetAnswers(), 20)
	require.NotNil(t, discarded.GetAnswers()[2].GetEntry())
	require.Nil(t, discarded.GetAnswers()[19].GetEntry())
	require.Zero(t, discarded.GetAnswers()[19].GetReason())
}
