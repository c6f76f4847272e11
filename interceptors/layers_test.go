package interceptors_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/retry"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	"github.com/dedupd/dedupd/interceptors"
)

const builtInRetry = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.1s","maxBackoff":"1s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

// middleware is another retry interceptor, which knows nothing of keys.
func middleware() grpc.UnaryClientInterceptor {
	return retry.UnaryClientInterceptor(
		retry.WithMax(4), retry.WithCodes(codes.Unavailable),
		retry.WithBackoff(retry.BackoffLinear(100*time.Millisecond)))
}

func TestRetriesOfOthersHaveNoSecondEffect(t *testing.T) { // E09, C12
	t.Parallel()
	for name, c := range map[string]struct {
		client   []interceptors.ClientOption
		dial     []grpc.DialOption
		bare     bool // without our client
		opts     []grpc.CallOption
		calls    int // that reached the service
		distinct int // keys
	}{
		"a bare client with gRPC's own retry": {
			dial: []grpc.DialOption{grpc.WithDefaultServiceConfig(builtInRetry)}, bare: true, calls: 2, distinct: 1,
		},
		"our client turns gRPC's own retry off": {
			dial: []grpc.DialOption{grpc.WithDefaultServiceConfig(builtInRetry)}, calls: 2, distinct: 1,
		},
		"a bare client with go-grpc-middleware's retry": {
			dial: []grpc.DialOption{grpc.WithChainUnaryInterceptor(middleware())}, bare: true, calls: 2, distinct: 1,
		},
		"go-grpc-middleware's retry around the call, with the caller's key": {
			client: []interceptors.ClientOption{interceptors.PerCall(middleware()), interceptors.WithMaxAttempts(1)},
			opts:   []grpc.CallOption{interceptors.WithKey("k")}, calls: 2, distinct: 1,
		},
		"go-grpc-middleware's retry around the call, with a fresh key": {
			client: []interceptors.ClientOption{interceptors.PerCall(middleware()), interceptors.WithMaxAttempts(1)}, calls: 2, distinct: 1,
		},
		"go-grpc-middleware's retry around every try": {
			client: []interceptors.ClientOption{interceptors.PerTry(middleware())}, calls: 2, distinct: 1,
		},
		"go-grpc-middleware's retry outside of our chain, with the caller's key": {
			client: []interceptors.ClientOption{interceptors.WithMaxAttempts(1)},
			dial:   []grpc.DialOption{grpc.WithChainUnaryInterceptor(middleware())},
			opts:   []grpc.CallOption{interceptors.WithKey("k")}, calls: 2, distinct: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var s seen
				w := newWorld(t, setup{})
				w.arrived = s.arrived
				w.cutAfter = func(n int) bool { return n == 1 }
				ctx, conn := t.Context(), (*grpc.ClientConn)(nil)
				if c.bare {
					conn = w.dialWith(t, c.dial)
					ctx = metadata.AppendToOutgoingContext(ctx, interceptors.HeaderKey, "k")
				} else {
					ours, err := interceptors.ClientOptions(c.client...)
					require.NoError(t, err)
					conn = w.dialWith(t, append(c.dial[:len(c.dial):len(c.dial)], ours...))
				}
				defer func() { require.NoError(t, conn.Close()) }()
				client := demov1.NewPaymentsServiceClient(conn)
				resp, err := client.Charge(ctx, order(), c.opts...)
				require.NoError(t, err)
				require.Equal(t, "x", resp.GetChargeId())
				require.Equal(t, 1, w.ran())
				require.Equal(t, c.calls, w.called())
				distinct := map[string]bool{}
				for _, key := range s.keys {
					distinct[key] = true
				}
				require.Len(t, distinct, c.distinct)
				require.Len(t, s.keys, c.calls)

				if len(c.opts) == 0 && !c.bare {
					_, err = client.Charge(ctx, order())
					require.NoError(t, err)
					require.Equal(t, 2, w.ran(), "another call is another intent")
				}
			})
		})
	}
}

func TestGRPCsOwnCasesPassUnchanged(t *testing.T) { // E08
	t.Parallel()
	cases := map[string]func(ctx context.Context, c grpc_testing.TestServiceClient, opts ...grpc.CallOption){
		"empty unary":                 interop.DoEmptyUnaryCall,
		"large unary":                 interop.DoLargeUnaryCall,
		"client streaming":            interop.DoClientStreaming,
		"server streaming":            interop.DoServerStreaming,
		"ping pong":                   interop.DoPingPong,
		"empty stream":                interop.DoEmptyStream,
		"timeout on sleeping server":  interop.DoTimeoutOnSleepingServer,
		"cancel after begin":          interop.DoCancelAfterBegin,
		"cancel after first response": interop.DoCancelAfterFirstResponse,
		"custom metadata":             interop.DoCustomMetadata,
		"status code and message":     interop.DoStatusCodeAndMessage,
		"special status message":      interop.DoSpecialStatusMessage,
		"unimplemented": func(ctx context.Context, _ grpc_testing.TestServiceClient, _ ...grpc.CallOption) {
			conn, _ := ctx.Value(connKey{}).(*grpc.ClientConn)
			interop.DoUnimplementedService(ctx, grpc_testing.NewUnimplementedServiceClient(conn))
			interop.DoUnimplementedMethod(ctx, conn)
		},
	}
	// A case that fails ends the process with its own words.
	for name, run := range cases {
		for kind, opts := range map[string][]grpc.CallOption{
			"without a key": nil,
			// Under a key an UNKNOWN error is asked for again: the case is about a
			// single answer.
			"with a key": {interceptors.WithFreshKey(), interceptors.WithMaxAttempts(1)},
		} {
			if name == "unimplemented" && opts != nil {
				continue // it takes no options
			}
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setup{})
					ctx := context.WithValue(t.Context(), connKey{}, w.conn)
					run(ctx, grpc_testing.NewTestServiceClient(w.conn), opts...)
					require.Equal(t, len(opts) > 0 && w.called() > 0, w.asked.Load() > 0, "dedupd was asked")
				})
			})
		}
	}
}

func TestAStreamIsNeverSentAgain(t *testing.T) { // E08
	t.Parallel()
	for name, first := range map[string]bool{"before its first message": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				streams, told := 0, 0
				w := newWorld(t, setup{
					server: []interceptors.ServerOption{interceptors.WithObserver(interceptors.Observer{Stream: func(string, bool) { streams++ }})},
					client: []interceptors.ClientOption{
						interceptors.WithSafeToRetry(grpc_testing.TestService_FullDuplexCall_FullMethodName),
						interceptors.WithCallObserver(interceptors.CallObserver{Stream: func(context.Context, string) { told++ }}),
					},
					dial: []grpc.DialOption{grpc.WithDefaultServiceConfig(builtInRetry)},
				})
				ctx := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "k")
				stream, err := grpc_testing.NewTestServiceClient(w.conn).FullDuplexCall(ctx)
				require.NoError(t, err)
				if first {
					require.NoError(t, stream.Send(&grpc_testing.StreamingOutputCallRequest{
						ResponseParameters: []*grpc_testing.ResponseParameters{{Size: 3}},
					}))
					_, err = stream.Recv()
					require.NoError(t, err)
				}
				synctest.Wait()
				require.Equal(t, 1, streams)
				w.cut()
				_, err = stream.Recv()
				require.Equal(t, codes.Unavailable, status.Code(err))
				pass(time.Minute)
				require.Equal(t, 1, streams)
				require.Equal(t, 1, told)
			})
		})
	}
}

type connKey struct{}
