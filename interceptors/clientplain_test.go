package interceptors_test

import (
	"context"
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

var optional = []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OPTIONAL})}

// A call without a key has a short way of its own; what it, its observer and its
// breaker see must be what they see of any other. An option of ours, though it
// changes nothing here, keeps a call off that way.
func TestAPlainCallIsTreatedAsAnyOther(t *testing.T) { // E07 F01
	t.Parallel()
	type told struct {
		Code     codes.Code
		Unknown  bool
		Attempts int
		Calls    []any
	}
	run := func(t *testing.T, outcome error, left bool, opts ...grpc.CallOption) (all []told) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var calls []any
			w := newWorld(t, setup{server: optional, client: []interceptors.ClientOption{interceptors.WithCallObserver(interceptors.CallObserver{
				Attempt:     func(_ context.Context, _ string, n int) { calls = append(calls, n) },
				BreakerOpen: func(context.Context, string) { calls = append(calls, "held") },
				Ended:       func(_ context.Context, _ string, end interceptors.CallEnd) { calls = append(calls, end) },
			})}})
			w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
				return receipt(1), outcome
			}
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-trace", "1")
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if left {
				cancel()
			}
			for range policy.DefaultBreakerMinCalls + 1 {
				calls = nil
				err := w.conn.Invoke(ctx, undeclared, order(), &demov1.ChargeResponse{}, opts...)
				one := told{Code: status.Code(err), Calls: calls}
				if e, ok := err.(*interceptors.CallError); ok { //nolint:errorlint // the very error
					one.Unknown, one.Attempts = true, e.Attempts
				}
				all = append(all, one)
			}
		})
		return all
	}
	for _, code := range []codes.Code{codes.OK, codes.Unavailable, codes.Internal, codes.InvalidArgument, codes.DataLoss, codes.Canceled} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			err, left := status.Error(code, "no"), code == codes.Canceled
			plain := run(t, err, left)
			require.Equal(t, run(t, err, left, interceptors.WithPerTryTimeout(time.Hour)), plain)
			require.Equal(t, code, plain[0].Code)
			switch code { //nolint:exhaustive // what else is to be seen of it
			case codes.Internal:
				require.Equal(t, "held", plain[policy.DefaultBreakerMinCalls].Calls[0], "the breaker is open")
			case codes.Canceled:
				require.Zero(t, plain[0].Attempts, "nobody waits for it")
			}
		})
	}
}

func TestACallThatHasAKeyIsNotPlain(t *testing.T) { // C12
	t.Parallel()
	for name, header := range map[string]string{"text": interceptors.HeaderKey, "binary": interceptors.HeaderKeyBin} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{server: optional})
				w.cutAfter = func(n int) bool { return n == 1 }
				ctx := metadata.AppendToOutgoingContext(t.Context(), header, "k")
				require.NoError(t, w.conn.Invoke(ctx, undeclared, order(), &demov1.ChargeResponse{}))
				require.Equal(t, 2, w.called(), "it was sent again")
				require.Equal(t, 1, w.ran())

				claimed := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderReplay, "none")
				err := w.conn.Invoke(claimed, undeclared, order(), &demov1.ChargeResponse{})
				requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
				require.Equal(t, 2, w.called(), "it was not sent")
			})
		})
	}
}

// Whatever an interceptor further in does, a probe's place and the budget's count
// come back.
func TestACallThatPanicsOnItsWayHoldsNothing(t *testing.T) { // E10, F02
	t.Parallel()
	for name, opts := range map[string][]grpc.CallOption{"plain": nil, "keyed": {interceptors.WithKey("k")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				budget, err := policy.NewBudget(policy.BudgetSettings{})
				require.NoError(t, err)
				w := newWorld(t, setup{server: optional})
				panics := false
				conn := w.dial(t, append(once(), interceptors.WithSharedBudget(budget)), grpc.WithChainUnaryInterceptor(
					func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						if panics {
							panic("boom") //nolint:forbidigo // the case
						}
						return invoker(ctx, method, req, reply, cc, opts...)
					}))
				defer func() { require.NoError(t, conn.Close()) }()
				call := func() error { return conn.Invoke(t.Context(), undeclared, order(), &demov1.ChargeResponse{}, opts...) }
				w.handle = func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					return nil, interceptors.NotApplied(status.Error(codes.Internal, "ill"))
				}
				for range policy.DefaultBreakerMinCalls {
					require.Equal(t, codes.Internal, status.Code(call()))
				}
				requireReason(t, call(), codes.Unavailable, dedupv1.Reason_REASON_BREAKER_OPEN)
				w.handle = nil
				pass(7 * time.Second)
				panics = true
				for range 2 * policy.DefaultBreakerProbes {
					require.PanicsWithValue(t, "boom", func() { _ = call() })
				}
				panics = false
				for range policy.DefaultBreakerMinCalls {
					require.NoError(t, call())
				}
				active, retrying := budget.Load()
				require.Zero(t, active+retrying)
			})
		})
	}
}
