package otel_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/otel"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// recorder is a tracer provider and tracer that keeps its spans.
type recorder struct {
	noop.TracerProvider
	mu    sync.Mutex
	spans []*span
}

type tracer struct {
	noop.Tracer
	r *recorder
}

type span struct {
	noop.Span
	name, status string
	failed       bool
	ended        bool
	events       []string
	attributes   map[attribute.Key]attribute.Value
	context      trace.SpanContext
	links        []trace.SpanContext
}

func (s *span) SpanContext() trace.SpanContext { return s.context }

func (s *span) AddLink(l trace.Link) { s.links = append(s.links, l.SpanContext) }

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{r: r} }

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	s := &span{name: name, attributes: map[attribute.Key]attribute.Value{}}
	config := trace.NewSpanStartConfig(opts...)
	s.SetAttributes(config.Attributes()...)
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	t.r.spans = append(t.r.spans, s)
	return trace.ContextWithSpan(ctx, s), s
}

func (s *span) SetAttributes(kvs ...attribute.KeyValue) {
	for _, kv := range kvs {
		s.attributes[kv.Key] = kv.Value
	}
}

func (s *span) AddEvent(name string, opts ...trace.EventOption) {
	config := trace.NewEventConfig(opts...)
	for _, kv := range config.Attributes() {
		name += " " + kv.Value.AsString()
	}
	s.events = append(s.events, name)
}

func (s *span) SetStatus(code codes.Code, description string) {
	s.failed, s.status = code == codes.Error, description
}

func (s *span) End(...trace.SpanEndOption) { s.ended = true }

// payments fails its first runs, by its list, and then takes the money.
type payments struct {
	demov1.UnimplementedPaymentsServiceServer
	mu   sync.Mutex
	errs []error
}

func (p *payments) Charge(context.Context, *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errs) > 0 {
		err := p.errs[0]
		p.errs = p.errs[1:]
		return nil, err
	}
	return &demov1.ChargeResponse{ChargeId: "c1"}, nil
}

// traced serves payments and returns a client of it.
func traced(t *testing.T, r *recorder, p *payments, more ...interceptors.ServerOption) demov1.PaymentsServiceClient {
	t.Helper()
	return served(t, p, append(otel.Server(r), more...), otel.Client(r))
}

// served serves payments, with these options on either side.
func served(t *testing.T, p *payments, onServer []interceptors.ServerOption, onClient []interceptors.ClientOption) demov1.PaymentsServiceClient {
	t.Helper()
	store, err := embedded.OpenMemory(embedded.Options{CacheBytes: 1 << 20, MemtableBytes: 1 << 20})
	require.NoError(t, err)
	dedupd, err := server.New(server.Config{Store: store})
	require.NoError(t, err)
	life, stop := context.WithCancel(context.Background())
	opts, err := interceptors.ServerOptions(dedupv1.NewDedupServiceClient(dedupd.Conn()), append(onServer,
		interceptors.WithNamespace("test"), interceptors.SharedCaller(), interceptors.WithLifetime(life))...)
	require.NoError(t, err)
	g := grpc.NewServer(opts...)
	demov1.RegisterPaymentsServiceServer(g, p)
	l := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	dial, err := interceptors.ClientOptions(onClient...)
	require.NoError(t, err)
	conn, err := grpc.NewClient("passthrough:///payments", append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		g.Stop()
		stop()
		require.NoError(t, <-served)
		require.NoError(t, store.Close())
	})
	return demov1.NewPaymentsServiceClient(conn)
}

func request() *demov1.ChargeRequest {
	return &demov1.ChargeRequest{Order: "1", Amount: 1, Currency: "EUR"}
}

func TestACallIsTracedWithoutItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		secret := "order 4471 of ada"
		client := traced(t, r, &payments{errs: []error{interceptors.NotApplied(status.Error(grpccodes.Unavailable, secret))}})
		req := &demov1.ChargeRequest{Order: secret, Amount: 1, Currency: "EUR"}
		for range 2 {
			_, err := client.Charge(t.Context(), req, interceptors.WithKey(secret))
			require.NoError(t, err)
		}
		names := make([]string, len(r.spans))
		for i, s := range r.spans {
			names[i] = s.name
			require.True(t, s.ended)
			require.NotContains(t, s.status, secret)
			for _, v := range s.attributes {
				require.NotContains(t, v.String(), secret)
			}
		}
		const call, run = "dedup dedup.demo.v1.PaymentsService/Charge", "dedup run dedup.demo.v1.PaymentsService/Charge"
		require.Equal(t, []string{call, run, run, call}, names, "the second call is a replay")
		first, failed, second, replay := r.spans[0], r.spans[1], r.spans[2], r.spans[3]
		require.Equal(t, []string{otel.EventRetry + " Unavailable"}, first.events)
		require.EqualValues(t, 2, first.attributes[otel.AttributeAttempts].AsInt64())
		require.False(t, first.failed)
		require.False(t, first.attributes[otel.AttributeReplayed].AsBool())
		require.True(t, replay.attributes[otel.AttributeReplayed].AsBool())
		require.True(t, failed.failed)
		require.Equal(t, "Unavailable", failed.status)
		record := first.attributes[otel.AttributeRecord].AsString()
		require.Regexp(t, "^[0-9a-f]{12}$", record)
		for _, s := range []*span{failed, second, replay} {
			require.Equal(t, record, s.attributes[otel.AttributeRecord].AsString())
		}
	})
}

func TestAFailedCallIsTracedWithItsCodeAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		client := traced(t, r, &payments{errs: []error{status.Error(grpccodes.Internal, "secret")}})
		_, err := client.Charge(t.Context(), request(), interceptors.WithMaxAttempts(1))
		require.Error(t, err)
		require.True(t, r.spans[0].failed)
		require.Equal(t, "Internal", r.spans[0].status)
		require.True(t, r.spans[0].attributes[otel.AttributeUnknown].AsBool())
		require.NotContains(t, strings.Join(r.spans[0].events, " "), "secret")
	})
}

func TestAReplayedAnswerIsLinkedToTheCallThatRanFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		var calls []*span
		rpc := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			s := &span{attributes: map[attribute.Key]attribute.Value{}, context: trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: trace.TraceID{1, byte(len(calls))}, SpanID: trace.SpanID{2, byte(len(calls))}, TraceFlags: trace.FlagsSampled,
			})}
			calls = append(calls, s) // as otelgrpc's stats handler makes one for each call
			return handler(trace.ContextWithSpan(ctx, s), req)
		}
		client := traced(t, r, &payments{}, interceptors.Before(rpc))
		for range 2 {
			_, err := client.Charge(t.Context(), &demov1.ChargeRequest{Order: "1", Amount: 1, Currency: "EUR"}, interceptors.WithKey("k"))
			require.NoError(t, err)
		}
		first := calls[0].context.WithRemote(true)
		require.Empty(t, calls[0].links)
		require.Equal(t, []trace.SpanContext{first}, calls[1].links)
		client1, client2 := r.spans[0], r.spans[2]
		require.Empty(t, client1.links)
		require.Equal(t, []trace.SpanContext{first}, client2.links, "and so is the client's")
	})
}
