package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const chargeMethod = demov1.PaymentsService_Charge_FullMethodName

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	return lis.Addr().String()
}

func connect(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// servePayments starts the sample service as a process of its own, and returns
// once it serves.
func servePayments(t *testing.T, addr, dedupd string) demov1.PaymentsServiceClient {
	t.Helper()
	cmd := command(t, "demo-payments", "--listen", addr, "--ledger", filepath.Join(t.TempDir(), "ledger"), "--dedupd", dedupd)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // a killed one
	})
	conn := connect(t, addr)
	_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	return demov1.NewPaymentsServiceClient(conn)
}

// newParker brings dead letters to dedupd; drained is closed once none waits in
// its spool any more.
func newParker(t *testing.T, dedupd, spool string) (parker *interceptors.Parker, drained <-chan struct{}) {
	t.Helper()
	conn, err := interceptors.DialDedupd([]string{dedupd}, interceptors.DialInsecure())
	require.NoError(t, err)
	done := make(chan struct{})
	empty := sync.OnceFunc(func() { close(done) })
	parker, err = interceptors.NewParker(interceptors.ParkerConfig{
		DeadLetters: dedupv1.NewDeadLetterServiceClient(conn), Spool: spool, CloseTime: time.Millisecond,
		Observer: interceptors.ParkObserver{Waiting: func(entries int, _ int64) {
			if entries == 0 {
				empty()
			}
		}},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		parker.Close()
		require.NoError(t, conn.Close())
	})
	return parker, done
}

// parkingClient is a client of the service at addr that parks what fails.
func parkingClient(t *testing.T, addr string, parker *interceptors.Parker) demov1.PaymentsServiceClient {
	t.Helper()
	quick, err := policy.NewBackoff(time.Millisecond, 2*time.Millisecond, 2)
	require.NoError(t, err)
	opts, err := interceptors.ClientOptions(interceptors.WithDeadLetters(parker), interceptors.WithParked(chargeMethod),
		interceptors.WithIdentity("demo", ""), interceptors.WithMaxAttempts(3), interceptors.WithBackoff(quick), interceptors.WithoutBreaker(), interceptors.WithoutBudget())
	require.NoError(t, err)
	return demov1.NewPaymentsServiceClient(connect(t, addr, opts...))
}

func pay(ctx context.Context, client demov1.PaymentsServiceClient, order string) error {
	_, err := client.Charge(ctx, &demov1.ChargeRequest{Order: order, Amount: 1999, Currency: "EUR"}, interceptors.WithKey(order))
	return err
}

// charged is how often the ledger took money for an order.
func charged(t *testing.T, payments demov1.PaymentsServiceClient, order string) int {
	t.Helper()
	reply, err := payments.GetCharge(t.Context(), &demov1.GetChargeRequest{Order: order})
	require.NoError(t, err)
	return len(reply.GetCharges())
}

// shop is a payments service in this process: with callers, reflection and a
// fault of its own.
type shopService struct {
	demov1.UnimplementedPaymentsServiceServer
	addr string

	mu      sync.Mutex
	fault   func(*demov1.ChargeRequest) error
	charges []string // order, amount, first caller and the caller that was replayed for
}

func serveShop(t *testing.T, dedupd string, opts ...interceptors.ServerOption) *shopService {
	t.Helper()
	s := &shopService{}
	conn, err := interceptors.DialDedupd([]string{dedupd}, interceptors.DialInsecure())
	require.NoError(t, err)
	life, end := context.WithCancel(context.Background())
	closed := make(chan struct{})
	parker, err := interceptors.NewParker(interceptors.ParkerConfig{DeadLetters: dedupv1.NewDeadLetterServiceClient(conn)})
	require.NoError(t, err)
	options, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(conn), append([]interceptors.ServerOption{
		interceptors.WithNamespace("shop"), interceptors.WithCaller(shopCaller), interceptors.WithDeadLetters(parker),
		interceptors.WithLifetime(life), interceptors.OnClosed(func() { close(closed) }), interceptors.WithLease(time.Second),
	}, opts...)...)
	require.NoError(t, err)
	srv := grpc.NewServer(options...)
	demov1.RegisterPaymentsServiceServer(srv, s)
	reflection.Register(srv)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = lis.Addr().String()
	served := make(chan error)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		require.NoError(t, <-served)
		end()
		<-closed
		parker.Close()
		require.NoError(t, conn.Close())
	})
	return s
}

// serveBare serves without interceptors, and returns the address.
func serveBare(t *testing.T, register func(grpc.ServiceRegistrar)) string {
	t.Helper()
	srv := grpc.NewServer()
	register(srv)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		require.NoError(t, <-served)
	})
	return lis.Addr().String()
}

func shopCaller(ctx context.Context) (string, error) {
	return strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ""), nil
}

func (s *shopService) Charge(ctx context.Context, q *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	by, _ := shopCaller(ctx)
	from, _ := interceptors.FromReplay(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		if err := s.fault(q); err != nil {
			return nil, err
		}
	}
	s.charges = append(s.charges, fmt.Sprintf("%s %d by %s for %s", q.GetOrder(), q.GetAmount(), by, from.Caller))
	return &demov1.ChargeResponse{ChargeId: fmt.Sprint("ch-", len(s.charges)), Order: q.GetOrder(), Amount: q.GetAmount()}, nil
}

func (s *shopService) did() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.charges...)
}

func (s *shopService) fails(f func(*demov1.ChargeRequest) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// parkOrder parks a charge of ada's for the shop, and returns its id.
func parkOrder(t *testing.T, dl dedupv1.DeadLetterServiceClient, order string, more func(*dedupv1.ParkRequest)) []byte {
	t.Helper()
	value, err := proto.Marshal(&demov1.ChargeRequest{Order: order, Amount: 12, Currency: "EUR"})
	require.NoError(t, err)
	req := &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: &dedupv1.Identity{
			Namespace: "shop", Operation: chargeMethod, Caller: []byte("ada"), Key: []byte(order),
		}},
		ParkId: make([]byte, 16), Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: chargeMethod,
		Request: &dedupv1.Response{TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeRequest", Value: value},
	}
	_, err = rand.Read(req.GetParkId())
	require.NoError(t, err)
	if more != nil {
		more(req)
	}
	resp, err := dl.Park(t.Context(), req)
	require.NoError(t, err)
	return resp.GetEntry().GetEntryId()
}

func (s *served) deadLetters(t *testing.T) dedupv1.DeadLetterServiceClient {
	t.Helper()
	return dedupv1.NewDeadLetterServiceClient(connect(t, s.grpc))
}

// listed are the dead letters that the command prints as JSON.
func listed(t *testing.T, addr string, args ...string) []*dedupv1.DeadLetter {
	t.Helper()
	stdout, _ := exits(t, exitDone, append([]string{"dlq", "list", "--addr", addr, "-o", "json", "--limit", "0"}, args...)...)
	var all []*dedupv1.DeadLetter
	for line := range strings.Lines(stdout) {
		e := &dedupv1.DeadLetter{}
		require.NoError(t, protojson.Unmarshal([]byte(line), e))
		all = append(all, e)
	}
	return all
}

// resultsOf reads what a command printed as JSON: results by entry.
func resultsOf(t *testing.T, stdout string) map[string]entryResult {
	t.Helper()
	all := map[string]entryResult{}
	for line := range strings.Lines(stdout) {
		var r entryResult
		require.NoError(t, json.Unmarshal([]byte(line), &r), line)
		all[r.Entry] = r
	}
	return all
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
