package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// tracing sends spans to a collector.
type tracing struct {
	TraceEndpoint string `placeholder:"URL" help:"Send traces here by OTLP over gRPC, for example http://127.0.0.1:4317; https for TLS. Sampling and headers are read from OpenTelemetry's OTEL_ variables. Without it nothing is traced."`
}

// traceFlush is how long the last spans may take to leave at the end.
const traceFlush = 5 * time.Second

func (t tracing) check() error {
	if t.TraceEndpoint == "" {
		return nil
	}
	u, err := url.Parse(t.TraceEndpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--trace-endpoint is %q; it takes http://host:port or https://host:port", t.TraceEndpoint)
	}
	return nil
}

// provider returns nil where nothing is traced, and a function that sends what is
// left. A collector that is away costs spans, never calls.
func (t tracing) provider(ctx context.Context, log *slog.Logger) (trace.TracerProvider, func(), error) {
	if t.TraceEndpoint == "" {
		return nil, func() {}, nil
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(t.TraceEndpoint))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot send traces to --trace-endpoint %s: %w", t.TraceEndpoint, err)
	}
	about, err := resource.Merge(resource.Default(), resource.NewSchemaless(
		attribute.String("service.name", "dedupd"), attribute.String("service.version", build().Version)))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read OpenTelemetry's OTEL_ variables: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.LogAttrs(ctx, slog.LevelWarn, "spans were lost", slog.Any("error", err))
	}))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return provider, func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
		defer cancel()
		if err := provider.Shutdown(late); err != nil {
			log.LogAttrs(late, slog.LevelWarn, "the last spans were lost", slog.Any("error", err))
		}
	}, nil
}
