package otel

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// Names in spans.
const (
	scope = "github.com/dedupd/dedupd/interceptors"

	// AttributeRecord is the first 12 hexadecimal digits of the record id.
	AttributeRecord = "dedup.record"
	// AttributeAttempts is how often the call was sent.
	AttributeAttempts = "dedup.attempts"
	// AttributeReplayed: the answer is that of an earlier run.
	AttributeReplayed = "dedup.replayed"
	// AttributeUnknown: nobody knows whether the effect happened.
	AttributeUnknown = "dedup.outcome_unknown"
	// AttributeCode is the name of a gRPC status code.
	AttributeCode = "dedup.code"

	// EventRetry, EventWait, EventBudgetSpent and EventBreakerOpen are the events
	// of a client's span.
	EventRetry = "dedup.retry"
	// EventWait: somebody else's run has the key.
	EventWait = "dedup.wait"
	// EventBudgetSpent: a retry was refused.
	EventBudgetSpent = "dedup.budget_spent"
	// EventBreakerOpen: a try was held back.
	EventBreakerOpen = "dedup.breaker_open"

	// AttributeLink says what a span is linked to: "first run", the call whose
	// answer it got.
	AttributeLink = "dedup.link"

	recordDigits = 12
	header       = "traceparent"
)

// Client returns the options of interceptors.ClientOptions that trace every
// unary call with a tracer of tp: a span "dedup package.Service/Method" around
// the call, retries included.
func Client(tp trace.TracerProvider) []interceptors.ClientOption {
	tracer := tp.Tracer(scope)
	around := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, span := tracer.Start(ctx, spanName(method))
		defer span.End()
		err := invoker(ctx, method, req, reply, cc, opts...)
		setStatus(span, err)
		return err
	}
	event := func(name string) func(context.Context, string) {
		return func(ctx context.Context, _ string) { trace.SpanFromContext(ctx).AddEvent(name) }
	}
	return []interceptors.ClientOption{
		interceptors.PerCall(around),
		interceptors.WithCallObserver(interceptors.CallObserver{
			Retry: func(ctx context.Context, _ string, code grpccodes.Code) {
				trace.SpanFromContext(ctx).AddEvent(EventRetry, trace.WithAttributes(attribute.String(AttributeCode, code.String())))
			},
			Wait:        event(EventWait),
			BudgetSpent: event(EventBudgetSpent),
			BreakerOpen: event(EventBreakerOpen),
			Ended: func(ctx context.Context, _ string, end interceptors.CallEnd) {
				span := trace.SpanFromContext(ctx)
				span.SetAttributes(
					attribute.Int(AttributeAttempts, end.Attempts),
					attribute.Bool(AttributeReplayed, end.Replayed),
					attribute.Bool(AttributeUnknown, end.Unknown),
				)
				link(ctx, end.Traceparent)
				if len(end.RecordID) >= recordDigits {
					span.SetAttributes(attribute.String(AttributeRecord, end.RecordID[:recordDigits]))
				}
			},
		}),
	}
}

// Server returns the options of interceptors.ServerOptions that trace every run
// of a keyed handler with a tracer of tp: a span "dedup run
// package.Service/Method". Repeats that are answered from the record have none:
// the call's own span, as otelgrpc's handler makes it, is linked to the call that
// ran first.
func Server(tp trace.TracerProvider) []interceptors.ServerOption {
	tracer := tp.Tracer(scope)
	return []interceptors.ServerOption{interceptors.WithTracing(interceptors.Tracing{
		Current:  traceparent,
		Replayed: link,
	}), interceptors.After(
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			record := guard.RecordIDFrom(ctx)
			if record == nil {
				return handler(ctx, req)
			}
			ctx, span := tracer.Start(ctx, strings.Replace(spanName(info.FullMethod), "dedup ", "dedup run ", 1),
				trace.WithAttributes(attribute.String(AttributeRecord, guard.ShortRecordID(record))))
			defer span.End()
			resp, err := handler(ctx, req)
			setStatus(span, err)
			return resp, err
		})}
}

// traceparent is the trace context of ctx, or nothing.
func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[header]
}

// link links the span of ctx to the run that its answer goes back to.
func link(ctx context.Context, first string) {
	span := trace.SpanFromContext(ctx)
	read := propagation.TraceContext{}.Extract(trace.ContextWithSpan(ctx, nil), propagation.MapCarrier{header: first})
	if run := trace.SpanContextFromContext(read); run.IsValid() {
		span.AddLink(trace.Link{SpanContext: run, Attributes: []attribute.KeyValue{attribute.String(AttributeLink, "first run")}})
	}
}

func spanName(fullMethod string) string { return "dedup " + strings.TrimPrefix(fullMethod, "/") }

// setStatus tells the code of an error; its message may hold what no span should.
func setStatus(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, status.Code(err).String())
	}
}
