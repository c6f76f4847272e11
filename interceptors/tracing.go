package interceptors

import (
	"context"
	"errors"
)

// Tracing connects a server's interceptors with its tracer; package otel makes
// one. Either function may be nil. They must not block.
type Tracing struct {
	// Current returns the trace context of the call, as in a traceparent header, or
	// nothing; it is stored with the key's record.
	Current func(ctx context.Context) (traceparent string)
	// Replayed: the call is answered from the record of the run that traceparent
	// names.
	Replayed func(ctx context.Context, traceparent string)
}

// WithTracing stores with each key which trace ran it, and tells a repeat's
// trace of it. Use the options of package otel.
func WithTracing(t Tracing) ServerOption {
	return serverOption(func(c *serverConfig) error {
		if c.trace.Current != nil || c.trace.Replayed != nil {
			return errors.New("tracing is configured twice, keep one WithTracing")
		}
		c.trace = t
		return nil
	})
}

func (t *Tracing) current(ctx context.Context) string {
	if t.Current == nil {
		return ""
	}
	return t.Current(ctx)
}

func (t *Tracing) replayed(ctx context.Context, traceparent string) {
	if t.Replayed != nil {
		t.Replayed(ctx, traceparent)
	}
}
