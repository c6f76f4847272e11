package demo

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
)

// counting is a payments service that only counts.
type counting struct {
	demov1.UnimplementedPaymentsServiceServer

	calls atomic.Int64
	fail  bool
}

func (c *counting) Charge(context.Context, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	c.calls.Add(1)
	if c.fail {
		return nil, status.Error(codes.FailedPrecondition, "declined")
	}
	return &demov1.ChargeResponse{ChargeId: "ch"}, nil
}

// behindProxy returns a client whose calls go through a proxy to service.
func behindProxy(t *testing.T, service demov1.PaymentsServiceServer, f *faults) demov1.PaymentsServiceClient {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	demov1.RegisterPaymentsServiceServer(s, service)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	p, err := newProxy(t.Context(), lis.Addr().String(), f)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- p.Run(ctx) }()
	conn, err := grpc.NewClient(p.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		cancel()
		require.NoError(t, <-ran)
		s.Stop()
		require.NoError(t, <-served)
	})
	return demov1.NewPaymentsServiceClient(conn)
}

func TestProxyWithoutFaultsLosesNothing(t *testing.T) {
	t.Parallel()
	service := &counting{}
	payments := behindProxy(t, service, newFaults(0, 1))
	for range 50 {
		reply, err := payments.Charge(t.Context(), &demov1.ChargeRequest{Order: "o"})
		require.NoError(t, err)
		require.Equal(t, "ch", reply.GetChargeId())
	}
	require.EqualValues(t, 50, service.calls.Load())
}

// A02: the reply is lost, the effect is not.
func TestProxyLosesTheReplyOfACallThatWasServed(t *testing.T) {
	t.Parallel()
	for _, service := range []*counting{{}, {fail: true}} {
		f := newFaults(0.5, 1)
		payments := behindProxy(t, service, f)
		answered := int64(0)
		for range 100 {
			_, err := payments.Charge(t.Context(), &demov1.ChargeRequest{Order: "o"})
			if code := status.Code(err); code != codes.Unavailable {
				require.Contains(t, []codes.Code{codes.OK, codes.FailedPrecondition}, code)
				answered++
			}
		}
		require.Positive(t, f.replies.Load())
		require.Positive(t, f.requests.Load())
		require.Equal(t, 100-f.requests.Load(), service.calls.Load(), "every request that was not cut was served once")
		require.Equal(t, 100-f.requests.Load()-f.replies.Load(), answered, "every reply that was not lost arrived")
	}
}

func TestProxyToABackendThatIsDownClosesConnections(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, lis.Close())
	p, err := newProxy(t.Context(), lis.Addr().String(), newFaults(0, 1))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- p.Run(ctx) }()
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, conn.Close())
	cancel()
	require.NoError(t, <-ran)
}

func TestFaultsOfOneSeedAreTheSame(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) []bool {
		f := newFaults(0.3, seed)
		out := make([]bool, 100)
		for i := range out {
			out[i] = f.loseReply()
		}
		return out
	}
	seven := draw(7)
	require.Equal(t, seven, draw(7))
	require.NotEqual(t, seven, draw(8))
}
