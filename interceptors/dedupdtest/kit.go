package dedupdtest

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/server"
)

// Namespace is where the kit's records are.
const Namespace = "dedupdtest"

// TB is what the kit needs of a *testing.T.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(f func())
}

// Kit is an in-memory dedupd and the processes of one service that use it. Make
// one per test; its scenarios run one after the other. Effect may be called from
// any goroutine.
type Kit struct {
	t      TB
	store  *memory
	dedupd *server.Server

	register func(grpc.ServiceRegistrar)
	opts     []interceptors.ServerOption
	current  atomic.Pointer[process]
	stops    []func()

	mu      sync.Mutex
	effects int
	hook    func() // at the next effect
}

// New returns a kit that ends with the test.
func New(t TB) *Kit {
	t.Helper()
	k := &Kit{t: t, store: newMemory()}
	var err error
	if k.dedupd, err = server.New(server.Config{Store: k.store}); err != nil {
		t.Errorf("start the in-memory dedupd: %v", err)
	}
	t.Cleanup(func() {
		for _, stop := range k.stops {
			stop()
		}
	})
	return k
}

// Dedup reaches the in-memory dedupd, for a service that builds its own server.
func (k *Kit) Dedup() dedupv1.DedupServiceClient {
	return dedupv1.NewDedupServiceClient(k.dedupd.Conn())
}

// DeadLetters reaches the dead letters of the in-memory dedupd, for
// interceptors.NewParker and to look at what was parked.
func (k *Kit) DeadLetters() dedupv1.DeadLetterServiceClient {
	return dedupv1.NewDeadLetterServiceClient(k.dedupd.Conn())
}

// Serve starts the service as its main does: register registers its
// implementation, once for each process that a scenario starts, and opts are its
// options in production; of them only WithNamespace has a default. What the
// implementations share (a fake of the outer world) outlives the processes.
// Calls on the connection go to the newest process. Call it once.
func (k *Kit) Serve(register func(grpc.ServiceRegistrar), opts ...interceptors.ServerOption) grpc.ClientConnInterface {
	k.t.Helper()
	k.register, k.opts = register, opts
	k.start()
	return conn{k}
}

// Effect reports an effect: call it where the handler's fake of the outer world
// does what must not happen twice.
func (k *Kit) Effect() {
	k.mu.Lock()
	k.effects++
	hook := k.hook
	k.hook = nil
	k.mu.Unlock()
	if hook != nil {
		hook()
	}
}

// Effects is how many effects were reported so far.
func (k *Kit) Effects() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.effects
}

// Kill ends the current process as kill -9 does and starts the next one, which
// takes all later calls: dedupd hears nothing of the dead one any more, and its
// leases have lapsed. Call it from a handler, at the point where it is to die, and
// have the handler return at once: what it does after that a dead process would
// not have done.
func (k *Kit) Kill() {
	k.t.Helper()
	if p := k.current.Load(); p != nil {
		p.dead.Store(true)
	}
	k.store.lapse(0)
	k.start()
}

func (k *Kit) atNextEffect(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hook = f
}

// process is one process of the service.
type process struct {
	k    *Kit
	conn *grpc.ClientConn
	dead atomic.Bool // dedupd hears nothing of it any more
	dies atomic.Bool // it dies when it wants to tell how a run ended
	lose atomic.Bool // the next reply is lost

	mu       sync.Mutex
	lost     Answer // the reply that was lost
	returned Answer // what the handler returned last
}

func answerOf(resp any, err error) Answer {
	msg, ok := resp.(proto.Message)
	if err != nil || !ok {
		return Answer{Err: err}
	}
	return Answer{Response: msg}
}

// start starts one more process, which takes all calls from now on.
func (k *Kit) start() {
	k.t.Helper()
	p := &process{k: k}
	life, end := context.WithCancel(context.Background())
	closed := make(chan struct{})
	opts := append([]interceptors.ServerOption{
		interceptors.WithNamespace(Namespace), interceptors.Before(p.reply),
	}, k.opts...)
	opts = append(opts, interceptors.After(p.handler), interceptors.WithLifetime(life), interceptors.OnClosed(func() { close(closed) }))
	options, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(p), opts...)
	if err != nil {
		end()
		k.t.Errorf("start the service: %v", err)
		return
	}
	s := grpc.NewServer(options...)
	k.register(s)
	listener := bufconn.Listen(1 << 16)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(listener) // Stop ends it
	}()
	p.conn, err = grpc.NewClient("passthrough:///service", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		k.t.Errorf("connect to the service: %v", err)
	}
	k.current.Store(p)
	k.stops = append(k.stops, func() {
		_ = p.conn.Close() // nothing is on it any more
		s.Stop()
		<-served
		end()
		<-closed
	})
}

// reply is the way of a reply to the client, where it may be lost.
func (p *process) reply(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if p.lose.CompareAndSwap(true, false) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.lost = answerOf(resp, err)
		return nil, status.Error(codes.Unavailable, "the reply was lost")
	}
	return resp, err
}

// handler sees what the handler returns.
func (p *process) handler(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.returned = answerOf(resp, err)
	return resp, err
}

func (p *process) seen() (lost, returned Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost, p.returned
}

// Invoke is the process's way to dedupd. A dead one is turned away for good, so
// that it does not go on trying.
func (p *process) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if ends := strings.HasSuffix(method, "/Complete") || strings.HasSuffix(method, "/Release"); ends && p.dies.Load() {
		p.dead.Store(true)
	}
	if p.dead.Load() {
		return status.Error(codes.PermissionDenied, "the process is dead")
	}
	return p.k.dedupd.Conn().Invoke(ctx, method, args, reply, opts...)
}

// NewStream refuses: dedupd has no streams.
func (p *process) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "dedupd has no streams")
}

// conn sends every call to the newest process.
type conn struct{ k *Kit }

// Invoke sends a unary call.
func (c conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.k.current.Load().conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream begins a stream.
func (c conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.k.current.Load().conn.NewStream(ctx, desc, method, opts...)
}
