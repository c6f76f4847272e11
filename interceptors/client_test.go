package interceptors_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/policy"
)

var errDown = status.Error(codes.Unavailable, "overloaded")

// seen collects what every call that reached the server carried.
type seen struct {
	keys, attempts, digests []string
	deadlines               []time.Time
	at                      []time.Time
}

func (s *seen) arrived(ctx context.Context, _ int) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.keys = append(s.keys, append(md[interceptors.HeaderKey], md[interceptors.HeaderKeyBin]...)...)
	s.attempts = append(s.attempts, md[interceptors.HeaderAttempt]...)
	s.digests = append(s.digests, md[interceptors.HeaderFingerprint]...)
	if d, ok := ctx.Deadline(); ok {
		s.deadlines = append(s.deadlines, d)
	}
	s.at = append(s.at, time.Now())
}

func TestALostReplyIsAnsweredByTheNextAttempt(t *testing.T) { // C05, E07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w := newWorld(t, setup{})
		w.arrived, w.cutAfter = s.arrived, func(n int) bool { return n == 1 }
		resp, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, "x", resp.GetChargeId())
		require.Equal(t, 1, w.ran())
		require.Equal(t, []string{"k", "k"}, s.keys)
		require.Equal(t, []string{"1", "2"}, s.attempts)
		require.Equal(t, s.digests[0], s.digests[1])
	})
}

func TestARetryWaitsForTheRunThatItLost(t *testing.T) { // C05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{server: []interceptors.ServerOption{
			interceptors.WithMethod(charge, interceptors.Method{RefuseAtOnce: true}),
		}})
		w.handle = takes(20 * time.Second)
		time.AfterFunc(time.Second, w.cut)
		start := time.Now()
		resp, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, "x", resp.GetChargeId())
		require.Equal(t, 1, w.ran())
		require.Greater(t, w.called(), interceptors.DefaultMaxAttempts, "waiting uses up no attempt")
		require.Less(t, time.Since(start), 22*time.Second)
	})
}

func TestARetryThatMayNotWaitLongEnoughSaysUnknown(t *testing.T) { // C05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.handle = takes(10 * time.Second)
		time.AfterFunc(time.Second, w.cut)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := w.client.Charge(ctx, order(), interceptors.WithKey("k"))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		id, ok := interceptors.RecordIDOf(err)
		require.True(t, ok)
		require.Len(t, id, 64)
		pass(10 * time.Second)
	})
}

func TestWithoutProtectionACallIsSentOnce(t *testing.T) { // E07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		optional := interceptors.WithMethod(charge, interceptors.Method{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OPTIONAL}})
		w := newWorld(t, setup{server: []interceptors.ServerOption{optional}})
		w.cutAfter = func(int) bool { return true }
		// By another name the method is not declared as deduplicated to the client.
		send := func(opts ...interceptors.ClientOption) error {
			conn := w.dial(t, opts)
			defer func() { require.NoError(t, conn.Close()) }()
			return conn.Invoke(t.Context(), "/grpc.testing.TestService/EmptyCall", order(), &demov1.ChargeResponse{})
		}
		err := send()
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Equal(t, 1, w.called())
		require.Error(t, send(interceptors.WithSafeToRetry("/grpc.testing.TestService/EmptyCall")))
		require.Equal(t, 1+interceptors.DefaultMaxAttempts, w.called())

		_, err = w.client.GetCharge(t.Context(), &demov1.GetChargeRequest{}) // NO_SIDE_EFFECTS
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Equal(t, 1+2*interceptors.DefaultMaxAttempts, w.called())
	})
}

func TestTheKeyIsChosenOnce(t *testing.T) { // C12
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w := newWorld(t, setup{})
		w.arrived = s.arrived
		w.handle = fails(interceptors.NotApplied(errDown), interceptors.NotApplied(errDown), interceptors.NotApplied(errDown))
		_, err := w.client.Charge(t.Context(), order()) // the method requires a key: a fresh one is made
		require.NoError(t, err)
		require.Len(t, s.keys, 4)
		require.Len(t, s.keys[0], 36)
		require.Equal(t, []string{s.keys[0], s.keys[0], s.keys[0]}, s.keys[1:])
		require.Equal(t, []string{"1", "2", "3", "4"}, s.attempts)

		_, err = w.client.Charge(t.Context(), order())
		require.NoError(t, err)
		require.NotEqual(t, s.keys[0], s.keys[4], "two calls have two keys")
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("mine"))
		require.NoError(t, err)
		require.Equal(t, "mine", s.keys[5], "the caller's own key wins")
		ctx := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "by hand")
		_, err = w.client.Charge(ctx, order())
		require.NoError(t, err)
		require.Equal(t, "by hand", s.keys[6])
		_, err = w.client.Charge(ctx, order(), interceptors.WithKey("mine"))
		requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey(" "))
		requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		require.Len(t, s.keys, 7, "what is refused is not sent")
	})
}

func TestRetriesStayWithinTheCallersDeadline(t *testing.T) { // E03
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithMaxAttempts(1000)}})
		w.arrived = s.arrived
		w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return nil, interceptors.NotApplied(errDown)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := w.client.Charge(ctx, order(), interceptors.WithKey("k"))
		require.Equal(t, codes.Unavailable, status.Code(err), "the server's error, not a deadline's")
		require.NoError(t, ctx.Err(), "no wait that would outlast the deadline")
		require.Greater(t, len(s.deadlines), 1)
		for _, d := range s.deadlines {
			require.False(t, d.After(start.Add(3*time.Second+time.Millisecond)), "gRPC rounds up on the wire")
		}
	})
}

func TestWithoutADeadlineACallHasATotal(t *testing.T) { // E03
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.handle = takes(3 * time.Minute)
		start := time.Now()
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Equal(t, interceptors.DefaultTotalTimeout, time.Since(start))
		pass(3 * time.Minute)
	})
}

func TestACallThatIsSentOnceIsGivenNoDeadline(t *testing.T) { // E07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w := newWorld(t, setup{})
		w.arrived = s.arrived
		require.NoError(t, w.conn.Invoke(t.Context(), "/grpc.testing.TestService/EmptyCall", order(), &demov1.ChargeResponse{}))
		require.Empty(t, s.deadlines)
		_, err := w.client.Charge(t.Context(), order())
		require.NoError(t, err)
		require.Len(t, s.deadlines, 1)
	})
}

func TestACancelDuringAWaitReturnsAtOnce(t *testing.T) { // E03
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow, err := policy.NewBackoff(time.Hour, time.Hour, 1)
		require.NoError(t, err)
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithBackoff(slow), interceptors.WithTotalTimeout(24 * time.Hour)}})
		w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return nil, interceptors.NotApplied(status.Error(codes.Unavailable, "this very text"))
		}
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		time.AfterFunc(time.Second, cancel)
		_, err = w.client.Charge(ctx, order(), interceptors.WithKey("k"))
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, codes.Canceled, status.Code(err))
		require.ErrorIs(t, err, context.Canceled)
		require.Contains(t, err.Error(), "this very text")
		var call *interceptors.CallError
		require.ErrorAs(t, err, &call)
		require.Equal(t, codes.Unavailable, status.Code(call.Unwrap()[0]), "the last server's error is at hand")
	})
}

func TestATryThatHangsIsCutAndTheNextOneGetsItsResult(t *testing.T) { // E04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithPerTryTimeout(500 * time.Millisecond)}})
		w.handle = takes(2 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		resp, err := w.client.Charge(ctx, order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, "x", resp.GetChargeId())
		require.Equal(t, 1, w.ran())
	})
}

func TestMaxAttemptsCountsCallsNotRetries(t *testing.T) { // E04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return nil, interceptors.NotApplied(errDown)
		}
		for _, n := range []int{3, 1} {
			before := w.called()
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(n)), interceptors.WithMaxAttempts(n))
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.Equal(t, before+n, w.called())
		}
		before := w.called()
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithMaxAttempts(0))
		requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_INPUT_INVALID)
		require.Equal(t, before, w.called())
		_, err = interceptors.ClientOptions(interceptors.WithMaxAttempts(0), interceptors.WithPerTryTimeout(0), interceptors.WithTotalTimeout(-1), interceptors.WithSafeToRetry("Charge"))
		require.ErrorContains(t, err, "max attempts")
		require.ErrorContains(t, err, "per-try")
		require.ErrorContains(t, err, "total")
		require.ErrorContains(t, err, "/package.Service/Method")
	})
}

func TestPermanentErrorsAreSentOnce(t *testing.T) { // E06
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		for i, code := range []codes.Code{
			codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition,
			codes.OutOfRange, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated, codes.DataLoss,
		} {
			w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
				return nil, interceptors.NotApplied(status.Error(code, "no"))
			}
			before := w.called()
			_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey(strconv.Itoa(i)))
			require.Equal(t, code, status.Code(err))
			require.Equal(t, before+1, w.called(), code)
		}
		// A message over a limit is not an overload, whichever side has the limit.
		big := order()
		big.Order = string(make([]byte, 17<<20))
		before := w.called()
		_, err := w.client.Charge(t.Context(), big, interceptors.WithKey("big"))
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.Equal(t, before, w.called())
		w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			return &demov1.ChargeResponse{ChargeId: string(make([]byte, 5<<20))}, nil
		}
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("large answer"))
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown, "the handler may have run")
		require.Equal(t, before+1, w.called())
	})
}

func TestAServersHintIsAFloorUnderTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithMaxAttempts(2)}})
		w.arrived = s.arrived
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			if n%2 == 0 {
				return receipt(n), nil
			}
			pushback := map[int]string{1: "7000", 3: "-1"}[n]
			require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", pushback)))
			return nil, interceptors.NotApplied(errDown)
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("a"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, s.at[1].Sub(s.at[0]), 7*time.Second)
		require.Less(t, s.at[1].Sub(s.at[0]), 8*time.Second)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("b"))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Len(t, s.at, 3, "the server asked not to be called again")
	})
}

func TestLayersOfRetriesAddUp(t *testing.T) { // E09
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// A retry policy by service config would multiply with ours.
		w := newWorld(t, setup{dial: []grpc.DialOption{grpc.WithDefaultServiceConfig(
			`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.01s","maxBackoff":"0.01s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`)}})
		var reserves atomic.Int64
		w.ask = func(_ context.Context, method string) error {
			if method == "Reserve" {
				reserves.Add(1)
			}
			return status.Error(codes.Unavailable, "no way to dedupd")
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		requireReason(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		require.Equal(t, interceptors.DefaultMaxAttempts, w.called())
		require.EqualValues(t, 3+2+1+1+1, reserves.Load(), "fewer with every attempt of the client, which tells its number")
		require.Zero(t, w.ran())
	})
}

func TestInterceptorsAroundTheCallAndTheTry(t *testing.T) { // C12
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		counts := map[string]int{}
		counting := func(name string) grpc.UnaryClientInterceptor {
			return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				counts[name]++
				return invoker(ctx, method, req, reply, cc, opts...)
			}
		}
		w := newWorld(t, setup{client: []interceptors.ClientOption{
			interceptors.PerTry(counting("try")), interceptors.PerCall(counting("call")),
		}})
		w.handle = fails(interceptors.NotApplied(errDown))
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, map[string]int{"call": 1, "try": 2}, counts)
	})
}

func TestACallOfABoundedRunEndsWithItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		down := newWorld(t, setup{})
		down.arrived = s.arrived
		w := newWorld(t, setup{server: []interceptors.ServerOption{interceptors.WithReconciler(charge, interceptors.Bounded,
			func(context.Context, interceptors.Attempt, proto) (interceptors.Verdict, error) {
				return interceptors.VerdictStillUnknown(), nil
			})}})
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			_, err := down.client.Charge(ctx, order(), interceptors.WithKey("inner"))
			return receipt(n), err
		}
		start := time.Now()
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, start.Add(27*time.Second), s.deadlines[0], "the lease less its margin")
	})
}

func TestAStoredErrorIsNotAskedForAgain(t *testing.T) { // E06
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.handle = fails(interceptors.Final(status.Error(codes.Internal, "for good")))
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.Equal(t, codes.Internal, status.Code(err))
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown, "the stored answer is known")
		require.Equal(t, 2, w.called())
		require.Equal(t, 1, w.ran())
	})
}

func TestWhatAnEarlierTryMayHaveDoneIsNotForgotten(t *testing.T) { // E07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{server: []interceptors.ServerOption{interceptors.Before(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				md, _ := metadata.FromIncomingContext(ctx)
				if md[interceptors.HeaderAttempt][0] == "2" {
					return nil, status.Error(codes.Unauthenticated, "the token has expired meanwhile")
				}
				return handler(ctx, req)
			})}})
		w.cutAfter = func(n int) bool { return n == 1 }
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("a"))
		require.Equal(t, codes.Unauthenticated, status.Code(err))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown, "the first try did charge")
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.handle = fails(interceptors.NotApplied(errDown), interceptors.NotApplied(status.Error(codes.InvalidArgument, "no")))
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("b"))
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown, "the handler of the key says that nothing was applied")
	})
}

func TestWaitingUsesUpNoAttempt(t *testing.T) { // C05, E04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{server: []interceptors.ServerOption{
			interceptors.WithMethod(charge, interceptors.Method{RefuseAtOnce: true}),
		}})
		w.handle = func(ctx context.Context, n int, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			if n == 1 {
				pass(20 * time.Second)
			}
			return fails(interceptors.NotApplied(errDown), interceptors.NotApplied(errDown))(ctx, n, req)
		}
		time.AfterFunc(time.Second, w.cut)
		resp, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, "xxx", resp.GetChargeId())
		require.Greater(t, w.called(), interceptors.DefaultMaxAttempts)
	})
}
