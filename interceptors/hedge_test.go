package interceptors_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// hedge sends a call a second time where the first takes longer than wait, and
// takes what comes first; the other one it leaves to itself, or cancels it.
func hedge(wait time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		type end struct {
			reply protobuf.Message
			err   error
		}
		ends := make(chan end, 2)
		opts = append(opts[:len(opts):len(opts)], grpc.WaitForReady(true))
		send := func() {
			mine := protobuf.Clone(reply.(protobuf.Message)) //nolint:errcheck,forcetypeassert // the tests' own
			err := invoker(ctx, method, req, mine, cc, opts...)
			ends <- end{mine, err}
		}
		go send()
		second := time.NewTimer(wait)
		defer second.Stop()
		for {
			select {
			case <-second.C:
				go send()
			case first := <-ends:
				protobuf.Merge(reply.(protobuf.Message), first.reply) //nolint:errcheck,forcetypeassert // the tests' own
				return first.err
			}
		}
	}
}

func TestAHedgedTryHasOneEffect(t *testing.T) { // E09, C12
	t.Parallel()
	for name, opts := range map[string][]grpc.CallOption{
		"a fresh key": nil, "the caller's key": {interceptors.WithKey("k")},
	} {
		for where, hedged := range map[string]interceptors.ClientOption{
			"around the call": interceptors.PerCall(hedge(time.Second)), "around every try": interceptors.PerTry(hedge(time.Second)),
		} {
			t.Run(name+", "+where, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setup{client: []interceptors.ClientOption{hedged}})
					w.handle = takes(3 * time.Second)
					resp, err := w.client.Charge(t.Context(), order(), opts...)
					require.NoError(t, err)
					require.Equal(t, "x", resp.GetChargeId())
					require.Equal(t, 2, w.called())
					require.Equal(t, 1, w.ran())
				})
			})
		}
	}
}

func TestAHedgedCallOfAKeyedHandlerHasOneEffect(t *testing.T) { // C12
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.PerCall(hedge(time.Second))}})
		down.handle = takes(3 * time.Second)
		w := newWorld(t, setup{})
		w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			for range 2 {
				if _, err := down.client.Charge(ctx, order()); err != nil {
					return nil, err
				}
			}
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		require.Equal(t, 4, down.called())
		require.Equal(t, 2, down.ran())
	})
}

func TestATryThatIsStillOnItsWayIsNotKnownToBeHarmless(t *testing.T) { // E07
	t.Parallel()
	for name, opts := range map[string][]grpc.CallOption{
		"keyed": {interceptors.WithKey("k")}, "plain": nil, "with an option": {interceptors.WithPerTryTimeout(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{server: optional})
				w.handle = takes(time.Second)
				conn := w.dial(t, append(once(), interceptors.PerTry(
					func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						go invoker(context.WithoutCancel(ctx), method, req, &demov1.ChargeResponse{}, cc, opts...) //nolint:errcheck // it is left to itself
						synctest.Wait()
						ended, cancel := context.WithCancel(ctx)
						cancel()
						return invoker(ended, method, req, reply, cc, opts...)
					})))
				defer func() { require.NoError(t, conn.Close()) }()
				err := conn.Invoke(t.Context(), undeclared, order(), &demov1.ChargeResponse{}, opts...)
				require.Equal(t, codes.Canceled, status.Code(err))
				require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
				require.Equal(t, 1, w.ran())
				pass(2 * time.Second)
			})
		})
	}
}

func TestWhatAnInnerInterceptorMadeOfATryIsNotForgotten(t *testing.T) { // A04, E07
	t.Parallel()
	invalid := status.Error(codes.InvalidArgument, "this is no receipt")
	twice := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := invoker(ctx, method, req, reply, cc, opts...); err == nil {
			return nil
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	strict := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := invoker(ctx, method, req, reply, cc, opts...); err != nil {
			return err
		}
		return invalid
	}
	lost := func(w *world) { w.cutAfter = func(n int) bool { return n == 1 } }
	for name, c := range map[string]struct {
		inner   grpc.UnaryClientInterceptor
		prepare func(w *world)
		opts    []grpc.CallOption
		left    guard.Left // behind a run that makes the call
		unknown bool
	}{
		"of two sends the first was lost": {
			inner: twice, left: guard.LeftUnknown, unknown: true,
			prepare: func(w *world) {
				lost(w)
				w.handle = fails(nil, invalid)
			},
		},
		"of two sends the first was lost, and its run says that nothing was applied": {
			inner: twice, opts: []grpc.CallOption{interceptors.WithKey("mine")}, left: guard.LeftClean,
			prepare: func(w *world) {
				lost(w)
				w.handle = fails(interceptors.NotApplied(invalid), interceptors.NotApplied(invalid))
			},
		},
		"an answer that the interceptor does not like": {inner: strict, left: guard.LeftApplied},
		"the same under a child key":                   {inner: strict, left: guard.LeftKeyed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rule := dedupv1.KeyRule_KEY_RULE_OFF
				if c.opts != nil || c.left == guard.LeftKeyed {
					rule = dedupv1.KeyRule_KEY_RULE_OPTIONAL
				}
				down := newWorld(t, setup{
					server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{Keys: rule})},
					client: append(once(), interceptors.PerTry(c.inner)),
				})
				if c.prepare != nil {
					c.prepare(down)
				}
				w := newWorld(t, setup{})
				var left guard.Left
				w.handle = func(ctx context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
					err := down.conn.Invoke(ctx, undeclared, order(), &demov1.ChargeResponse{}, c.opts...)
					require.Equal(t, codes.InvalidArgument, status.Code(err))
					require.Equal(t, c.unknown, errors.Is(err, interceptors.ErrOutcomeUnknown))
					left = guard.LeftBehind(ctx)
					return receipt(n), nil
				}
				_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
				require.NoError(t, err)
				require.Equal(t, c.left, left)
			})
		})
	}
}
