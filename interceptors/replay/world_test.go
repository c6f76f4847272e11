package replay_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/dedupdtest"
	"github.com/dedupd/dedupd/interceptors/replay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const charge = demov1.PaymentsService_Charge_FullMethodName

// world is a payments service with dead letters of caller ada, and a network to
// it that can be cut.
type world struct {
	demov1.UnimplementedPaymentsServiceServer
	t    *testing.T
	kit  *dedupdtest.Kit
	conn grpc.ClientConnInterface

	mu      sync.Mutex
	fault   func(n int) error // of the n-th run; nil: none
	runs    map[string]int    // by order
	sent    []time.Time       // calls that were sent
	busy    int
	crowd   int // the most at a time
	down    bool
	deaf    bool          // answers are lost
	takes   time.Duration // a run
	callers []string      // of the runs, as FromReplay tells them
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, kit: dedupdtest.New(t), runs: map[string]int{}}
	w.conn = w.kit.Serve(func(s grpc.ServiceRegistrar) {
		demov1.RegisterPaymentsServiceServer(s, w)
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: "shop.v1.Shop", HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{MethodName: "Buy", Handler: buy}},
		}, w)
	}, interceptors.WithCaller(callerOf))
	return w
}

// buy is a method that no proto file tells of.
func buy(srv any, ctx context.Context, dec func(any) error, around grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // gRPC's order
	req := &demov1.ChargeRequest{}
	if err := dec(req); err != nil {
		return nil, err
	}
	return around(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/shop.v1.Shop/Buy"}, func(ctx context.Context, req any) (any, error) {
		w, _ := srv.(*world)
		order, _ := req.(*demov1.ChargeRequest)
		return w.Charge(ctx, order)
	})
}

func callerOf(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(append(md["authorization"], "ada")[:1], ""), nil
}

func (w *world) Charge(ctx context.Context, q *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	w.mu.Lock()
	w.runs[q.GetOrder()]++
	n, fault, takes := w.runs[q.GetOrder()], w.fault, w.takes
	w.busy++
	w.crowd = max(w.crowd, w.busy)
	from, _ := interceptors.FromReplay(ctx)
	w.callers = append(w.callers, string(from.Caller))
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
	}()
	if takes > 0 {
		<-time.After(takes)
	}
	if fault != nil {
		if err := fault(n); err != nil {
			return nil, err
		}
	}
	return &demov1.ChargeResponse{ChargeId: fmt.Sprint("charge ", n), Order: q.GetOrder()}, nil
}

// Invoke is the replayer's way to the service.
func (w *world) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	w.mu.Lock()
	w.sent = append(w.sent, time.Now())
	down, deaf := w.down, w.deaf
	w.mu.Unlock()
	if down {
		return status.Error(codes.Unavailable, "connection refused")
	}
	err := w.conn.Invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "replayer"), method, args, reply, opts...)
	if deaf {
		return status.Error(codes.DeadlineExceeded, "the answer was lost")
	}
	return err
}

func (w *world) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) ran(order string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[order]
}

// park parks a charge of ada's, and returns its id.
func (w *world) park(order string) []byte { return w.parkTo(charge, order) }

func (w *world) parkTo(method, order string) []byte {
	w.t.Helper()
	value, err := proto.Marshal(&demov1.ChargeRequest{Order: order, Amount: 12, Currency: "EUR"})
	require.NoError(w.t, err)
	parkID := make([]byte, 16)
	_, err = rand.Read(parkID)
	require.NoError(w.t, err)
	resp, err := w.kit.DeadLetters().Park(w.t.Context(), &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: &dedupv1.Identity{
			Namespace: dedupdtest.Namespace, Operation: method, Caller: []byte("ada"), Key: []byte(order),
		}},
		ParkId: parkID, Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: method,
		Request: &dedupv1.Response{TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeRequest", Value: value},
	})
	require.NoError(w.t, err)
	return resp.GetEntry().GetEntryId()
}

func (w *world) replayer(c replay.Config) *replay.Replayer {
	w.t.Helper()
	c.DeadLetters, c.Conn, c.Namespace = w.kit.DeadLetters(), w, dedupdtest.Namespace
	if c.Rate == 0 {
		c.Rate = 1000
	}
	r, err := replay.New(c)
	require.NoError(w.t, err)
	return r
}

// run runs a replayer in the background; stop ends it and waits for it.
func (w *world) run(c replay.Config) (stop func()) {
	r := w.replayer(c)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.t.Cleanup(cancel)
	return func() {
		cancel()
		require.NoError(w.t, <-ended)
	}
}

func (w *world) entry(id []byte) *dedupv1.DeadLetter {
	w.t.Helper()
	resp, err := w.kit.DeadLetters().Get(w.t.Context(), &dedupv1.DeadLetterServiceGetRequest{EntryId: id})
	require.NoError(w.t, err)
	return resp.GetEntry()
}

func (w *world) requireResult(id []byte, want dedupv1.ReplayResult) {
	w.t.Helper()
	e := w.entry(id)
	require.Equal(w.t, want.String(), e.GetResult().String())
}

// replayed replays the entries once.
func (w *world) replayed(r *replay.Replayer, ids ...[]byte) map[string]replay.Result {
	w.t.Helper()
	got := map[string]replay.Result{}
	require.NoError(w.t, r.Replay(w.t.Context(), ids, func(res replay.Result) { got[string(res.EntryID)] = res }))
	return got
}

// pass lets time go by; every test runs in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

const (
	replayedResult = dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED
	failedResult   = dedupv1.ReplayResult_REPLAY_RESULT_FAILED
)

// keyless is a service that was never given the interceptors.
type keyless struct{ *world }

func (k keyless) Invoke(ctx context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	order, _ := args.(*demov1.ChargeRequest)
	answer, err := k.Charge(ctx, order)
	if into, ok := reply.(*demov1.ChargeResponse); ok && err == nil {
		proto.Merge(into, answer)
	}
	return err
}
