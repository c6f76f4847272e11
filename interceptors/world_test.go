package interceptors_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const charge = demov1.PaymentsService_Charge_FullMethodName

// world is a payments service behind our interceptors, dedupd in process, and a
// network between client and service that can be cut. Every test runs it in a
// synctest bubble.
type world struct {
	demov1.UnimplementedPaymentsServiceServer

	// handle answers Charge; n counts the runs, from 1.
	handle func(ctx context.Context, n int, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error)
	// cutAfter decides whether the network is cut before the answer to the n-th
	// call goes out; arrived is told of every call.
	cutAfter func(n int) bool
	arrived  func(ctx context.Context, n int)
	// down: dedupd cannot be reached. hang: it does not answer. asked counts the
	// calls to it.
	down atomic.Bool
	hang atomic.Bool
	// ask stands on the way to dedupd, where an error is the answer, and lost on
	// the way back; set them before the first call.
	lost  func(method string) bool
	ask   func(ctx context.Context, method string) error
	asked atomic.Int64
	// refusing: the service takes no connections any more.
	refusing atomic.Bool

	// stop ends the service's lifetime and waits for what it does in the background.
	stop func()

	client demov1.PaymentsServiceClient
	conn   *grpc.ClientConn
	dedupd *server.Server

	listener *bufconn.Listener
	mu       sync.Mutex
	runs     int
	calls    int
	pipes    []net.Conn
}

type setup struct {
	maxOutcome int
	retention  time.Duration // and as long a tombstone; zero: the defaults
	server     []interceptors.ServerOption
	client     []interceptors.ClientOption
	dial       []grpc.DialOption
}

func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{listener: bufconn.Listen(1 << 20)}
	store, err := embedded.OpenMemory(embedded.Options{CacheBytes: 1 << 20, MemtableBytes: 1 << 20})
	require.NoError(t, err)
	config := server.Config{Store: store, MaxOutcome: s.maxOutcome, Retention: s.retention}
	if s.retention > 0 {
		config.Tombstone = &s.retention
	}
	w.dedupd, err = server.New(config)
	require.NoError(t, err)

	life, end := context.WithCancel(context.Background())
	closed := make(chan struct{})
	w.stop = func() {
		end()
		<-closed
	}
	opts, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(w), append([]interceptors.ServerOption{
		interceptors.WithNamespace("test"), interceptors.WithLifetime(life),
		interceptors.OnClosed(func() { close(closed) }),
		interceptors.WithCaller(callerOf), interceptors.Before(w.network),
	}, s.server...)...)
	require.NoError(t, err)
	g := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(16<<20))...)
	demov1.RegisterPaymentsServiceServer(g, w)
	grpc_testing.RegisterTestServiceServer(g, interop.NewTestServer())
	g.RegisterService(undeclaredService(), w)
	served := make(chan error, 1)
	go func() { served <- g.Serve(w.listener) }()

	w.conn = w.dial(t, s.client, s.dial...)
	w.client = demov1.NewPaymentsServiceClient(w.conn)
	t.Cleanup(func() {
		require.NoError(t, w.conn.Close())
		g.Stop()
		w.stop()
		// A test that calls nothing may stop the service before it has begun.
		if err := <-served; !w.refusing.Load() && !errors.Is(err, grpc.ErrServerStopped) {
			require.NoError(t, err)
		}
		require.NoError(t, store.Close())
	})
	return w
}

// undeclared is Charge by a name that no proto file declares: its client gives its
// calls no key. Its server, by gRPC's generated code, takes it for Charge.
const undeclared = "/undeclared.v1.Undeclared/Charge"

func undeclaredService() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "undeclared.v1.Undeclared", HandlerType: (*demov1.PaymentsServiceServer)(nil),
		Methods: demov1.PaymentsService_ServiceDesc.Methods,
	}
}

// dial makes one more client connection.
func (w *world) dial(t *testing.T, opts []interceptors.ClientOption, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	dial, err := interceptors.ClientOptions(opts...)
	require.NoError(t, err)
	return w.dialWith(t, append(dial, more...))
}

// dialWith makes a connection with the options of ClientOptions.
func (w *world) dialWith(t *testing.T, dial []grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	dial = append(dial[:len(dial):len(dial)],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := w.listener.DialContext(ctx)
			w.mu.Lock()
			defer w.mu.Unlock()
			w.pipes = append(w.pipes, c)
			return c, err
		}))
	conn, err := grpc.NewClient("passthrough:///payments", dial...)
	require.NoError(t, err)
	return conn
}

// network stands for what is between client and service: it sees every call,
// and may lose its answer.
func (w *world) network(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	w.mu.Lock()
	w.calls++
	n, arrived, cutAfter := w.calls, w.arrived, w.cutAfter
	w.mu.Unlock()
	if arrived != nil {
		arrived(ctx, n)
	}
	resp, err := handler(ctx, req)
	if cutAfter != nil && cutAfter(n) {
		w.cut()
	}
	return resp, err
}

// cut breaks every connection of the client.
func (w *world) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pipes {
		_ = p.Close()
	}
	w.pipes = nil
}

// refuse cuts every connection and takes no new one.
func (w *world) refuse() {
	w.refusing.Store(true)
	_ = w.listener.Close()
	w.cut()
}

// Invoke is the service's way to dedupd.
func (w *world) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	w.asked.Add(1)
	if w.down.Load() {
		return status.Error(codes.Unavailable, "no way to dedupd")
	}
	if w.ask != nil {
		if err := w.ask(ctx, method[len("/dedup.v1.DedupService/"):]); err != nil {
			return err
		}
	}
	if w.hang.Load() {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	err := w.dedupd.Conn().Invoke(ctx, method, args, reply, opts...)
	if w.lost != nil && w.lost(method[len("/dedup.v1.DedupService/"):]) {
		return status.Error(codes.Unavailable, "the reply was lost")
	}
	return err
}

func (w *world) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func (w *world) Charge(ctx context.Context, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	w.mu.Lock()
	w.runs++
	n := w.runs
	w.mu.Unlock()
	if w.handle != nil {
		return w.handle(ctx, n, req)
	}
	return receipt(n), nil
}

func (w *world) GetCharge(context.Context, *demov1.GetChargeRequest) (*demov1.GetChargeResponse, error) {
	return &demov1.GetChargeResponse{}, nil
}

func (w *world) ran() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs
}

func (w *world) called() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// state tells what dedupd has of a charge of caller "ada".
func (w *world) state(t *testing.T, key string) dedupv1.State {
	t.Helper()
	resp, err := dedupv1.NewDedupServiceClient(w.dedupd.Conn()).Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_Identity{Identity: &dedupv1.Identity{
			Namespace: "test", Operation: charge, Caller: []byte("ada"), Key: []byte(key),
		}},
	})
	require.NoError(t, err)
	return resp.GetRecord().GetState()
}

func receipt(n int) *demov1.ChargeResponse {
	return &demov1.ChargeResponse{ChargeId: strings.Repeat("x", n), Order: "4471", Amount: 12}
}

func order() *demov1.ChargeRequest {
	return &demov1.ChargeRequest{Order: "4471", Amount: 12, Currency: "EUR"}
}

// callerOf stands for authentication: it reads what a login interceptor checked.
func callerOf(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	switch token := md["authorization"]; {
	case len(token) == 0:
		return "ada", nil
	case token[0] == "nobody":
		return "", nil
	case token[0] == "broken":
		return "", errors.New("the token is broken")
	default:
		return token[0], nil
	}
}

func as(ctx context.Context, caller string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", caller)
}

func requireReason(t *testing.T, err error, code codes.Code, reason dedupv1.Reason) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	got, ok := interceptors.ReasonOf(err)
	require.True(t, ok, "%v", err)
	require.Equal(t, reason.String(), got.String())
}

// pass lets time go by; every test runs in a synctest bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // only called in bubbles
}

// takes is a handler that works for d before it answers.
func takes(d time.Duration) func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
		pass(d)
		return receipt(n), nil
	}
}

// fails is a handler whose n-th run returns the n-th error, and then succeeds.
func fails(errs ...error) func(context.Context, int, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
		if n <= len(errs) {
			return nil, errs[n-1]
		}
		return receipt(n), nil
	}
}

// bare is a client without our interceptors.
func (w *world) bare(t *testing.T) demov1.PaymentsServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///payments", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.listener.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return demov1.NewPaymentsServiceClient(conn)
}

// declined is an error with details, one of them of a type that nobody knows and
// one with unknown fields.
func declined(t *testing.T) error {
	t.Helper()
	info, err := anypb.New(&demov1.GetChargeRequest{Order: "4471"})
	require.NoError(t, err)
	info.Value = append(info.Value, 0xa2, 0x06, 1, 'u') // field 100
	return status.FromProto(&statuspb.Status{
		Code: int32(codes.NotFound), Message: "declined",
		Details: []*anypb.Any{{TypeUrl: "type.googleapis.com/nobody.knows.It", Value: []byte("\x0a\x01x")}, info},
	}).Err()
}

type proto = protobuf.Message
