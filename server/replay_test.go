package server

import (
	"context"
	"encoding/hex"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// replayReq reserves the test's key under a claim, as somebody else.
func replayReq(entry []byte, token, n byte) *dedupv1.ReserveRequest {
	req := reserveReq(n)
	req.Identity.Caller = []byte("replayer")
	req.Replay = &dedupv1.ReplayClaim{EntryId: entry, Token: attempt(token)}
	return req
}

func TestAReplayRunsUnderTheOriginalCallersRecordAndResolvesTheEntry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.park(t, secretKey)
	require.Equal(t, "charge 5", string(b.claim(t, e.GetEntryId(), 1).GetRequest().GetValue()))
	res, err := b.dedup.Reserve(t.Context(), replayReq(e.GetEntryId(), 1, 1))
	require.NoError(t, err)
	require.NotNil(t, res.GetGranted())
	require.Equal(t, e.GetRecordId(), res.GetRecordId())
	require.Empty(t, cmp.Diff(identity(), res.GetReplayed(), protocmp.Transform()))

	second, err := b.dedup.Reserve(t.Context(), replayReq(e.GetEntryId(), 1, 2))
	require.NoError(t, err)
	require.NotNil(t, second.GetInProgress(), "two replayers at once: one run")

	done := completeReq(1, res.GetGranted().GetFence(), "charged")
	done.Identity = res.GetReplayed()
	_, err = b.dedup.Complete(t.Context(), done)
	require.NoError(t, err)
	got := b.entry(t, e.GetEntryId())
	require.Equal(t, dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED, got.GetState())
	require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED, got.GetResult())
	require.NotNil(t, got.GetClosedAt())
	settled, err := b.dead.Settle(t.Context(), &dedupv1.SettleRequest{
		EntryId: e.GetEntryId(), Token: attempt(1), Result: dedupv1.ReplayResult_REPLAY_RESULT_FAILED,
	})
	require.NoError(t, err, "what the record says wins")
	require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED, settled.GetEntry().GetResult())

	again, err := b.dedup.Reserve(t.Context(), reserveReq(3))
	require.NoError(t, err)
	require.Equal(t, "charged", string(again.GetCompleted().GetOutcome().GetResponse().GetValue()))
}

func TestAClaimThatDoesNotHoldIsKeyInvalidAndGrantsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.park(t, secretKey)
	b.claim(t, e.GetEntryId(), 1)
	for name, change := range map[string]func(*dedupv1.ReserveRequest){
		"a forged token":    func(r *dedupv1.ReserveRequest) { r.Replay.Token = attempt(9) },
		"no such entry":     func(r *dedupv1.ReserveRequest) { r.Replay.EntryId = attempt(9) },
		"another key":       func(r *dedupv1.ReserveRequest) { r.Identity.Key = []byte("another") },
		"another namespace": func(r *dedupv1.ReserveRequest) { r.Identity.Namespace = "shipping" },
		"another operation": func(r *dedupv1.ReserveRequest) { r.Identity.Operation = "/x.Y/Z" },
	} {
		req := replayReq(e.GetEntryId(), 1, 1)
		change(req)
		_, err := b.dedup.Reserve(t.Context(), req)
		d := requireRefused(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		require.Equal(t, "replay", d.bad.GetFieldViolations()[0].GetField(), name)
	}
	b.store.advance(storage.DefaultClaim + time.Second)
	_, err := b.dedup.Reserve(t.Context(), replayReq(e.GetEntryId(), 1, 1))
	requireRefused(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
	require.Equal(t, dedupv1.State_STATE_ABSENT, b.entry(t, e.GetEntryId()).GetRecordState())
	require.InDelta(t, 6, b.metric(t, "dedupd_reserves_total", "verdict", "claim_invalid"), 0)
}

// G04: the record decides, and an unknown outcome tells which dead letter waits.
func TestG04AnUnknownOutcomeNamesItsDeadLetterAndASuccessResolvesIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	e := b.park(t, secretKey)
	b.store.advance(time.Hour)
	d := requireRefused(t, b.reserve(t, 2), codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
	require.Equal(t, hex.EncodeToString(e.GetEntryId()), d.info.GetMetadata()["entry"])
	_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "late"))
	require.NoError(t, err)
	got := b.entry(t, e.GetEntryId())
	require.Equal(t, dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED, got.GetState())
	require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED, got.GetResult())
}

func TestAReplayOfWorkThatWasDoneIsAnsweredFromTheRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.park(t, secretKey)
	b.claim(t, e.GetEntryId(), 1)
	g := b.grant(t, 1) // the caller's own retry
	_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "charged"))
	require.NoError(t, err)
	res, err := b.dedup.Reserve(t.Context(), replayReq(e.GetEntryId(), 1, 2))
	require.NoError(t, err)
	require.Equal(t, "charged", string(res.GetCompleted().GetOutcome().GetResponse().GetValue()))
	require.Empty(t, cmp.Diff(identity(), res.GetReplayed(), protocmp.Transform()))
}

func TestAHeldReplayIsWokenByTheOriginalCallersRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		e := b.park(t, secretKey)
		b.claim(t, e.GetEntryId(), 1)
		g := b.grant(t, 1)
		answered := make(chan *dedupv1.ReserveResponse, 1)
		began := time.Now()
		go func() {
			req := replayReq(e.GetEntryId(), 1, 2)
			req.Wait = durationpb.New(20 * time.Second)
			res, err := b.dedup.Reserve(context.WithoutCancel(t.Context()), req)
			if err != nil {
				t.Errorf("reserve: %v", err)
			}
			answered <- res
		}()
		synctest.Wait()
		require.Equal(t, 1, b.waiters.held())
		_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "charged"))
		require.NoError(t, err)
		res := <-answered
		require.NotNil(t, res.GetCompleted())
		require.Zero(t, time.Since(began))
		require.InDelta(t, 1, b.metric(t, "dedupd_waits_total"), 0)
	})
}

// The first run's trace is told to whoever gets its outcome.
func TestTheTraceOfARunIsToldWithItsOutcome(t *testing.T) {
	t.Parallel()
	const first = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const other = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
	b := setup(t)
	traced := func(tp string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "traceparent", tp)
	}
	res, err := b.dedup.Reserve(traced(first), reserveReq(1))
	require.NoError(t, err)
	require.Empty(t, res.GetTraceparent(), "its own run")
	require.Equal(t, first, b.look(t).GetTraceparent())

	b.store.advance(time.Hour)
	_, err = b.dedup.Reserve(traced(other), reserveReq(2))
	d := requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
	require.Equal(t, first, d.info.GetMetadata()["traceparent"])
	reconcile := reserveReq(3)
	reconcile.OnUnknown, reconcile.Basis = dedupv1.OnUnknown_ON_UNKNOWN_RECONCILE, dedupv1.Basis_BASIS_INBOX
	found, err := b.dedup.Reserve(traced(other), reconcile)
	require.NoError(t, err)
	require.Equal(t, first, found.GetTraceparent())

	_, err = b.dedup.Complete(t.Context(), completeReq(3, found.GetGranted().GetFence(), "x"))
	require.NoError(t, err)
	again, err := b.dedup.Reserve(traced(other), reserveReq(4))
	require.NoError(t, err)
	require.Equal(t, first, again.GetTraceparent())

	untraced := setup(t)
	for _, tp := range []string{"", "nonsense", "00-00000000000000000000000000000000-b7ad6b7169203331-01"} {
		untraced.store.advance(time.Minute)
		req := reserveReq(1)
		req.Identity.Key = []byte("k" + tp)
		_, err := untraced.dedup.Reserve(metadata.AppendToOutgoingContext(t.Context(), "traceparent", tp), req)
		require.NoError(t, err)
		look, err := untraced.dedup.Lookup(t.Context(), &dedupv1.LookupRequest{Record: &dedupv1.LookupRequest_Identity{Identity: req.GetIdentity()}})
		require.NoError(t, err)
		require.Empty(t, look.GetRecord().GetTraceparent())
	}
}

// D05: an error that was kept, or stored as final, is not the last word: a replay
// passes over the kept one, and an operator's opens the final one, once.
func TestD05AReplayPassesOverErrorsAndOnlyAnOperatorsOpensAFinalOne(t *testing.T) {
	t.Parallel()
	broken := func(t *testing.T) *dedupv1.Outcome {
		t.Helper()
		return &dedupv1.Outcome{Status: failure(t, codes.Internal, "the database was down")}
	}
	for name, c := range map[string]struct {
		final, operator, granted bool
	}{
		"kept, its owner's replayer":  {false, false, true},
		"final, its owner's replayer": {true, false, false},
		"final, an operator":          {true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			g := b.grant(t, 1)
			var err error
			if c.final {
				done := completeReq(1, g.GetFence(), "")
				done.Outcome = broken(t)
				_, err = b.dedup.Complete(t.Context(), done)
			} else {
				req := releaseReq(1, g.GetFence(), dedupv1.Effect_EFFECT_NONE)
				req.Error, req.Hold = broken(t), durationpb.New(10*time.Minute)
				_, err = b.dedup.Release(t.Context(), req)
			}
			require.NoError(t, err)
			e := b.park(t, secretKey)
			_, err = b.dead.Claim(t.Context(), &dedupv1.ClaimRequest{Token: attempt(1), EntryIds: [][]byte{e.GetEntryId()}, Operator: c.operator})
			require.NoError(t, err)
			again, err := b.dedup.Reserve(t.Context(), reserveReq(2))
			require.NoError(t, err)
			require.Equal(t, !c.final, again.GetCompleted().GetKept(), "who does not replay gets the error")
			res, err := b.dedup.Reserve(t.Context(), replayReq(e.GetEntryId(), 1, 3))
			require.NoError(t, err)
			require.Equal(t, c.granted, res.GetGranted() != nil)
			if !c.granted {
				return
			}
			done := completeReq(3, res.GetGranted().GetFence(), "charged")
			_, err = b.dedup.Complete(t.Context(), done)
			require.NoError(t, err)
			last, err := b.dedup.Reserve(t.Context(), reserveReq(4))
			require.NoError(t, err)
			require.Equal(t, "charged", string(last.GetCompleted().GetOutcome().GetResponse().GetValue()))
		})
	}
}

// A06: what nobody could reconcile is held, alerted and resolved by a person.
func TestA06AnUnreconciledRecordIsSettledByAnOperatorsVerdict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.grant(t, 1)
	b.store.advance(time.Hour)
	req := parkReq(t, secretKey, 1)
	req.Kind = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_UNRECONCILED
	res, err := b.dead.Park(t.Context(), req)
	require.NoError(t, err)
	requireRefused(t, b.reserve(t, 2), codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
	_, err = b.admin.Resolve(t.Context(), resolveReq(b.look(t).GetVersion()))
	require.NoError(t, err)
	got := b.entry(t, res.GetEntry().GetEntryId())
	require.Equal(t, dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED, got.GetState())
	require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED, got.GetResult())
	b.grant(t, 3)
}

// Whatever is kept, an answer stays below the largest message.
