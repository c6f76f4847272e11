package interceptors_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/policy"
)

func TestStreamsPassUntouched(t *testing.T) { // E08
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		streams, keyed := 0, 0
		w := newWorld(t, setup{server: []interceptors.ServerOption{interceptors.WithObserver(interceptors.Observer{
			Stream: func(_ string, k bool) {
				streams++
				if k {
					keyed++
				}
			},
		})}})
		c := grpc_testing.NewTestServiceClient(w.conn)
		ctx := metadata.AppendToOutgoingContext(t.Context(), interceptors.HeaderKey, "ignored")
		payload := &grpc_testing.Payload{Body: []byte("body")}
		wanted := []*grpc_testing.ResponseParameters{{Size: 3}, {Size: 5}}

		out, err := c.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: wanted})
		require.NoError(t, err)
		for _, p := range wanted {
			got, err := out.Recv()
			require.NoError(t, err)
			require.Len(t, got.GetPayload().GetBody(), int(p.GetSize()))
		}
		_, err = out.Recv()
		require.ErrorIs(t, err, io.EOF)

		in, err := c.StreamingInputCall(ctx)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, in.Send(&grpc_testing.StreamingInputCallRequest{Payload: payload}))
		}
		sum, err := in.CloseAndRecv()
		require.NoError(t, err)
		require.EqualValues(t, 8, sum.GetAggregatedPayloadSize())

		both, err := c.FullDuplexCall(ctx)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, both.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: wanted[:1], Payload: payload}))
			got, err := both.Recv()
			require.NoError(t, err)
			require.Len(t, got.GetPayload().GetBody(), 3)
		}
		require.NoError(t, both.CloseSend())
		_, err = both.Recv()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 3, streams)
		require.Equal(t, 3, keyed, "a key on a stream is ignored, and counted")
	})
}

func TestServerOptionsRefuseWhatCannotWork(t *testing.T) {
	t.Parallel()
	dedup := dedupv1.NewDedupServiceClient(nil)
	none := func(context.Context, interceptors.Attempt, proto) (interceptors.Verdict, error) {
		return interceptors.Verdict{}, nil
	}
	policyOf := func(p *dedupv1.MethodPolicy) interceptors.ServerOption {
		return interceptors.WithMethod(charge, interceptors.Method{Policy: p})
	}
	cases := map[string]struct {
		opts []interceptors.ServerOption
		says string
	}{
		"a streaming method that requires keys": {[]interceptors.ServerOption{interceptors.WithMethod(
			grpc_testing.TestService_FullDuplexCall_FullMethodName,
			interceptors.Method{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED}},
		)}, "streams are never deduplicated"}, // E08
		"two callers":                   {[]interceptors.ServerOption{interceptors.SharedCaller()}, "configured twice"},
		"a reconciler without a basis":  {[]interceptors.ServerOption{interceptors.WithReconciler(charge, 0, none)}, "Bounded, Fenced or Inbox"},
		"no reconciler":                 {[]interceptors.ServerOption{interceptors.WithReconciler(charge, interceptors.Inbox, nil)}, "is nil"},
		"two reconcilers":               {[]interceptors.ServerOption{interceptors.WithReconciler(charge, interceptors.Inbox, none), interceptors.WithReconciler(charge, interceptors.Inbox, none)}, "keep one"},
		"a reconciler that nobody asks": {[]interceptors.ServerOption{interceptors.WithReconciler(demov1.PaymentsService_GetCharge_FullMethodName, interceptors.Inbox, none)}, "ignores keys"},
		"no full method name":           {[]interceptors.ServerOption{interceptors.WithMethod("Charge", interceptors.Method{})}, "/package.Service/Method"},
		"a secret in the replay":        {[]interceptors.ServerOption{policyOf(&dedupv1.MethodPolicy{ReplayHeaders: []string{"set-cookie"}})}, "set-cookie"},
		"a lease out of range":          {[]interceptors.ServerOption{policyOf(&dedupv1.MethodPolicy{Lease: durationpb.New(time.Hour)})}, "1s to 15m"},
		"a retention out of range":      {[]interceptors.ServerOption{policyOf(&dedupv1.MethodPolicy{Retention: durationpb.New(-1)})}, "400 days"},
		"a hold out of range":           {[]interceptors.ServerOption{interceptors.WithErrorHold(time.Hour)}, "error hold"},
		"a negative wait":               {[]interceptors.ServerOption{interceptors.WithWait(-1)}, "negative"},
		"no lease at all":               {[]interceptors.ServerOption{interceptors.WithLease(0)}, "more than no time"},
		"a table without rows":          {[]interceptors.ServerOption{interceptors.WithMethod(charge, interceptors.Method{Errors: &policy.Table{}})}, "start from policy.Default"},
		"a method overridden twice":     {[]interceptors.ServerOption{policyOf(nil), policyOf(nil)}, "overridden twice"},
	}
	valid := []interceptors.ServerOption{interceptors.WithNamespace("test"), interceptors.WithCaller(callerOf)}
	_, err := interceptors.ServerOptions(dedup, valid...)
	require.NoError(t, err)
	_, err = interceptors.ServerOptions(dedup)
	require.ErrorContains(t, err, "WithNamespace")
	require.ErrorContains(t, err, "SharedCaller")
	_, err = interceptors.ServerOptions(nil, valid...)
	require.ErrorContains(t, err, "client of dedupd")
	for name, c := range cases {
		_, err := interceptors.ServerOptions(dedup, append(valid[:2:2], c.opts...)...)
		require.ErrorContains(t, err, c.says, name)
	}
}

func TestMethodsOfOneOperationShareTheirRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const empty = grpc_testing.TestService_EmptyCall_FullMethodName
		shared := &dedupv1.MethodPolicy{Operation: "ping", RerunSafe: true}
		w := newWorld(t, setup{server: []interceptors.ServerOption{
			interceptors.WithMethod(empty, interceptors.Method{Policy: shared}),
			interceptors.WithMethod(grpc_testing.TestService_UnimplementedCall_FullMethodName, interceptors.Method{Policy: &dedupv1.MethodPolicy{Operation: "ping"}}),
		}})
		c := grpc_testing.NewTestServiceClient(w.conn)
		_, err := c.EmptyCall(t.Context(), &grpc_testing.Empty{}, interceptors.WithKey("k"))
		require.NoError(t, err)
		_, err = c.UnimplementedCall(t.Context(), &grpc_testing.Empty{}, interceptors.WithKey("k"))
		require.NoError(t, err, "answered from the record of the other method")
	})
}

func TestDialingDedupdNeedsItsAddressAndHowItIsSecured(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addresses []string
		opts      []interceptors.DialOption
		says      string
	}{
		{[]string{"127.0.0.1:7480"}, nil, "DialInsecure"},
		{nil, []interceptors.DialOption{interceptors.DialInsecure()}, "at least one address"},
		{[]string{"a:1", "nowhere"}, []interceptors.DialOption{interceptors.DialInsecure()}, "host:port"},
		{[]string{"127.0.0.1:7480"}, []interceptors.DialOption{interceptors.DialInsecure()}, ""},
		{[]string{"127.0.0.1:1", "127.0.0.1:2"}, []interceptors.DialOption{interceptors.DialInsecure()}, ""},
		{[]string{"passthrough:///x"}, []interceptors.DialOption{interceptors.DialInsecure()}, ""},
	} {
		conn, err := interceptors.DialDedupd(c.addresses, c.opts...)
		if c.says != "" {
			require.ErrorContains(t, err, c.says)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

func TestOutcomesOutliveTheServiceInItsJournal(t *testing.T) { // A02
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{client: once(), server: []interceptors.ServerOption{interceptors.WithJournal(dir)}})
		w.handle = func(_ context.Context, n int, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
			w.down.Store(true)
			return receipt(n), nil
		}
		_, err := w.client.Charge(t.Context(), order(), interceptors.WithKey("k"))
		require.NoError(t, err)
		w.stop()
		pass(time.Minute)
		require.Equal(t, dedupv1.State_STATE_UNKNOWN.String(), w.state(t, "k").String())

		w.down.Store(false)
		next, end := context.WithCancel(t.Context())
		_, err = interceptors.ServerOptions(dedupv1.NewDedupServiceClient(w), interceptors.WithNamespace("test"),
			interceptors.SharedCaller(), interceptors.WithJournal(dir), interceptors.WithLifetime(next))
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, dedupv1.State_STATE_COMPLETED.String(), w.state(t, "k").String())
		end()
	})
}

func TestAMethodsPolicyCanBeReplacedToSwitchOffWhatItSwitchesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			method interceptors.Method
			code   codes.Code
		}{
			"overridden field by field": {interceptors.Method{Policy: &dedupv1.MethodPolicy{FailOpen: true}}, codes.InvalidArgument},
			"replaced":                  {interceptors.Method{Policy: &dedupv1.MethodPolicy{FailOpen: true}, Replace: true}, codes.OK},
			"replaced by the defaults":  {interceptors.Method{Replace: true}, codes.OK},
		} {
			w := newWorld(t, setup{server: []interceptors.ServerOption{interceptors.WithMethod(charge, c.method)}})
			_, err := w.bare(t).Charge(t.Context(), order())
			require.Equal(t, c.code, status.Code(err), "%s: the option says that Charge requires a key", name)
		}
	})
}
