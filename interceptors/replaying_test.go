package interceptors_test

import (
	"context"
	"encoding/hex"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// parked is a world with one dead letter of caller ada under the key k.
func parked(t *testing.T, s setup) (*world, *dedupv1.DeadLetter) {
	t.Helper()
	w, _, client := parking(t, s)
	w.handle = always(errBusy)
	_, err := client.Charge(t.Context(), order(), interceptors.WithKey("k"))
	require.Error(t, err)
	w.handle = nil
	all := w.entries(t)
	require.Len(t, all, 1)
	return w, all[0]
}

// claim takes an entry, and returns ctx with what its replay carries.
func (w *world) claim(ctx context.Context, t *testing.T, e *dedupv1.DeadLetter, lease time.Duration) context.Context {
	t.Helper()
	token := []byte("sixteen bytes...")
	resp, err := dedupv1.NewDeadLetterServiceClient(w.dedupd.Conn()).Claim(t.Context(), &dedupv1.ClaimRequest{
		Token: token, EntryIds: [][]byte{e.GetEntryId()}, Lease: durationpb.New(lease),
	})
	require.NoError(t, err)
	require.Len(t, resp.GetEntries(), 1, "%v", resp.GetRefusals())
	return replays(ctx, hex.EncodeToString(e.GetEntryId())+"."+hex.EncodeToString(token), "k")
}

func replays(ctx context.Context, claim, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, interceptors.HeaderReplay, claim, interceptors.HeaderKey, key)
}

func TestAReplayRunsUnderItsFirstCallersRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, e := parked(t, setup{})
		var by interceptors.Replay
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			by, _ = interceptors.FromReplay(ctx)
			return receipt(n), nil
		}
		resp, err := w.bare(t).Charge(w.claim(as(t.Context(), "operator"), t, e, time.Minute), order())
		require.NoError(t, err)
		require.Equal(t, "xxxx", resp.GetChargeId(), "the handler ran, after three failures")
		require.Equal(t, interceptors.Replay{Caller: []byte("ada"), Entry: e.GetEntryId()}, by)
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, "k"), "ada's record")
		all := w.entries(t, resolved)
		require.Len(t, all, 1)
		require.Equal(t, dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED, all[0].GetResult())

		var trailer metadata.MD
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			_, replayed := interceptors.FromReplay(ctx)
			require.False(t, replayed)
			return receipt(n), nil
		}
		again, err := w.bare(t).Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "k"), order(), grpc.Trailer(&trailer))
		require.NoError(t, err)
		require.Equal(t, resp.GetChargeId(), again.GetChargeId(), "ada's own retry gets that answer")
		require.Equal(t, []string{"true"}, trailer[interceptors.TrailerReplayed])
		_, err = w.bare(t).Charge(metadata.AppendToOutgoingContext(as(t.Context(), "operator"), interceptors.HeaderKey, "k"), order())
		require.NoError(t, err)
		require.Equal(t, 5, w.ran(), "the replayer's own key of that name is another one")
	})
}

// G01: a replay that carries no live claim is refused, and nothing runs.
func TestAReplayWithoutALiveClaimRunsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, e := parked(t, setup{server: []interceptors.ServerOption{
			interceptors.WithMethod(demov1.PaymentsService_GetCharge_FullMethodName, interceptors.Method{}),
		}})
		ran := w.ran()
		entry := hex.EncodeToString(e.GetEntryId())
		valid := w.claim(as(t.Context(), "operator"), t, e, time.Minute)
		const forged = "00112233445566778899aabbccddeeff"
		for name, ctx := range map[string]context.Context{
			"forged token":   replays(t.Context(), entry+"."+forged, "k"),
			"forged entry":   replays(t.Context(), forged+"."+forged, "k"),
			"another key":    replays(t.Context(), hex.EncodeToString(e.GetEntryId())+"."+hex.EncodeToString([]byte("sixteen bytes...")), "k2"),
			"no claim in it": replays(t.Context(), "yes", "k"),
			"upper case":     replays(t.Context(), "AA112233445566778899aabbccddeeff."+forged, "k"),
			"too short":      replays(t.Context(), entry+".0011", "k"),
			"empty":          replays(t.Context(), "", "k"),
			"two claims":     metadata.AppendToOutgoingContext(valid, interceptors.HeaderReplay, entry+"."+forged),
			"no key":         metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderReplay, entry+"."+forged),
		} {
			_, err := w.bare(t).Charge(ctx, order())
			require.Equal(t, codes.InvalidArgument, status.Code(err), name)
			requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		}
		_, err := w.bare(t).GetCharge(valid, &demov1.GetChargeRequest{})
		requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		other := order()
		other.Amount++
		_, err = w.bare(t).Charge(valid, other)
		require.NoError(t, err, "a free record takes a corrected request, from a replay too")
		require.Equal(t, ran+1, w.ran())

		w, e = parked(t, setup{})
		ran = w.ran()
		expired := w.claim(as(t.Context(), "operator"), t, e, time.Second)
		pass(2 * time.Second)
		_, err = w.bare(t).Charge(expired, order())
		requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		require.Equal(t, ran, w.ran())
	})
}

func TestAReplayNeverRunsUnprotected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, e := parked(t, setup{server: []interceptors.ServerOption{
			interceptors.WithMethod(charge, interceptors.Method{Policy: &dedupv1.MethodPolicy{FailOpen: true}}),
		}})
		ran := w.ran()
		ctx := w.claim(t.Context(), t, e, time.Minute)
		w.down.Store(true)
		_, err := w.bare(t).Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "open"), order())
		require.NoError(t, err, "others run")
		_, err = w.bare(t).Charge(ctx, order())
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Equal(t, ran+1, w.ran())
	})
}

func TestTwoReplaysOfOneClaimRunOnce(t *testing.T) { // G01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, e := parked(t, setup{})
		w.handle = takes(time.Second)
		ran := w.ran()
		ctx := w.claim(as(t.Context(), "operator"), t, e, time.Minute)
		client := w.bare(t)
		var answers [2]string
		errs := together(len(answers), func(i int) error {
			resp, err := client.Charge(ctx, order())
			answers[i] = resp.GetChargeId()
			return err
		})
		require.Equal(t, make([]error, len(answers)), errs)
		require.Equal(t, answers[0], answers[1])
		require.Equal(t, ran+1, w.ran())
	})
}

// A grant whose answer never came is given back, though whose record it is was in
// that answer.
func TestAReplayWhoseGrantWasNeverReadLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, e := parked(t, setup{})
		var lost atomic.Bool
		lost.Store(true)
		w.lost = func(method string) bool { return method == "Reserve" && lost.Load() }
		_, err := w.bare(t).Charge(w.claim(as(t.Context(), "operator"), t, e, time.Minute), order())
		require.Equal(t, codes.Unavailable, status.Code(err))
		lost.Store(false)
		pass(5 * time.Second)
		require.Equal(t, dedupv1.State_STATE_RELEASED, w.state(t, "k"))
		require.Equal(t, 3, w.ran())
	})
}

// A06: what a reconciler can never tell is parked with its request, and an
// operator's verdict settles both.
func TestWhatNobodyCanReconcileIsParkedWithItsRequest(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]interceptors.Verdict{
		"still unknown": interceptors.VerdictStillUnknown(), "partial": interceptors.VerdictPartial("the mail is missing"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				way := &letters{}
				p, err := interceptors.NewParker(interceptors.ParkerConfig{DeadLetters: dedupv1.NewDeadLetterServiceClient(way)})
				require.NoError(t, err)
				w := newWorld(t, setup{server: []interceptors.ServerOption{
					interceptors.WithDeadLetters(p), rules(v),
				}})
				way.w = w
				t.Cleanup(p.Close)
				w.handle = fails(status.Error(codes.Internal, "it broke"))
				ctx := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "k")
				_, err = w.bare(t).Charge(ctx, order())
				require.Equal(t, codes.Internal, status.Code(err))
				pass(time.Minute)
				_, err = w.bare(t).Charge(ctx, order())
				requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
				pass(time.Hour) // five probes
				all := w.entries(t)
				require.Len(t, all, 1)
				require.Equal(t, unreconciled, all[0].GetKind())
				require.Equal(t, charge, all[0].GetMethod())
				require.True(t, all[0].GetHasRequest())
				require.Equal(t, "ada", string(all[0].GetIdentity().GetCaller()))
				require.Equal(t, dedupv1.State_STATE_UNKNOWN, all[0].GetRecordState())
				_, err = w.bare(t).Charge(ctx, order())
				id, _ := interceptors.DeadLetterOf(err)
				require.Equal(t, hex.EncodeToString(all[0].GetEntryId()), id, "its refusal names the entry")
				require.Equal(t, 1, w.ran())

				w.resolve(t, all[0].GetRecordId())
				_, err = w.bare(t).Charge(ctx, order())
				require.NoError(t, err)
				require.Empty(t, w.entries(t), "the verdict settles the entry")
			})
		})
	}
}

func rules(v interceptors.Verdict) interceptors.ServerOption {
	return interceptors.WithReconciler(charge, interceptors.Fenced, func(context.Context, interceptors.Attempt, proto) (interceptors.Verdict, error) {
		return v, nil
	})
}

// resolve rules that an unknown effect happened, with an answer.
func (w *world) resolve(t *testing.T, record []byte) {
	t.Helper()
	look, err := dedupv1.NewDedupServiceClient(w.dedupd.Conn()).Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_RecordId{RecordId: record},
	})
	require.NoError(t, err)
	_, err = dedupv1.NewAdminServiceClient(w.dedupd.Conn()).Resolve(t.Context(), &dedupv1.ResolveRequest{
		Record: &dedupv1.ResolveRequest_RecordId{RecordId: record}, Version: look.GetRecord().GetVersion(), Note: "seen at the bank",
		Verdict: &dedupv1.ResolveRequest_Completed{Completed: &dedupv1.ResolveCompleted{Outcome: &dedupv1.Outcome{
			Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeResponse"}},
		}}},
	})
	require.NoError(t, err)
}
