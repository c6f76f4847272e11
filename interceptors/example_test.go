package interceptors_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// customerOf stands for your authentication.
func customerOf(context.Context) (string, error) { return "customer 7", nil }

// How a service protects its methods.
func ExampleServerOptions() {
	protected := func() (*grpc.Server, error) {
		conn, err := interceptors.DialDedupd([]string{"127.0.0.1:7480"}, interceptors.DialInsecure())
		if err != nil {
			return nil, err
		}
		options, err := interceptors.ServerOptions(
			dedupv1.NewDedupServiceClient(conn),
			interceptors.WithNamespace("payments"),
			interceptors.WithCaller(customerOf),
		)
		if err != nil {
			return nil, err
		}
		return grpc.NewServer(options...), nil // register services and serve as always
	}
	_ = protected
	// Output:
}

// How a client calls it: under the same key on every retry, after a restart too.
func ExampleClientOptions() {
	dial := func() (*grpc.ClientConn, error) {
		options, err := interceptors.ClientOptions()
		if err != nil {
			return nil, err
		}
		return grpc.NewClient("127.0.0.1:9000", append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	}
	charge := func(ctx context.Context, payments demov1.PaymentsServiceClient, order string) error {
		key, err := interceptors.Key("charge", "order", order)
		if err != nil {
			return err
		}
		_, err = payments.Charge(ctx, &demov1.ChargeRequest{Order: order, Amount: 1200, Currency: "EUR"}, interceptors.WithKey(key))
		return err
	}
	_, _ = dial, charge
	// Output:
}

// The whole path in one process: the second call gets the first one's answer.
func Example() {
	if err := chargeTwice(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// charge 1 replayed: []
	// charge 1 replayed: [true]
}

func chargeTwice(ctx context.Context) error {
	store, err := embedded.OpenMemory(embedded.Options{})
	if err != nil {
		return err
	}
	defer store.Close() //nolint:errcheck // it was in memory
	dedupd, err := server.New(server.Config{Store: store})
	if err != nil {
		return err
	}
	options, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(dedupd.Conn()),
		interceptors.WithNamespace("payments"), interceptors.SharedCaller())
	if err != nil {
		return err
	}
	payments := grpc.NewServer(options...)
	demov1.RegisterPaymentsServiceServer(payments, &till{})
	listener := bufconn.Listen(1 << 16)
	go payments.Serve(listener) //nolint:errcheck // Stop ends it
	defer payments.Stop()

	dial, err := interceptors.ClientOptions()
	if err != nil {
		return err
	}
	dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	conn, err := grpc.NewClient("passthrough:///payments", dial...)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the example ends here
	for range 2 {
		var trailer metadata.MD
		resp, err := demov1.NewPaymentsServiceClient(conn).Charge(ctx,
			&demov1.ChargeRequest{Order: "4471", Amount: 1200, Currency: "EUR"},
			interceptors.WithKey("charge:order:4471"), grpc.Trailer(&trailer))
		if err != nil {
			return err
		}
		fmt.Println(resp.GetChargeId(), "replayed:", trailer[interceptors.TrailerReplayed]) //nolint:forbidigo // the output is the example
	}
	return nil
}

// till counts its charges.
type till struct {
	demov1.UnimplementedPaymentsServiceServer
	charges int
}

func (t *till) Charge(_ context.Context, req *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	t.charges++
	return &demov1.ChargeResponse{ChargeId: fmt.Sprint("charge ", t.charges), Order: req.GetOrder(), Amount: req.GetAmount()}, nil
}
