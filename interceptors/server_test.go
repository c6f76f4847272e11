package interceptors_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// once makes the client send every call exactly once.
func once() []interceptors.ClientOption {
	return []interceptors.ClientOption{interceptors.WithMaxAttempts(1)}
}

func TestARepeatGetsTheFirstAnswerWithItsMark(t *testing.T) { // D02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{server: []interceptors.ServerOption{
			interceptors.WithMethod(charge, interceptors.Method{Policy: &dedupv1.MethodPolicy{ReplayTrailers: []string{"x-version"}}}),
		}})
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-receipt", "r1", "set-cookie", "secret", "x-other", "o")))
			require.NoError(t, grpc.SendHeader(ctx, metadata.Pairs("x-receipt", "r2")))
			require.Error(t, grpc.SetHeader(ctx, metadata.Pairs("too", "late")))
			require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("x-version", "7", "authorization", "secret")))
			return receipt(n), nil
		}
		var answers [2]*demov1.ChargeResponse
		var headers, trailers [2]metadata.MD
		for i := range answers {
			var err error
			answers[i], err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"),
				grpc.Header(&headers[i]), grpc.Trailer(&trailers[i]))
			require.NoError(t, err)
			require.Len(t, trailers[i]["idempotency-record"][0], 64)
			require.NotEmpty(t, trailers[i]["idempotency-expires"])
		}
		require.Empty(t, cmp.Diff(answers[0], answers[1], protocmp.Transform()))
		require.Equal(t, 1, w.ran())
		require.Equal(t, []string{"r1", "r2"}, headers[0]["x-receipt"])
		require.Equal(t, []string{"secret"}, headers[0]["set-cookie"], "the first caller gets everything")
		require.Empty(t, trailers[0]["idempotency-replayed"])
		require.Equal(t, []string{"r1", "r2"}, headers[1]["x-receipt"])
		require.Equal(t, []string{"7"}, trailers[1]["x-version"])
		require.Equal(t, []string{"true"}, trailers[1]["idempotency-replayed"])
		require.Empty(t, headers[1]["set-cookie"])
		require.Empty(t, headers[1]["x-other"])
		require.Empty(t, trailers[1]["authorization"])
	})
}

func TestAStoredErrorIsReplayedAsTrailersOnly(t *testing.T) { // D02, D04, D05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		w.handle = func(ctx context.Context, _ int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("x-receipt", "none")))
			return nil, interceptors.Final(declined(t))
		}
		var first *status.Status
		for i := range 2 {
			var header, trailer metadata.MD
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"), grpc.Header(&header), grpc.Trailer(&trailer))
			st := status.Convert(err)
			require.Empty(t, header["x-receipt"], "no header goes ahead of a failing reply")
			require.Equal(t, []string{"none"}, trailer["x-receipt"])
			if i == 0 {
				first = st
				require.Equal(t, codes.NotFound, st.Code())
				require.Len(t, st.Proto().GetDetails(), 2)
				require.Empty(t, trailer["idempotency-replayed"])
				continue
			}
			require.Empty(t, cmp.Diff(first.Proto(), st.Proto(), protocmp.Transform()))
			require.Equal(t, []string{"true"}, trailer["idempotency-replayed"])
		}
		require.Equal(t, 1, w.ran())
	})
}

func TestAClientThatLeavesChangesNothing(t *testing.T) { // A01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			pass(3 * time.Second)
			require.NoError(t, ctx.Err())
			deadline, ok := interceptors.CallerDeadline(ctx)
			require.Equal(t, ok, !deadline.IsZero())
			return receipt(n), nil
		}
		for key, leave := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"cancels": func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(time.Second, cancel)
				return ctx, cancel
			},
			"runs out of time": func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, time.Second)
			},
		} {
			before := w.ran()
			ctx, cancel := leave(t.Context())
			_, err := w.client.Charge(ctx, order(), interceptors.WithKey(key))
			require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
			cancel()
			var trailer metadata.MD
			_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey(key), grpc.Trailer(&trailer))
			require.NoError(t, err)
			require.Equal(t, []string{"true"}, trailer["idempotency-replayed"])
			require.Equal(t, before+1, w.ran())
		}
	})
}

func TestKeylessCallsNeverShareARecord(t *testing.T) { // C06
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keyless := 0
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{
			interceptors.WithMethod(charge, interceptors.Method{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OPTIONAL}}),
			interceptors.WithObserver(interceptors.Observer{Keyless: func(string) { keyless++ }}),
		}})
		// Our own client would send a fresh key for a method that requires one.
		bare := w.bare(t)
		for range 2 {
			_, err := bare.Charge(t.Context(), order())
			require.NoError(t, err)
		}
		require.Equal(t, 2, w.ran())
		require.Equal(t, 2, keyless)
		for _, key := range []string{"", " ", " k", "k "} {
			_, err := bare.Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKeyBin, key), order())
			requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		}
		require.Equal(t, 2, w.ran())
	})
}

func TestAMethodThatRequiresAKeyRefusesCallsWithoutOne(t *testing.T) { // C06
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		_, err := w.bare(t).Charge(t.Context(), order())
		requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_REQUIRED)
		require.Zero(t, w.ran())
	})
}

func TestKeysAreBytesHoweverTheyTravel(t *testing.T) { // C08
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		for _, key := range []string{"plain", "заказ", "🧾", "\x00\xff"} {
			before := w.ran()
			for range 2 {
				_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(key))
				require.NoError(t, err)
			}
			require.Equal(t, before+1, w.ran())
			require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, key))
		}
		before := w.ran()
		_, err := w.bare(t).Charge(metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKeyBin, "plain"), order())
		require.NoError(t, err)
		require.Equal(t, before, w.ran(), "the same bytes by the other header are the same key")
	})
}

func TestCallersNeverMeet(t *testing.T) { // C10
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		for _, caller := range []string{"ada", "bob", "ada"} {
			_, err := w.client.Charge(as(t.Context(), caller), order(), interceptors.WithKey("k"))
			require.NoError(t, err)
		}
		require.Equal(t, 2, w.ran())
		for _, caller := range []string{"nobody", "broken"} {
			_, err := w.client.Charge(as(t.Context(), caller), order(), interceptors.WithKey("k"))
			require.Equal(t, codes.Unauthenticated, status.Code(err))
			require.NotContains(t, err.Error(), "token")
		}
		require.Equal(t, 2, w.ran())
	})
}

func TestOurRefusalsAreToldFromTheApplicationsOwnCodes(t *testing.T) { // C04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		w.handle = fails(status.Error(codes.FailedPrecondition, "the card is locked"), status.Error(codes.Aborted, "busy"))
		for i, key := range []string{"a", "b"} {
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(key))
			require.Equal(t, []codes.Code{codes.FailedPrecondition, codes.Aborted}[i], status.Code(err))
			_, ours := interceptors.ReasonOf(err)
			require.False(t, ours)
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("a"))
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		id, ok := interceptors.RecordIDOf(err)
		require.True(t, ok)
		require.Len(t, id, 64)

		other := order()
		other.Amount++
		_, err = w.client.Charge(t.Context(), other, interceptors.WithKey("a"))
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)
		require.Equal(t, 2, w.ran())
	})
}

func TestARefusalFromFurtherDownIsNotTakenForOurs(t *testing.T) { // C04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		down := newWorld(t, setup{client: once()})
		w.handle = func(ctx context.Context, _ int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			other := order()
			other.Amount = 1
			_, err := down.client.Charge(ctx, other, interceptors.WithKey("inner"))
			return nil, err
		}
		_, err := down.client.Charge(t.Context(), order(), interceptors.WithKey("inner"))
		require.NoError(t, err)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		_, ours := interceptors.ReasonOf(err)
		require.False(t, ours)
	})
}

func TestALargeResponseIsGivenOnceInFullAndNeverInPart(t *testing.T) { // D01
	t.Parallel()
	const limit = 64 << 10
	overhead := len(receipt(0).GetOrder()) + 2 + 2 // order, amount
	cases := map[string]struct {
		size   int
		stored bool
	}{
		"one byte under the limit":     {limit - 1, true},
		"at the limit":                 {limit, true},
		"one byte over":                {limit + 1, false},
		"far over":                     {200 << 10, false},
		"over gRPC's default of 4 MiB": {5 << 20, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{maxOutcome: limit, client: once(), dial: []grpc.DialOption{
					grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
				}})
				id := string(make([]byte, c.size-overhead-4)) // its own tag and length
				w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					r := receipt(0)
					r.ChargeId = id
					return r, nil
				}
				resp, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.NoError(t, err)
				require.Len(t, resp.GetChargeId(), len(id))
				resp, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				if c.stored {
					require.NoError(t, err)
					require.Len(t, resp.GetChargeId(), len(id))
				} else {
					requireReason(t, err, codes.DataLoss, dedupv1.Reason_REASON_OUTCOME_NOT_STORED)
				}
				require.Equal(t, 1, w.ran())
			})
		})
	}
}

func TestNothingRunsWhileDedupdIsDown(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		w.down.Store(true)
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		after, ok := interceptors.RetryAfter(err)
		require.True(t, ok)
		require.Positive(t, after)
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown, "nothing was run")
		require.Zero(t, w.ran())
		w.down.Store(false)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
	})
}

func TestAnAnswerThatCannotBeStoredIsStillTheFirstCallers(t *testing.T) { // A02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once()})
		w.handle = func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			w.down.Store(true)
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		w.down.Store(false)
		pass(10 * time.Second)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, 1, w.ran())
	})
}

func TestAnInterruptedHandlerIsSettledByItsReconciler(t *testing.T) { // A05
	t.Parallel()
	verdicts := map[string]interceptors.Verdict{
		"applied": interceptors.VerdictApplied(receipt(9)), "not applied": interceptors.VerdictNotApplied(),
		"failed": interceptors.VerdictFailed(status.Error(codes.NotFound, "no such card")),
		"":       interceptors.VerdictStillUnknown(),
	}
	for name, verdict := range verdicts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				// Nothing fits into the store: what a reconciler found is still given in full.
				w := newWorld(t, setup{maxOutcome: 8, client: once(), server: []interceptors.ServerOption{
					interceptors.WithReconciler(charge, interceptors.Bounded, func(_ context.Context, a interceptors.Attempt, req proto) (interceptors.Verdict, error) {
						require.Empty(t, cmp.Diff(order(), req, protocmp.Transform()))
						require.EqualValues(t, 1, a.EarlierGrants)
						return verdict, nil
					}),
				}})
				w.handle = fails(status.Error(codes.Internal, "it broke somewhere"))
				_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.Equal(t, codes.Internal, status.Code(err))
				pass(31 * time.Second)
				short, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var trailer metadata.MD
				resp, err := w.client.Charge(short, order(), interceptors.WithKey("k"), grpc.Trailer(&trailer))
				require.Empty(t, trailer["idempotency-replayed"], "nobody was given this answer before")
				switch name {
				case "applied":
					require.NoError(t, err)
					require.Empty(t, cmp.Diff(receipt(9), resp, protocmp.Transform()))
				case "not applied":
					require.NoError(t, err)
					require.Equal(t, 2, w.ran())
				case "failed":
					require.Equal(t, codes.NotFound, status.Code(err))
				default:
					requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
				}
			})
		})
	}
}

func TestAnAnswerThatAnotherMethodMightGiveOtherwiseIsWithheldUntilItIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shares := func(method string, rerun bool) interceptors.ServerOption {
			return interceptors.WithMethod(method, interceptors.Method{Policy: &dedupv1.MethodPolicy{Operation: "pay", RerunSafe: rerun}})
		}
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{
			shares(charge, false), shares(grpc_testing.TestService_EmptyCall_FullMethodName, true),
		}})
		w.handle = func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			w.down.Store(true)
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Equal(t, 1, w.ran())
	})
}
