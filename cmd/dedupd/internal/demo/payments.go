package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// work is how long a charge takes before the money moves: half of it at least.
const work = 4 * time.Millisecond

// PaymentsConfig is how the sample service runs.
type PaymentsConfig struct {
	Listen string // host:port
	Ledger string // file, made if it does not exist
	// Database is the URL of a database that holds the ledger instead, charged
	// through an inbox; its tables are there. Dedupd is required with it.
	Database string
	// Dedupd is the gRPC address of dedupd; empty runs the handler for every
	// request, as a service without protection does.
	Dedupd string
}

// ServePayments serves the sample payments service until ctx ends, and then lets
// the handlers at work finish.
func ServePayments(ctx context.Context, cfg PaymentsConfig) (err error) {
	t, err := openTill(ctx, cfg)
	if err != nil {
		return fmt.Errorf("cannot open the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return err
	}
	var options []grpc.ServerOption
	if cfg.Dedupd != "" {
		guard, err := newProtection(ctx, cfg.Dedupd, t.settles())
		if err != nil {
			return errors.Join(err, lis.Close())
		}
		defer func() { err = errors.Join(err, guard.Close()) }()
		options = guard.options
	}
	s := grpc.NewServer(options...)
	demov1.RegisterPaymentsServiceServer(s, t)
	healthv1.RegisterHealthServer(s, health.NewServer())
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		s.GracefulStop()
	})()
	if err := s.Serve(lis); err != nil {
		return err
	}
	<-stopped
	return nil
}

// till is a sample service over its ledger.
type till interface {
	demov1.PaymentsServiceServer
	// settles is how a charge is settled whose handler was interrupted.
	settles() interceptors.ServerOption
	Close() error
}

func openTill(ctx context.Context, cfg PaymentsConfig) (till, error) {
	if cfg.Database != "" {
		return openAccount(ctx, cfg.Database)
	}
	book, err := openLedger(cfg.Ledger)
	if err != nil {
		return nil, err
	}
	return &payments{ledger: book}, nil
}

// payments is the sample service. Its handler knows nothing of retries: it takes
// money whenever it is called.
type payments struct {
	demov1.UnimplementedPaymentsServiceServer

	ledger *ledger
}

// Charge takes money. Under dedupd it hands its grant's record and fence to the
// ledger, which refuses it when a later grant has been there.
func (p *payments) Charge(ctx context.Context, request *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	if request.GetOrder() == "" || request.GetAmount() < 1 {
		return nil, status.Error(codes.InvalidArgument, "a charge names an order and an amount of 1 or more")
	}
	if err := pause(ctx, jitter(work)); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	c := charge{ID: newChargeID(), Order: request.GetOrder(), Amount: request.GetAmount()}
	c.Record, c.Fence = grantOf(ctx)
	if err := p.ledger.Charge(c); err != nil {
		return nil, status.Errorf(codes.Internal, "the ledger did not take the charge: %v", err)
	}
	return receipt(c), nil
}

func (p *payments) settles() interceptors.ServerOption {
	return interceptors.WithReconciler(demov1.PaymentsService_Charge_FullMethodName, interceptors.Fenced, p.ledger.reconcile)
}

// Close gives the ledger back.
func (p *payments) Close() error { return p.ledger.Close() }

// GetCharge tells what the ledger has for an order.
func (p *payments) GetCharge(_ context.Context, request *demov1.GetChargeRequest) (*demov1.GetChargeResponse, error) {
	reply := &demov1.GetChargeResponse{}
	for _, c := range p.ledger.Of(request.GetOrder()) {
		reply.Charges = append(reply.Charges, receipt(c))
	}
	return reply, nil
}

// receipt is the reply to the request that made c.
func receipt(c charge) *demov1.ChargeResponse {
	return &demov1.ChargeResponse{ChargeId: c.ID, Order: c.Order, Amount: c.Amount}
}

func newChargeID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return "ch_" + hex.EncodeToString(b[:])
}
