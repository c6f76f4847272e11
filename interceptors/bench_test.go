package interceptors_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// quick answers at once.
type quick struct {
	demov1.UnimplementedPaymentsServiceServer
	receipt *demov1.ChargeResponse
}

func (q *quick) Charge(context.Context, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	return q.receipt, nil
}

// BenchmarkUnary is what the interceptors cost a call over an in-memory
// connection: bare, on one side, on both, and with a key, dedupd in process.
// Beside the usual it tells how long a call took, as a multiple of the bare call
// that was made right after it (x-bare): without a key the aim is 1.03.
func BenchmarkUnary(b *testing.B) {
	store, err := embedded.OpenMemory(embedded.Options{CacheBytes: 8 << 20, MemtableBytes: 8 << 20})
	require.NoError(b, err)
	dedupd, err := server.New(server.Config{Store: store})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, store.Close()) })
	ours, err := interceptors.ServerOptions(
		dedupv1.NewDedupServiceClient(dedupd.Conn()),
		interceptors.WithNamespace("bench"), interceptors.SharedCaller(), interceptors.WithLifetime(b.Context()),
		interceptors.WithMethod(charge, interceptors.Method{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OPTIONAL}}))
	require.NoError(b, err)
	client, err := interceptors.ClientOptions()
	require.NoError(b, err)
	for _, c := range []struct {
		name   string
		client []grpc.DialOption
		server []grpc.ServerOption
		method string
		keyed  bool
	}{
		{name: "bare", method: undeclared},
		{name: "no key/client", client: client, method: undeclared},
		{name: "no key/server", server: ours, method: undeclared},
		{name: "no key/both", client: client, server: ours, method: undeclared},
		{name: "key/both", client: client, server: ours, method: charge, keyed: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			bare, conn := benchConn(b, nil, nil), benchConn(b, c.client, c.server)
			req, resp := order(), &demov1.ChargeResponse{}
			var took, bareTook time.Duration
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				var opts []grpc.CallOption
				if c.keyed {
					opts = append(opts, interceptors.WithKey(c.name+strconv.Itoa(b.N)+" "+strconv.Itoa(n)))
				}
				began := time.Now()
				if err := conn.Invoke(b.Context(), c.method, req, resp, opts...); err != nil {
					b.Fatal(err)
				}
				took += time.Since(began)
				b.StopTimer()
				began = time.Now()
				if err := bare.Invoke(b.Context(), undeclared, req, resp); err != nil {
					b.Fatal(err)
				}
				bareTook += time.Since(began)
				b.StartTimer()
			}
			b.ReportMetric(float64(took)/float64(bareTook), "x-bare")
		})
	}
}

// benchConn serves and connects with these options.
func benchConn(b *testing.B, client []grpc.DialOption, server []grpc.ServerOption) *grpc.ClientConn {
	b.Helper()
	g := grpc.NewServer(server...)
	impl := &quick{receipt: receipt(8)}
	demov1.RegisterPaymentsServiceServer(g, impl)
	g.RegisterService(undeclaredService(), impl)
	l := bufconn.Listen(1 << 20)
	go func() { _ = g.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///bench", append(client[:len(client):len(client)],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, conn.Close())
		g.Stop()
	})
	return conn
}
