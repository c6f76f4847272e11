package main_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// servePayments is the payments server of the README. It serves until lis is
// closed.
func servePayments(lis net.Listener, dedupdAddress string, ledger *ledger) error {
	dedupd, err := interceptors.DialDedupd([]string{dedupdAddress}, interceptors.DialInsecure())
	if err != nil {
		return err
	}
	defer dedupd.Close()
	options, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(dedupd),
		interceptors.WithNamespace("payments"),
		interceptors.WithCaller(customer), // from your authentication, never from metadata
		interceptors.WithReconciler(demov1.PaymentsService_Charge_FullMethodName, interceptors.Bounded,
			func(ctx context.Context, _ interceptors.Attempt, req proto.Message) (interceptors.Verdict, error) {
				receipt, err := ledger.Find(ctx, req.(*demov1.ChargeRequest).GetOrder())
				switch {
				case err != nil:
					return interceptors.VerdictStillUnknown(), err
				case receipt == nil:
					return interceptors.VerdictNotSeen(), nil
				}
				return interceptors.VerdictApplied(receipt), nil
			}),
	)
	if err != nil {
		return err
	}
	srv := grpc.NewServer(options...)
	demov1.RegisterPaymentsServiceServer(srv, ledger)
	return srv.Serve(lis)
}

// pay places the charge of the README.
func pay(ctx context.Context, paymentsAddress, order string) (*demov1.ChargeResponse, error) {
	options, err := interceptors.ClientOptions()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(paymentsAddress, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	key, err := interceptors.Key("charge", "order", order)
	if err != nil {
		return nil, err
	}
	return demov1.NewPaymentsServiceClient(conn).Charge(ctx,
		&demov1.ChargeRequest{Order: order, Amount: 1999, Currency: "EUR"},
		interceptors.WithKey(key))
}

// A second call with the same key gets the first answer, and the money moves
// once.
func Example_readme() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dedupdAddress, stopped := serveDedupd(ctx)
	defer func() { stop(); <-stopped }()

	book, lis, served := &ledger{}, listen(), make(chan error)
	go func() { served <- servePayments(lis, dedupdAddress, book) }()
	defer func() { _ = lis.Close(); <-served }()

	for range 2 {
		receipt, err := pay(ctx, lis.Addr().String(), "4471")
		fmt.Println(receipt.GetChargeId(), receipt.GetAmount(), err)
	}
	fmt.Println("charges:", len(book.charges))
	// Output:
	// ch-1 1999 <nil>
	// ch-1 1999 <nil>
	// charges: 1
}

// ledger is a payments service that counts its charges.
type ledger struct {
	demov1.UnimplementedPaymentsServiceServer

	mu      sync.Mutex
	charges []*demov1.ChargeResponse
}

func (l *ledger) Charge(_ context.Context, q *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	receipt := &demov1.ChargeResponse{ChargeId: fmt.Sprintf("ch-%d", len(l.charges)+1), Order: q.GetOrder(), Amount: q.GetAmount()}
	l.charges = append(l.charges, receipt)
	return receipt, nil
}

func (l *ledger) Find(_ context.Context, order string) (*demov1.ChargeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, receipt := range l.charges {
		if receipt.GetOrder() == order {
			return receipt, nil
		}
	}
	return nil, nil
}

func customer(context.Context) (string, error) { return "customer-7", nil }

func listen() net.Listener {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return lis
}

// serveDedupd runs a dedupd in memory until ctx ends.
func serveDedupd(ctx context.Context) (address string, stopped <-chan struct{}) {
	done := make(chan struct{})
	lis := listen()
	go func() {
		defer close(done)
		store, err := embedded.OpenMemory(embedded.Options{})
		if err != nil {
			slog.ErrorContext(ctx, err.Error())
			return
		}
		srv, err := server.New(server.Config{Store: store})
		if err == nil {
			err = srv.Run(ctx, lis, nil)
		}
		if err != nil {
			slog.ErrorContext(ctx, err.Error())
		}
		_ = store.Close()
	}()
	return lis.Addr().String(), done
}
