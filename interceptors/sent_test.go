package interceptors_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// E06 E07: what is known of a failed try, keyed or not, by what left the client.
func TestOnlyATryOfWhichNothingWasSentIsSurelyHarmless(t *testing.T) {
	t.Parallel()
	const limit = 400
	large := func() *demov1.ChargeRequest {
		req := order()
		req.Labels = map[string]string{"note": strings.Repeat("x", limit)}
		return req
	}
	lost := status.Error(codes.Unavailable, "lost")
	for name, c := range map[string]struct {
		options []interceptors.ClientOption
		call    []grpc.CallOption
		req     *demov1.ChargeRequest
		prepare func(w *world)
		code    codes.Code
		unknown bool
	}{
		"nobody listens": {
			prepare: func(w *world) { w.refuse() }, code: codes.Unavailable,
		},
		"the connection is cut after the handler ran": {
			prepare: func(w *world) { w.cutAfter = func(int) bool { return true } }, code: codes.Unavailable, unknown: true,
		},
		"the request is over this call's limit": {
			req: large(), call: []grpc.CallOption{grpc.MaxCallSendMsgSize(limit)}, code: codes.ResourceExhausted,
		},
		"a server says the same of its answer": {
			req: large(), code: codes.ResourceExhausted, unknown: true,
			prepare: func(w *world) {
				w.handle = fails(status.Error(codes.ResourceExhausted, "trying to send message larger than max (450 vs. 400)"))
			},
		},
		"a server says the same of its answer to a call with a limit": {
			call: []grpc.CallOption{grpc.MaxCallSendMsgSize(limit)}, code: codes.ResourceExhausted, unknown: true,
			prepare: func(w *world) {
				w.handle = fails(status.Error(codes.ResourceExhausted, "trying to send message larger than max (450 vs. 400)"))
			},
		},
		"an interceptor further in used another way": {
			options: []interceptors.ClientOption{interceptors.PerTry(
				func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
					return lost
				},
			)}, code: codes.Unavailable, unknown: true,
		},
		"an interceptor further in lost the first of two": {
			options: []interceptors.ClientOption{interceptors.PerTry(
				func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if err := invoker(ctx, method, req, reply, cc, opts...); err == nil {
						return nil
					}
					ended, cancel := context.WithCancel(ctx)
					cancel()
					return invoker(ended, method, req, reply, cc, opts...)
				},
			)}, prepare: func(w *world) { w.cutAfter = func(int) bool { return true } }, code: codes.Canceled, unknown: true,
		},
	} {
		for way, key := range map[string][]grpc.CallOption{
			"keyed":         {interceptors.WithKey("k")},
			"without a key": nil,
			// Not a plain call, but it must be told the same.
			"without a key, with an option": {interceptors.WithPerTryTimeout(time.Hour)},
		} {
			t.Run(name+", "+way, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setup{server: []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OPTIONAL})}})
					conn := w.dial(t, append(once(), c.options...))
					defer func() { require.NoError(t, conn.Close()) }()
					if c.prepare != nil {
						c.prepare(w)
					}
					req := c.req
					if req == nil {
						req = order()
					}
					method := charge
					if way != "keyed" {
						method = undeclared
					}
					err := conn.Invoke(t.Context(), method, req, &demov1.ChargeResponse{}, append(c.call, key...)...)
					require.Equal(t, c.code, status.Code(err), err)
					if c.unknown {
						require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
					} else {
						require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown)
					}
				})
			})
		}
	}
}
