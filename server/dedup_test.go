package server

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

func TestARepeatGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	require.Equal(t, dedupv1.Mode_MODE_RUN, g.GetMode())
	require.Positive(t, g.GetFence())
	require.EqualValues(t, storage.DefaultMaxOutcome, g.GetMaxOutcomeBytes())
	require.Zero(t, g.GetEarlierGrants())
	require.Nil(t, g.GetLastGrantAge())

	done := completeReq(1, g.GetFence(), "first")
	done.Outcome.Headers = []*dedupv1.MetadataEntry{{Key: "x-resource", Value: []byte("7")}}
	done.Outcome.Trailers = []*dedupv1.MetadataEntry{{Key: "x-raw-bin", Value: []byte{0, 255}}}
	res, err := b.dedup.Complete(t.Context(), done)
	require.NoError(t, err)
	require.Equal(t, dedupv1.State_STATE_COMPLETED, res.GetState())
	require.Greater(t, res.GetEnds().GetAbsentIn().AsDuration(), res.GetEnds().GetExpiresIn().AsDuration())

	again, err := b.dedup.Reserve(t.Context(), reserveReq(2))
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(done.GetOutcome(), again.GetCompleted().GetOutcome(), protocmp.Transform()))
	require.False(t, again.GetCompleted().GetKept())

	// The same Complete once more is OK, another outcome is not.
	_, err = b.dedup.Complete(t.Context(), done)
	require.NoError(t, err)
	_, err = b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "second"))
	requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_STALE_HOLDER)
}

func TestA08AGrantWithoutALeaseGetsTheDefaultAndIsNotTakenOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	require.InDelta(t, storage.DefaultLease.Seconds(), g.GetLeaseLeft().AsDuration().Seconds(), 5)
	b.store.advance(storage.DefaultLease - 10*time.Second)
	res, err := b.dedup.Reserve(t.Context(), reserveReq(2))
	require.NoError(t, err)
	require.NotNil(t, res.GetInProgress())
	require.LessOrEqual(t, res.GetInProgress().GetRetryAfter().AsDuration(), time.Second)
	require.Positive(t, res.GetInProgress().GetLeaseLeft().AsDuration())

	ext, err := b.dedup.Extend(t.Context(), &dedupv1.ExtendRequest{Identity: identity(), AttemptId: attempt(1), Fence: g.GetFence()})
	require.NoError(t, err)
	require.Greater(t, ext.GetLeaseLeft().AsDuration(), 25*time.Second)
}

func TestA11AnOlderHolderNeverOverwrites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.grant(t, 1)
	b.store.advance(time.Hour)
	rerun := reserveReq(2)
	rerun.OnUnknown = dedupv1.OnUnknown_ON_UNKNOWN_RERUN
	res, err := b.dedup.Reserve(t.Context(), rerun)
	require.NoError(t, err)
	g := res.GetGranted()
	require.Greater(t, g.GetFence(), old.GetFence())
	require.EqualValues(t, 1, g.GetEarlierGrants())
	require.GreaterOrEqual(t, g.GetLastGrantAge().AsDuration(), time.Hour)

	for range 2 { // before and after the second holder's Complete
		_, err = b.dedup.Complete(t.Context(), completeReq(1, old.GetFence(), "old"))
		requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_STALE_HOLDER)
		_, err = b.dedup.Complete(t.Context(), completeReq(2, g.GetFence(), "new"))
		require.NoError(t, err)
	}
	res, err = b.dedup.Reserve(t.Context(), reserveReq(3))
	require.NoError(t, err)
	require.Equal(t, "new", string(res.GetCompleted().GetOutcome().GetResponse().GetValue()))

	require.InDelta(t, 2, b.metric(t, "dedupd_conflicts_total", "operation", testOperation), 0)
	require.Equal(t, 2, strings.Count(b.logs.String(), "level=ERROR msg=\"conflict:"))
	require.Contains(t, b.logs.String(), "refused_hash=")
	require.NotContains(t, b.logs.String(), secretKey)
}

func TestB01AGrantLostInAnAmbiguousWriteComesBackToItsOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lost := 1
	b.store.after = func(string) error {
		if lost--; lost >= 0 {
			return errDown
		}
		return nil
	}
	first := b.grant(t, 1) // asked again inside
	require.Len(t, b.store.rows, 1)
	require.Equal(t, first.GetFence(), b.grant(t, 1).GetFence())
	res, err := b.dedup.Reserve(t.Context(), reserveReq(2))
	require.NoError(t, err)
	require.NotNil(t, res.GetInProgress())
}

func TestD04StatusBytesComeBackByteForByte(t *testing.T) {
	t.Parallel()
	b := setup(t)
	known, err := anypb.New(&errdetails.ErrorInfo{Reason: "CARD_DECLINED"})
	require.NoError(t, err)
	// A known type with a field that this build does not know, and a type that
	// it does not know at all, in an order and form no encoder would choose.
	known.Value = protowire.AppendVarint(protowire.AppendTag(known.GetValue(), 999, protowire.VarintType), 5)
	raw, err := proto.Marshal(&spb.Status{Code: int32(codes.NotFound), Message: "no such card", Details: []*anypb.Any{
		{TypeUrl: "type.googleapis.com/never.Linked", Value: []byte{0xff, 0x00, 0x80}}, known, {TypeUrl: "odd"},
	}})
	require.NoError(t, err)
	raw = append(protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1), raw...)

	g := b.grant(t, 1)
	_, err = b.dedup.Complete(t.Context(), &dedupv1.CompleteRequest{
		Identity: identity(), AttemptId: attempt(1), Fence: g.GetFence(), Outcome: &dedupv1.Outcome{Status: raw},
	})
	require.NoError(t, err)
	res, err := b.dedup.Reserve(t.Context(), reserveReq(2))
	require.NoError(t, err)
	require.Equal(t, raw, res.GetCompleted().GetOutcome().GetStatus())
	require.Nil(t, res.GetCompleted().GetOutcome().GetResult())
	require.EqualValues(t, codes.NotFound, b.store.rows[storageIdentity().RecordID()].Outcome.Code)
}

func storageIdentity() storage.Identity {
	id, _ := identityOf(identity())
	return id
}

func TestAnEmptyResponseIsNotNoResponse(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]*dedupv1.Outcome{
		"empty response": {Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{}}},
		"no response":    {},
		"omitted": {Result: &dedupv1.Outcome_Omitted{Omitted: &dedupv1.OmittedResponse{
			Size: 5 << 20, Sha256: make([]byte, 32), TypeUrl: "x",
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			g := b.grant(t, 1)
			_, err := b.dedup.Complete(t.Context(), &dedupv1.CompleteRequest{
				Identity: identity(), AttemptId: attempt(1), Fence: g.GetFence(), Outcome: outcome,
			})
			require.NoError(t, err)
			res, err := b.dedup.Lookup(t.Context(), lookupReq(0))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(outcome, res.GetCompleted().GetOutcome(), protocmp.Transform()))
		})
	}
}

func lookupReq(wait time.Duration) *dedupv1.LookupRequest {
	return &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_Identity{Identity: identity()}, Fingerprints: prints("request"), Wait: durationpb.New(wait),
	}
}

func TestAKeptErrorAnswersForItsHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	raw, err := proto.Marshal(&spb.Status{Code: int32(codes.InvalidArgument)})
	require.NoError(t, err)
	req := releaseReq(1, g.GetFence(), dedupv1.Effect_EFFECT_NONE)
	req.Error, req.Hold, req.Note = &dedupv1.Outcome{Status: raw}, durationpb.New(10*time.Second), "declined"
	rel, err := b.dedup.Release(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, dedupv1.State_STATE_RELEASED, rel.GetState())

	res, err := b.dedup.Reserve(t.Context(), reserveReq(2))
	require.NoError(t, err)
	require.True(t, res.GetCompleted().GetKept())
	require.Equal(t, raw, res.GetCompleted().GetOutcome().GetStatus())
	require.LessOrEqual(t, res.GetCompleted().GetEnds().GetExpiresIn().AsDuration(), 10*time.Second)
	b.store.advance(11 * time.Second)
	b.grant(t, 3)
}

func TestReconcileFindsOutBeforeItRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.grant(t, 1)
	b.store.advance(storage.DefaultLease + 5*time.Second)
	req := reserveReq(2)
	req.OnUnknown, req.Basis = dedupv1.OnUnknown_ON_UNKNOWN_RECONCILE, dedupv1.Basis_BASIS_BOUNDED
	res, err := b.dedup.Reserve(t.Context(), req)
	require.NoError(t, err)
	g := res.GetGranted()
	require.Equal(t, dedupv1.Mode_MODE_RECONCILE, g.GetMode())
	require.InDelta(t, 5, g.GetLastRunEndedAge().AsDuration().Seconds(), 3)

	_, err = b.dedup.Release(t.Context(), releaseReq(2, g.GetFence(), dedupv1.Effect_EFFECT_NONE))
	requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_NOT_RECONCILED)
	begun, err := b.dedup.BeginRun(t.Context(), &dedupv1.BeginRunRequest{Identity: identity(), AttemptId: attempt(2), Fence: g.GetFence()})
	require.NoError(t, err)
	require.Positive(t, begun.GetLeaseLeft().AsDuration())
	_, err = b.dedup.Release(t.Context(), releaseReq(2, g.GetFence(), dedupv1.Effect_EFFECT_NONE))
	require.NoError(t, err)
}

func TestACallerThatNeverReadItsGrantGivesItBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.grant(t, 1)
	res, err := b.dedup.Release(t.Context(), releaseReq(1, 0, dedupv1.Effect_EFFECT_NONE))
	require.NoError(t, err)
	require.Equal(t, dedupv1.State_STATE_RELEASED, res.GetState())
	_, err = b.dedup.Reserve(t.Context(), reserveReq(1))
	requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_STALE_HOLDER)
	b.grant(t, 2)
}

func TestALateCompletionIsTakenAndCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	_, err := b.dedup.Release(t.Context(), releaseReq(1, g.GetFence(), dedupv1.Effect_EFFECT_NONE))
	require.NoError(t, err)
	_, err = b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "late"))
	require.NoError(t, err)
	require.InDelta(t, 1, b.metric(t, "dedupd_late_completions_total"), 0)
}

func TestLookupTellsTheStateAndTheOutcomeOnlyToItsRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	look := func(fingerprint string) (*dedupv1.LookupResponse, error) {
		req := lookupReq(0)
		req.Fingerprints = nil
		if fingerprint != "" {
			req.Fingerprints = prints(fingerprint)
		}
		return b.dedup.Lookup(t.Context(), req)
	}
	res, err := look("")
	require.NoError(t, err)
	require.Equal(t, dedupv1.State_STATE_ABSENT, res.GetRecord().GetState())
	require.Empty(t, cmp.Diff(identity(), res.GetRecord().GetIdentity(), protocmp.Transform()))

	g := b.grant(t, 1)
	res, err = look("request")
	require.NoError(t, err)
	require.Equal(t, dedupv1.State_STATE_RESERVED, res.GetRecord().GetState())
	require.Equal(t, g.GetFence(), res.GetRecord().GetFence())
	require.Nil(t, res.GetRecord().GetEnds())
	require.Len(t, res.GetRecord().GetVersion(), 8)

	_, err = b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "first"))
	require.NoError(t, err)
	res, err = look("")
	require.NoError(t, err)
	require.Nil(t, res.GetCompleted())
	require.NotNil(t, res.GetRecord().GetEnds())
	_, err = look("another request")
	requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
	byID, err := b.dedup.Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_RecordId{RecordId: res.GetRecord().GetRecordId()}, Fingerprints: prints("request"),
	})
	require.NoError(t, err)
	require.Equal(t, "first", string(byID.GetCompleted().GetOutcome().GetResponse().GetValue()))
}

func TestTheTombstoneMayBeNone(t *testing.T) {
	t.Parallel()
	for name, tombstone := range map[string]*time.Duration{"none": new(time.Duration), "default": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *Config) { c.Tombstone, c.Retention = tombstone, time.Hour })
			g := b.grant(t, 1)
			_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "x"))
			require.NoError(t, err)
			b.store.advance(2 * time.Hour)
			_, err = b.dedup.Reserve(t.Context(), reserveReq(2))
			if tombstone != nil {
				require.NoError(t, err)
				return
			}
			requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_EXPIRED)
		})
	}
}

func TestNewRefusesSettingsOutOfTheirLimits(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"no store":           {},
		"short retention":    {Store: newFakeStore(), Retention: time.Second},
		"negative tombstone": {Store: newFakeStore(), Tombstone: new(-time.Second)},
		"large outcome":      {Store: newFakeStore(), MaxOutcome: storage.CeilMaxOutcome + 1},
		"negative drain":     {Store: newFakeStore(), DrainTimeout: -1},
		"negative sweep":     {Store: newFakeStore(), SweepEvery: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := New(cfg)
			require.Error(t, err)
		})
	}
	b := setup(t)
	_, err := New(Config{Store: b.store, Registry: b.reg})
	require.ErrorContains(t, err, "registry of its own")
	require.Error(t, errors.Unwrap(err))
}
