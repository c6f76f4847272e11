package main

import (
	"context"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// spanCollector takes spans as an OpenTelemetry collector does.
type spanCollector struct {
	collectorpb.UnimplementedTraceServiceServer
	spans chan *tracepb.Span
}

func (c *spanCollector) Export(_ context.Context, req *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	for _, r := range req.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				c.spans <- span
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// The caller's trace goes on through dedupd into its store, and a repeat is told
// which run it goes back to.
func TestServeTracesACallIntoTheStore(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	require.NoError(t, err)
	c := &spanCollector{spans: make(chan *tracepb.Span, 1024)}
	g := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(g, c)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(lis) }()
	t.Cleanup(func() { g.Stop(); require.NoError(t, <-ended) })

	s := serve(t, "--in-memory", "--trace-endpoint", "http://"+lis.Addr().String())
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traced := metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent)
	complete(traced, t, s.dial(t), "k")
	repeat, err := s.dial(t).Reserve(t.Context(), reserveRequest("k", 2))
	require.NoError(t, err)
	require.Equal(t, parent, repeat.GetTraceparent())
	require.Equal(t, exitDone, s.ends(t, syscall.SIGTERM), "what is left is sent at the end")

	close(c.spans)
	byID := map[string]*tracepb.Span{}
	var inStore *tracepb.Span
	for span := range c.spans {
		byID[string(span.GetSpanId())] = span
		if span.GetName() == "store Reserve" && span.GetTraceId()[0] == 0x0a {
			inStore = span
		}
	}
	require.NotNil(t, inStore)
	call := byID[string(inStore.GetParentSpanId())]
	require.Equal(t, "dedup.v1.DedupService/Reserve", call.GetName())
	require.Equal(t, []byte{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}, call.GetParentSpanId())
}

func TestServeRefusesATraceEndpointThatIsNone(t *testing.T) {
	t.Parallel()
	_, stderr := exits(t, exitUsage, "serve", "--in-memory", "--trace-endpoint", "127.0.0.1:4317")
	require.Contains(t, stderr, "it takes http://host:port")
}
