package inbox_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// payments is a service behind WithInbox.
type payments struct {
	demov1.UnimplementedPaymentsServiceServer
	charge func(ctx context.Context) (*receipt, error)
}

func (p *payments) Charge(ctx context.Context, _ *demov1.ChargeRequest) (*receipt, error) {
	return p.charge(ctx)
}

// serve runs a process of the service and returns a client of it, which asks once.
func (d *driver) serve(t *testing.T, world *dedupd, log *bytes.Buffer, charge func(ctx context.Context) (*receipt, error)) demov1.PaymentsServiceClient {
	t.Helper()
	lifetime, end := context.WithCancel(context.WithoutCancel(t.Context()))
	closed := make(chan struct{})
	options, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(world),
		interceptors.WithNamespace("shop"), interceptors.SharedCaller(), interceptors.WithLease(time.Second),
		interceptors.WithLifetime(lifetime), interceptors.OnClosed(func() { close(closed) }),
		interceptors.WithLogger(slog.New(slog.NewTextHandler(log, nil))),
		interceptors.WithInbox(d.reconciler, demov1.PaymentsService_Charge_FullMethodName))
	require.NoError(t, err)
	s := grpc.NewServer(options...)
	demov1.RegisterPaymentsServiceServer(s, &payments{charge: charge})
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	dial, err := interceptors.ClientOptions(interceptors.WithMaxAttempts(1))
	require.NoError(t, err)
	conn, err := grpc.NewClient("passthrough:///payments", append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		s.Stop()
		require.NoError(t, <-served)
		end()
		<-closed
	})
	return demov1.NewPaymentsServiceClient(conn)
}

func ask(ctx context.Context, client demov1.PaymentsServiceClient, amount int64, opts ...grpc.CallOption) (*receipt, error) {
	return client.Charge(ctx, &demov1.ChargeRequest{Order: "4471", Amount: amount, Currency: "EUR"},
		append(opts, interceptors.WithKey("order 4471"))...)
}

// Not a line of the service's own tells how to reconcile.
func TestAMethodWithAnInboxIsReconciledByItself(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world, log := startDedupd(t), &bytes.Buffer{}
		var first *receipt
		dying := d.serve(t, world, log, func(ctx context.Context) (*receipt, error) {
			first, _ = d.do(ctx, charge)
			return nil, interceptors.OutcomeUnknown(errDied)
		})
		_, err := ask(t.Context(), dying, 1200)
		require.Error(t, err)
		healthy := d.serve(t, world, log, charging(d))
		for _, replayed := range [][]string{nil, {"true"}} {
			var trailer metadata.MD
			again, err := ask(t.Context(), healthy, 1200, grpc.Trailer(&trailer))
			require.NoError(t, err)
			require.Equal(t, first.GetChargeId(), again.GetChargeId())
			require.Equal(t, replayed, trailer[interceptors.TrailerReplayed])
		}
		require.Equal(t, []string{first.GetChargeId()}, d.effects(t))
	})
}

func TestTheCallerIsAnsweredThoughDedupdWentAwayInTheRun(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world, log := startDedupd(t), &bytes.Buffer{}
		client := d.serve(t, world, log, func(ctx context.Context) (*receipt, error) {
			world.cut("Complete", "Extend")
			return d.do(ctx, charge)
		})
		first, err := ask(t.Context(), client, 1200)
		require.NoError(t, err)
		require.Equal(t, []string{first.GetChargeId()}, d.effects(t))
		world.cut()
	})
}

// The inbox's refusals are told as refusals of the call itself, and a reused key
// leaves its record free: nothing of this request was applied.
func TestTheInboxsRefusalsReachTheCaller(t *testing.T) {
	t.Parallel()
	drivers(t, func(t *testing.T, d *driver) {
		t.Helper()
		world, log := startDedupd(t), &bytes.Buffer{}
		mistaken := d.serve(t, world, log, func(ctx context.Context) (*receipt, error) {
			_, _ = d.do(ctx, charge)
			return nil, interceptors.NotApplied(errDied)
		})
		_, err := ask(t.Context(), mistaken, 1200)
		require.Error(t, err)
		client := d.serve(t, world, log, charging(d))
		for range 2 {
			_, err = ask(t.Context(), client, 999)
			reason, ok := interceptors.ReasonOf(err)
			require.True(t, ok, "%v", err)
			require.Equal(t, dedupv1.Reason_REASON_KEY_REUSED, reason)
			found, err := dedupv1.NewDedupServiceClient(world).Lookup(t.Context(), &dedupv1.LookupRequest{
				Record: &dedupv1.LookupRequest_Identity{Identity: &dedupv1.Identity{
					Namespace: "shop", Operation: demov1.PaymentsService_Charge_FullMethodName, Key: []byte("order 4471"),
				}},
			})
			require.NoError(t, err)
			require.Equal(t, dedupv1.State_STATE_RELEASED, found.GetRecord().GetState())
		}
		first, err := ask(t.Context(), client, 1200)
		require.Error(t, err, "dedupd holds the fingerprint of a corrected request against the late original")
		require.Nil(t, first)
		require.Len(t, d.effects(t), 1)
	})
}

func TestAHandlerThatLeavesItsInboxAloneIsLogged(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	world, log := startDedupd(t), &bytes.Buffer{}
	client := d.serve(t, world, log, func(context.Context) (*receipt, error) { return &receipt{}, nil })
	_, err := ask(t.Context(), client, 1200)
	require.NoError(t, err)
	require.Contains(t, log.String(), "a handler succeeded without the inbox")
	require.NotContains(t, log.String(), "4471")
}

func TestWithInboxNeedsMethods(t *testing.T) {
	t.Parallel()
	d := openDriver(t, true)
	const charge = demov1.PaymentsService_Charge_FullMethodName
	for _, option := range []interceptors.ServerOption{
		interceptors.WithInbox(nil, charge), interceptors.WithInbox(d.reconciler),
		interceptors.WithInbox(d.reconciler, "Charge"), interceptors.WithInbox(d.reconciler, charge, charge),
		interceptors.WithInbox(d.reconciler, demov1.PaymentsService_GetCharge_FullMethodName), // it ignores keys
	} {
		_, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(startDedupd(t)),
			interceptors.WithNamespace("shop"), interceptors.SharedCaller(), option)
		require.Error(t, err)
	}
}
