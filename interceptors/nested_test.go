package interceptors_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// nested is a service whose handler calls another one.
func nested(t *testing.T, s setup) (up, down *world) {
	t.Helper()
	down = newWorld(t, setup{})
	s.server = append(s.server, byTable())
	return newWorld(t, s), down
}

func TestASecondRunCallsOnUnderTheSameKeys(t *testing.T) { // A04, C12
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w, down := nested(t, setup{})
		down.arrived = s.arrived
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			other := order()
			other.Amount++
			for _, req := range []*demov1.ChargeRequest{order(), other, order()} {
				if _, err := down.client.Charge(ctx, req); err != nil {
					return nil, err
				}
			}
			step, err := interceptors.ChildKey(ctx, "ship")
			require.NoError(t, err)
			if _, err := down.client.Charge(ctx, order(), interceptors.WithKey(step)); err != nil {
				return nil, err
			}
			require.Equal(t, guard.LeftKeyed, guard.LeftBehind(ctx))
			if n == 1 {
				return nil, status.Error(codes.Unavailable, "and now the database is away")
			}
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err, "its run was released, bound to the request, and run again")
		require.Equal(t, 2, w.ran())
		require.Equal(t, 4, down.ran(), "every effect happened once")
		require.Len(t, s.keys, 8)
		require.Equal(t, s.keys[:4], s.keys[4:])
		distinct := map[string]bool{}
		for _, key := range s.keys[:4] {
			require.Regexp(t, `^ck1:[A-Za-z0-9_-]{32}$`, key)
			distinct[key] = true
		}
		require.Len(t, distinct, 4, "identical calls of one run are told apart")
	})
}

func TestAHandlersOwnRetryKeepsTheKeyOfItsCall(t *testing.T) { // E09, C12
	t.Parallel()
	test := func(t *testing.T, around ...interceptors.ClientOption) {
		t.Helper()
		var s seen
		down := newWorld(t, setup{client: around})
		w := newWorld(t, setup{server: []interceptors.ServerOption{byTable()}})
		down.arrived = s.arrived
		down.cutAfter = func(n int) bool { return n == 1 }
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			_, err := down.client.Charge(ctx, order(), interceptors.WithMaxAttempts(1))
			require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
			_, err = down.client.Charge(ctx, order())
			require.NoError(t, err)
			_, err = down.client.Charge(ctx, order())
			require.NoError(t, err)
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, s.keys[0], s.keys[1])
		require.NotEqual(t, s.keys[0], s.keys[2], "after a success it is another intent")
		require.Equal(t, 2, down.ran())
	}
	synctest.Test(t, func(t *testing.T) { test(t) })
	synctest.Test(t, func(t *testing.T) { test(t, interceptors.PerCall(hedge(time.Hour))) })
}

func TestAfterChildCallsOnlyTheSameRequestRunsAgain(t *testing.T) { // A04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, down := nested(t, setup{client: once()})
		w.handle = func(ctx context.Context, _ int, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			_, err := down.client.Charge(ctx, order())
			require.NoError(t, err)
			if req.GetLabels()["undo"] != "" {
				return nil, interceptors.NotApplied(status.Error(codes.Aborted, "undone"))
			}
			return nil, status.Error(codes.Aborted, "no")
		}
		corrected := order()
		corrected.Currency = "USD"
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("bound"))
		require.Equal(t, codes.Aborted, status.Code(err))
		require.Equal(t, released, w.state(t, "bound"))
		_, err = w.client.Charge(t.Context(), corrected, interceptors.WithKey("bound"))
		requireReason(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED)

		undone := order()
		undone.Labels = map[string]string{"undo": "yes"}
		_, err = w.client.Charge(t.Context(), undone, interceptors.WithKey("free"))
		require.Equal(t, codes.Aborted, status.Code(err))
		_, err = w.client.Charge(t.Context(), corrected, interceptors.WithKey("free"))
		require.Equal(t, codes.Aborted, status.Code(err), "the handler says that the effects further down are undone too")
	})
}

func TestWhatOutgoingCallsLeaveBehind(t *testing.T) { // A04
	t.Parallel()
	const unary = "/grpc.testing.TestService/UnaryCall" // declared nowhere, its server deduplicates
	const empty = "/grpc.testing.TestService/EmptyCall" // its server does not
	notOurs := interceptors.WithMethod(empty, interceptors.Method{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OFF}})
	for name, c := range map[string]struct {
		call func(ctx context.Context, down *world) error
		left guard.Left
		sent int
	}{
		"a call that only reads leaves nothing": {
			call: func(ctx context.Context, down *world) error {
				_, err := down.client.GetCharge(ctx, &demov1.GetChargeRequest{})
				return err
			}, left: guard.LeftClean, sent: 1,
		},
		"a call under a child key that the callee acknowledged": {
			call: func(ctx context.Context, down *world) error {
				return down.conn.Invoke(ctx, unary, &grpc_testing.SimpleRequest{}, &grpc_testing.SimpleResponse{})
			}, left: guard.LeftKeyed, sent: 1,
		},
		"a call whose callee does not look at keys": {
			call: func(ctx context.Context, down *world) error {
				return down.conn.Invoke(ctx, empty, &grpc_testing.Empty{}, &grpc_testing.Empty{})
			}, left: guard.LeftApplied, sent: 1,
		},
		"a call under a key of the handler's own": {
			call: func(ctx context.Context, down *world) error {
				_, err := down.client.Charge(ctx, order(), interceptors.WithKey("mine"))
				return err
			}, left: guard.LeftApplied, sent: 1,
		},
		"a call that was refused": {
			call: func(ctx context.Context, down *world) error {
				down.handle = fails(interceptors.NotApplied(status.Error(codes.NotFound, "no")))
				_, err := down.client.Charge(ctx, order())
				require.Error(t, err)
				return nil
			}, left: guard.LeftClean, sent: 1,
		},
		"a lost call whose callee may not look at keys is not sent again": {
			call: func(ctx context.Context, down *world) error {
				down.cutAfter = func(int) bool { return true }
				err := down.conn.Invoke(ctx, empty, &grpc_testing.Empty{}, &grpc_testing.Empty{})
				require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
				return nil
			}, left: guard.LeftUnknown, sent: 1,
		},
		"a lost call whose callee is declared to look at keys is": {
			call: func(ctx context.Context, down *world) error {
				down.cutAfter = func(n int) bool { return n == 1 }
				_, err := down.client.Charge(ctx, order())
				return err
			}, left: guard.LeftKeyed, sent: 2,
		},
		"a call whose callee ran it without protection": {
			call: func(ctx context.Context, down *world) error {
				down.down.Store(true)
				_, err := down.client.Charge(ctx, order())
				return err
			}, left: guard.LeftApplied, sent: 1,
		},
		"a stream": {
			call: func(ctx context.Context, down *world) error {
				stream, err := grpc_testing.NewTestServiceClient(down.conn).FullDuplexCall(ctx)
				require.NoError(t, err)
				return stream.CloseSend()
			}, left: guard.LeftApplied,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				down := newWorld(t, setup{server: []interceptors.ServerOption{
					notOurs, withPolicy(&dedupv1.MethodPolicy{FailOpen: true}),
				}})
				w := newWorld(t, setup{})
				var left guard.Left
				w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					err := c.call(ctx, down)
					left = guard.LeftBehind(ctx)
					return receipt(n), err
				}
				_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.NoError(t, err)
				require.Equal(t, c.left, left)
				require.Equal(t, c.sent, down.called())
			})
		})
	}
}

func TestWhatAReconcilerCallsIsNotCountedToTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		down := newWorld(t, setup{})
		down.arrived = s.arrived
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{interceptors.WithReconciler(charge, interceptors.Fenced,
			func(ctx context.Context, _ interceptors.Attempt, _ proto) (interceptors.Verdict, error) {
				_, err := down.client.Charge(ctx, order())
				return interceptors.VerdictNotApplied(), err
			})}})
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			_, err := down.client.Charge(ctx, order())
			if n == 1 {
				return nil, interceptors.OutcomeUnknown(errDown)
			}
			return receipt(n), err
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		_, err = w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Len(t, s.keys, 3)
		require.Equal(t, []string{s.keys[0], s.keys[0]}, s.keys[1:])
		require.Equal(t, 1, down.ran())
	})
}

func TestAStreamOfABoundedRunEndsWithItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := newWorld(t, setup{})
		w := newWorld(t, setup{server: []interceptors.ServerOption{interceptors.WithReconciler(charge, interceptors.Bounded,
			func(context.Context, interceptors.Attempt, proto) (interceptors.Verdict, error) {
				return interceptors.VerdictStillUnknown(), nil
			})}})
		start := time.Now()
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			stream, err := grpc_testing.NewTestServiceClient(down.conn).FullDuplexCall(ctx)
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, codes.DeadlineExceeded, status.Code(err))
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, 27*time.Second, time.Since(start), "the lease less its margin")
	})
}

func TestACallThatForwardsItsMetadataKeepsItsOwnKey(t *testing.T) { // C12
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w, down := nested(t, setup{})
		down.arrived = s.arrived
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			ctx = metadata.AppendToOutgoingContext(ctx, interceptors.HeaderKey, "by hand")
			_, err := down.client.Charge(ctx, order(), grpc.WaitForReady(true))
			return receipt(n), err
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, []string{"by hand"}, s.keys)
	})
}
