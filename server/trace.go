package server

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/dedupd/dedupd/storage"
)

// Trace context of a run, so that whoever gets its outcome later can link to it:
// trace id, span id and flags, as Record.Trace keeps them.
const (
	traceSize         = 16 + 8 + 1
	traceparentHeader = "traceparent"
)

// traceOf is the trace context of an incoming call: the span of its caller, who is
// about to run; else the call's own. nil when neither is traced.
func traceOf(ctx context.Context) []byte {
	sc := trace.SpanContextFromContext(ctx)
	if values := metadata.ValueFromIncomingContext(ctx, traceparentHeader); len(values) > 0 {
		carrier := propagation.MapCarrier{traceparentHeader: values[0]}
		if caller := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, carrier)); caller.IsValid() {
			sc = caller
		}
	}
	if !sc.IsValid() {
		return nil
	}
	id, span := sc.TraceID(), sc.SpanID()
	out := make([]byte, 0, traceSize)
	out = append(append(out, id[:]...), span[:]...)
	return append(out, byte(sc.TraceFlags()))
}

// traceparentOf is the trace context of rec's last run as in a traceparent header,
// or empty. rec may be nil.
func traceparentOf(rec *storage.Record) string {
	if rec == nil || len(rec.Trace) != traceSize {
		return ""
	}
	t := rec.Trace
	return "00-" + hex.EncodeToString(t[:16]) + "-" + hex.EncodeToString(t[16:24]) + "-" + hex.EncodeToString(t[24:])
}
