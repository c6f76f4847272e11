package bench

import (
	"context"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/server"
)

const echoMethod = "/dedup.bench.v1.EchoService/Reserve"

// ServeEcho serves until ctx ends what a unary call costs at least: the messages
// of a granted Reserve, and nothing done with them.
func ServeEcho(ctx context.Context, addr string) error {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.NumStreamWorkers(uint32(server.StreamWorkers * runtime.GOMAXPROCS(0)))) //nolint:gosec // some hundreds
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "dedup.bench.v1.EchoService",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Reserve", Handler: echo}},
	}, struct{}{})
	healthv1.RegisterHealthServer(s, health.NewServer())
	defer context.AfterFunc(ctx, s.Stop)()
	return s.Serve(lis)
}

func echo(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // the signature is gRPC's
	request := new(dedupv1.ReserveRequest)
	if err := decode(request); err != nil {
		return nil, err
	}
	return &dedupv1.ReserveResponse{
		Answer: &dedupv1.ReserveResponse_Granted{Granted: &dedupv1.Granted{
			Fence: time.Now().UnixMicro(), Mode: dedupv1.Mode_MODE_RUN,
			LeaseLeft: durationpb.New(30 * time.Second), MaxOutcomeBytes: 1 << 20, Skew: durationpb.New(0),
		}},
		RecordId: request.GetFingerprints()[0].GetDigest(),
	}, nil
}

func echoCall(conn grpc.ClientConnInterface) call {
	return func(ctx context.Context, _, _ int) error {
		return conn.Invoke(ctx, echoMethod, freshReserve(), new(dedupv1.ReserveResponse))
	}
}
