package dedupdtest_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/dedupdtest"
)

// bank stands for the outer world: what is booked there stays booked.
type bank struct {
	kit    *dedupdtest.Kit
	booked map[string]*demov1.ChargeResponse
}

func (b *bank) book(order string, amount int64) *demov1.ChargeResponse {
	b.booked[order] = &demov1.ChargeResponse{ChargeId: "charge of " + order, Order: order, Amount: amount}
	b.kit.Effect()
	return b.booked[order]
}

// payments is the service: its handler books, its reconciler looks.
type payments struct {
	demov1.UnimplementedPaymentsServiceServer
	bank *bank
}

func (p *payments) Charge(_ context.Context, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return p.bank.book(req.GetOrder(), req.GetAmount()), nil
}

func (b *bank) reconcile(_ context.Context, _ interceptors.Attempt, req proto.Message) (interceptors.Verdict, error) {
	charge, _ := req.(*demov1.ChargeRequest)
	if done := b.booked[charge.GetOrder()]; done.GetAmount() == charge.GetAmount() {
		return interceptors.VerdictApplied(done), nil
	}
	return interceptors.VerdictNotSeen(), nil
}

// A service proves that neither its handler nor its reconciler charges twice.
func Example() {
	var t testing // in a test: func TestCharge(t *testing.T)
	defer t.end()

	kit := dedupdtest.New(&t)
	bank := &bank{kit: kit, booked: map[string]*demov1.ChargeResponse{}}
	conn := kit.Serve(func(s grpc.ServiceRegistrar) { demov1.RegisterPaymentsServiceServer(s, &payments{bank: bank}) },
		interceptors.SharedCaller(),
		interceptors.WithReconciler(demov1.PaymentsService_Charge_FullMethodName, interceptors.Bounded, bank.reconcile))
	charge := func(order string) dedupdtest.Call {
		return dedupdtest.Unary(demov1.NewPaymentsServiceClient(conn).Charge, &demov1.ChargeRequest{Order: order, Amount: 12})
	}

	fmt.Println("twice:       ", kit.Twice(charge("1")))
	fmt.Println("lose reply:  ", kit.LoseReply(charge("2")))
	fmt.Println("kill between:", kit.KillBetween(charge("3")))
	fmt.Println("lapse lease: ", kit.LapseLease(charge("4")))
	// Output:
	// twice:        first answered, second replayed, effects 1
	// lose reply:   first answered, second replayed, effects 1
	// kill between: first answered, second answered, effects 1
	// lapse lease:  first answered, second answered, effects 1
}

// testing is what the example has instead of a *testing.T.
type testing struct{ ends []func() }

func (t *testing) Helper()                           {}
func (t *testing) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (t *testing) Cleanup(f func())                  { t.ends = append(t.ends, f) }

func (t *testing) end() {
	for _, f := range t.ends {
		f()
	}
}
