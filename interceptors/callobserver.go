package interceptors

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/internal/hooks"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// CallObserver is told what happens to a client's unary calls, for counting and
// tracing. Every function may be nil; they run on the goroutine of the call, may
// run concurrently, and must not block. ctx is the call's. None is told a key, a
// request or a response.
type CallObserver struct {
	// Attempt: try n, counted from 1, is about to be sent.
	Attempt func(ctx context.Context, fullMethod string, n int)
	// Retry: a try ended with code and the call will be tried again after a wait.
	Retry func(ctx context.Context, fullMethod string, code codes.Code)
	// Wait: somebody else's run has the key; the call will ask again.
	Wait func(ctx context.Context, fullMethod string)
	// BudgetSpent: a retry was worth it and not made, since as many calls of the
	// connection as its budget allows are retrying. The call returns its error.
	BudgetSpent func(ctx context.Context, fullMethod string)
	// BreakerOpen: a try was held back; nothing was sent.
	BreakerOpen func(ctx context.Context, fullMethod string)
	// Permanent: a call of a method that parks (WithParked) ended with an error that
	// no replay would cure; it is not parked. Alert on it.
	Permanent func(ctx context.Context, fullMethod string, code codes.Code)
	// Unparked: such a call was to be parked, and nothing told which record it is:
	// give WithIdentity. Alert on it.
	Unparked func(ctx context.Context, fullMethod string)
	// Stream: a streaming call passed through; nothing else is told of it.
	Stream func(ctx context.Context, fullMethod string)
	// Ended: the call is over. A call that was refused before its first try, for
	// its key or options, is not told.
	Ended func(ctx context.Context, fullMethod string, end CallEnd)
}

// CallEnd is how a client's call ended.
type CallEnd struct {
	// Code is the status code that the caller gets.
	Code codes.Code
	// Attempts is how often the call was sent.
	Attempts int
	// RecordID names dedupd's record, in hexadecimal; empty where it is not known.
	// As a label or attribute use no more than its first 12 digits.
	RecordID string
	// Replayed: the answer is that of an earlier run.
	Replayed bool
	// Unknown: nobody knows whether the effect happened.
	Unknown bool
	// Parked: the call became a dead letter, or will once dedupd takes it.
	Parked bool
	// Traceparent is the trace context of the run that a replayed answer goes back
	// to, as in a traceparent header; empty where that is not known.
	Traceparent string
}

func (o *CallObserver) attempt(ctx context.Context, method string, n int) {
	if o.Attempt != nil {
		o.Attempt(ctx, method, n)
	}
}

func (o *CallObserver) retry(ctx context.Context, method string, answer policy.Answer, err error) {
	switch {
	case answer.Retry == policy.Wait:
		if o.Wait != nil {
			o.Wait(ctx, method)
		}
	case o.Retry != nil:
		o.Retry(ctx, method, status.Code(err))
	}
}

func (o *CallObserver) budgetSpent(ctx context.Context, method string) {
	if o.BudgetSpent != nil {
		o.BudgetSpent(ctx, method)
	}
}

func (o *CallObserver) held(ctx context.Context, method string) {
	if o.BreakerOpen != nil {
		o.BreakerOpen(ctx, method)
	}
}

func (o *CallObserver) permanent(ctx context.Context, method string, err error) {
	if o.Permanent != nil {
		o.Permanent(ctx, method, policy.StatusOf(err).Code())
	}
}

func (o *CallObserver) unparked(ctx context.Context, method string) {
	if o.Unparked != nil {
		o.Unparked(ctx, method)
	}
}

// and returns an observer that tells o, then next.
func (o CallObserver) and(next CallObserver) CallObserver {
	return CallObserver{
		Attempt:     hooks.Join3(o.Attempt, next.Attempt),
		Retry:       hooks.Join3(o.Retry, next.Retry),
		Wait:        hooks.Join2(o.Wait, next.Wait),
		BudgetSpent: hooks.Join2(o.BudgetSpent, next.BudgetSpent),
		BreakerOpen: hooks.Join2(o.BreakerOpen, next.BreakerOpen),
		Permanent:   hooks.Join3(o.Permanent, next.Permanent),
		Unparked:    hooks.Join2(o.Unparked, next.Unparked),
		Stream:      hooks.Join2(o.Stream, next.Stream),
		Ended:       hooks.Join3(o.Ended, next.Ended),
	}
}

// report tells how the call ended.
func (c *clientCall) report(ctx context.Context, err error) {
	if c.client.observe.Ended == nil {
		return
	}
	kept, _ := errors.AsType[*CallError](err)
	c.client.observe.Ended(ctx, c.method, CallEnd{
		Code: policy.StatusOf(err).Code(), Attempts: c.attempts, RecordID: c.recordID,
		Replayed: c.replayed, Unknown: err != nil && c.unknown(), Parked: kept != nil && (kept.Entry != "" || kept.Spooled), Traceparent: c.trace,
	})
}
