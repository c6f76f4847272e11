package policy

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
)

// echo answers with a receipt as long as the order's name, and counts.
type echo struct {
	demov1.UnimplementedPaymentsServiceServer
	ran *atomic.Int64
}

func (e echo) Charge(_ context.Context, r *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	e.ran.Add(1)
	return &demov1.ChargeResponse{ChargeId: strings.Repeat("c", int(r.GetAmount()))}, nil
}

// watch is a stats handler that remembers how much was sent.
type watch struct{ sent *atomic.Uint32 }

func (w watch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (w watch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (w watch) HandleConn(context.Context, stats.ConnStats)                       {}

func (w watch) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader:
		w.sent.Store(uint32(SentHeader))
	case *stats.OutPayload:
		w.sent.Store(uint32(SentMessage))
	}
}

// TestGRPCsOwnWordings holds the texts that classify.go looks for to those that
// the linked gRPC really uses, and what they mean to what really happened.
func TestGRPCsOwnWordings(t *testing.T) { // E06, D01
	t.Parallel()
	const limit = 100
	for _, tt := range []struct {
		name        string
		server      grpc.ServerOption
		client      grpc.CallOption
		order, size int
		metadata    metadata.MD
		code        codes.Code
		text        string
		sent        Sent
		ran         int64
		want        Answer
	}{
		{
			"a request over the client's limit", nil, grpc.MaxCallSendMsgSize(limit), 200, 0, nil,
			codes.ResourceExhausted, "trying to send message larger than max", SentHeader, 0,
			Answer{Retry: Permanent, Effect: EffectNone},
		},
		{
			"an answer over the server's limit", grpc.MaxSendMsgSize(limit), nil, 1, 200, nil,
			codes.ResourceExhausted, "trying to send message larger than max", SentMessage, 1,
			Answer{Retry: Permanent, Effect: EffectUnknown},
		},
		{
			"an answer over the client's limit", nil, grpc.MaxCallRecvMsgSize(limit), 1, 200, nil,
			codes.ResourceExhausted, "received message larger than max", SentMessage, 1,
			Answer{Retry: Permanent, Effect: EffectUnknown},
		},
		{
			"a request over the server's limit", grpc.MaxRecvMsgSize(limit), nil, 200, 0, nil,
			codes.ResourceExhausted, "received message larger than max", SentMessage, 0,
			Answer{Retry: Permanent, Effect: EffectUnknown},
		},
		{
			"metadata that gRPC refuses to send", nil, nil, 1, 0, metadata.Pairs("x-name", "имя"),
			codes.Internal, "non-printable", SentNothing, 0,
			Answer{Retry: Transient, Effect: EffectNone},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var ran atomic.Int64
			var sent atomic.Uint32
			sent.Store(uint32(SentNothing))
			client := start(t, echo{ran: &ran}, watch{&sent}, tt.server)
			ctx := metadata.NewOutgoingContext(t.Context(), tt.metadata)
			opts := []grpc.CallOption{}
			if tt.client != nil {
				opts = append(opts, tt.client)
			}
			_, err := client.Charge(ctx, &demov1.ChargeRequest{Order: strings.Repeat("o", tt.order), Amount: int64(tt.size)}, opts...)
			require.Equal(t, tt.code, status.Code(err))
			require.ErrorContains(t, err, tt.text)
			require.Equal(t, tt.sent, Sent(sent.Load()))
			require.Equal(t, tt.ran, ran.Load())
			require.Equal(t, tt.want, Default().Classify(Try{Err: err, Sent: Sent(sent.Load())}))
		})
	}
}

func start(t *testing.T, service echo, handler stats.Handler, option grpc.ServerOption) demov1.PaymentsServiceClient {
	t.Helper()
	opts := []grpc.ServerOption{}
	if option != nil {
		opts = append(opts, option)
	}
	srv := grpc.NewServer(opts...)
	demov1.RegisterPaymentsServiceServer(srv, service)
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///echo",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(handler))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		srv.Stop()
		require.NoError(t, <-served)
	})
	return demov1.NewPaymentsServiceClient(conn)
}
