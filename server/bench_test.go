package server_test

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// The benchmarks run client and server in one process over loopback: for
// profiles and for comparing one change with another. The ratio that counts is
// taken between two processes, by the binary's own benchmark.

const benchCallers = 64

// echoService answers a Reserve with nothing behind it.
type echoService struct {
	dedupv1.UnimplementedDedupServiceServer
}

func (echoService) Reserve(_ context.Context, req *dedupv1.ReserveRequest) (*dedupv1.ReserveResponse, error) {
	return &dedupv1.ReserveResponse{RecordId: req.GetAttemptId()}, nil
}

// serve runs a server over a durable store, and returns a client over the wire
// and the client in process.
func serve(tb testing.TB) (wire, inProcess dedupv1.DedupServiceClient) {
	tb.Helper()
	store, err := embedded.Open(embedded.Options{Dir: tb.TempDir()})
	require.NoError(tb, err)
	s, err := server.New(server.Config{Store: store})
	require.NoError(tb, err)
	lis := listen(tb)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, lis, nil) }()
	tb.Cleanup(func() {
		stop()
		require.NoError(tb, <-done)
		require.NoError(tb, store.Close())
	})
	return dial(tb, lis), dedupv1.NewDedupServiceClient(s.Conn())
}

func serveEcho(tb testing.TB) dedupv1.DedupServiceClient {
	tb.Helper()
	s := grpc.NewServer()
	dedupv1.RegisterDedupServiceServer(s, echoService{})
	lis := listen(tb)
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	tb.Cleanup(func() {
		s.Stop()
		require.NoError(tb, <-done)
	})
	return dial(tb, lis)
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	return lis
}

func dial(tb testing.TB, lis net.Listener) dedupv1.DedupServiceClient {
	tb.Helper()
	cc, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, cc.Close()) })
	return dedupv1.NewDedupServiceClient(cc)
}

func reserveOf(n uint64) *dedupv1.ReserveRequest {
	id := binary.BigEndian.AppendUint64(make([]byte, 8), n)
	key := append([]byte("0123456789012345678901234567890123456789012345678901234"), id...)
	return &dedupv1.ReserveRequest{
		Identity:     &dedupv1.Identity{Namespace: "bench", Operation: "/payments.v1.Payments/Charge", Caller: []byte("caller"), Key: append(key, '.')},
		Fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: make([]byte, 32)}},
		AttemptId:    id,
	}
}

func BenchmarkReserve(b *testing.B) {
	run := func(b *testing.B, c dedupv1.DedupServiceClient) {
		b.Helper()
		b.ReportAllocs()
		b.SetParallelism(benchCallers / 2)
		var n atomic.Uint64
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := c.Reserve(context.Background(), reserveOf(n.Add(1))); err != nil {
					b.Error(err)
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	}
	b.Run("echo", func(b *testing.B) { run(b, serveEcho(b)) })
	b.Run("durable", func(b *testing.B) {
		wire, _ := serve(b)
		run(b, wire)
	})
	b.Run("durable in process", func(b *testing.B) {
		_, inProcess := serve(b)
		run(b, inProcess)
	})
	b.Run("replay", func(b *testing.B) {
		wire, _ := serve(b)
		req := reserveOf(1)
		res, err := wire.Reserve(context.Background(), req)
		require.NoError(b, err)
		_, err = wire.Complete(context.Background(), &dedupv1.CompleteRequest{
			Identity: req.GetIdentity(), AttemptId: req.GetAttemptId(), Fence: res.GetGranted().GetFence(),
			Outcome: &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{Value: make([]byte, 256)}}},
		})
		require.NoError(b, err)
		b.ResetTimer()
		b.ReportAllocs()
		b.SetParallelism(benchCallers / 2)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := wire.Reserve(context.Background(), req); err != nil {
					b.Error(err)
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	})
}
