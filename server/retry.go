package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/dedupd/dedupd/storage"
)

// The one budget for a store that is out of reach, within the caller's deadline:
// 5 tries, after waits drawn evenly from 0 to 10, 20, 40 and 80 ms; none begins
// more than 2 s after the first.
const (
	storeTries     = 5
	storeWait      = 10 * time.Millisecond
	storeTriesTime = 2 * time.Second
)

// stored is what the services ask a store for.
type stored interface {
	storage.Records
	storage.DeadLetters
}

// retrying asks a store again while it is unavailable, and times every try.
// Every call is safe to repeat: the attempt id, a record's version, a park id or
// a claim's token makes a second write of the same request a repeat, and what is
// erased or closed stays so.
type retrying struct {
	store   stored
	retries prometheus.Counter
	took    map[string]prometheus.Observer // by call; all of them
	tracer  trace.Tracer                   // nil: nothing is traced
}

var _ stored = (*retrying)(nil)

func newRetrying(store stored, m *metrics, tracing trace.TracerProvider) *retrying {
	r := &retrying{store: store, retries: m.storeRetries, took: map[string]prometheus.Observer{}}
	if tracing != nil {
		r.tracer = tracing.Tracer("github.com/dedupd/dedupd/server")
	}
	for _, call := range []string{
		"Reserve", "BeginRun", "Complete", "Extend", "Release", "Lookup", "Resolve", "List", "Redact", "Forget",
		"Park", "Entry", "Entries", "Groups", "Claim", "Settle", "Requeue", "Discard", "Census",
	} {
		r.took[call] = m.storeTook.WithLabelValues(call)
	}
	return r
}

func try[T any](ctx context.Context, r *retrying, call string, ask func(context.Context) (T, error)) (T, error) {
	ans, err := once(ctx, r, call, ask)
	if err == nil {
		return ans, nil
	}
	began := time.Now()
	for n := range storeTries - 1 {
		if !errors.Is(err, storage.ErrUnavailable) || ctx.Err() != nil {
			return ans, err
		}
		wait := rand.N(storeWait << n) //nolint:gosec // spreads callers, keeps no secret
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= wait || time.Since(began)+wait > storeTriesTime {
			return ans, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ans, ctx.Err()
		}
		r.retries.Inc()
		if ans, err = once(ctx, r, call, ask); err == nil {
			return ans, nil
		}
	}
	return ans, err
}

// once is one try: timed, and within a traced call a span of its own.
func once[T any](ctx context.Context, r *retrying, call string, ask func(context.Context) (T, error)) (T, error) {
	began := time.Now()
	if r.tracer == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		ans, err := ask(ctx)
		r.took[call].Observe(time.Since(began).Seconds())
		return ans, err
	}
	ctx, span := r.tracer.Start(ctx, "store "+call, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	ans, err := ask(ctx)
	r.took[call].Observe(time.Since(began).Seconds())
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return ans, err
}

func (r *retrying) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	return try(ctx, r, "Reserve", func(ctx context.Context) (storage.Answer, error) { return r.store.Reserve(ctx, q) })
}

func (r *retrying) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return try(ctx, r, "BeginRun", func(ctx context.Context) (storage.Answer, error) { return r.store.BeginRun(ctx, id, q) })
}

func (r *retrying) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return try(ctx, r, "Complete", func(ctx context.Context) (storage.Answer, error) { return r.store.Complete(ctx, id, q) })
}

func (r *retrying) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return try(ctx, r, "Extend", func(ctx context.Context) (storage.Answer, error) { return r.store.Extend(ctx, id, q) })
}

func (r *retrying) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return try(ctx, r, "Release", func(ctx context.Context) (storage.Answer, error) { return r.store.Release(ctx, q) })
}

func (r *retrying) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return try(ctx, r, "Lookup", func(ctx context.Context) (storage.Answer, error) { return r.store.Lookup(ctx, id, q) })
}

func (r *retrying) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return try(ctx, r, "Resolve", func(ctx context.Context) (storage.Answer, error) { return r.store.Resolve(ctx, id, q) })
}

func (r *retrying) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return try(ctx, r, "Redact", func(ctx context.Context) (storage.Answer, error) { return r.store.Redact(ctx, id, q) })
}

func (r *retrying) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return try(ctx, r, "Forget", func(ctx context.Context) (storage.Answer, error) { return r.store.Forget(ctx, id, q) })
}

func (r *retrying) List(ctx context.Context, q storage.List) (storage.Page, error) {
	return try(ctx, r, "List", func(ctx context.Context) (storage.Page, error) { return r.store.List(ctx, q) })
}

func (r *retrying) Park(ctx context.Context, q storage.Park) (storage.Answer, error) {
	return try(ctx, r, "Park", func(ctx context.Context) (storage.Answer, error) { return r.store.Park(ctx, q) })
}

func (r *retrying) Entry(ctx context.Context, id storage.EntryID) (storage.Answer, error) {
	return try(ctx, r, "Entry", func(ctx context.Context) (storage.Answer, error) { return r.store.Entry(ctx, id) })
}

func (r *retrying) Entries(ctx context.Context, q storage.ListEntries) (storage.EntryPage, error) {
	return try(ctx, r, "Entries", func(ctx context.Context) (storage.EntryPage, error) { return r.store.Entries(ctx, q) })
}

func (r *retrying) Groups(ctx context.Context, q storage.ListEntries) ([]storage.EntryGroup, error) {
	return try(ctx, r, "Groups", func(ctx context.Context) ([]storage.EntryGroup, error) { return r.store.Groups(ctx, q) })
}

func (r *retrying) Claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	return try(ctx, r, "Claim", func(ctx context.Context) (storage.Answer, error) { return r.store.Claim(ctx, q) })
}

func (r *retrying) Settle(ctx context.Context, q storage.Settle) (storage.Answer, error) {
	return try(ctx, r, "Settle", func(ctx context.Context) (storage.Answer, error) { return r.store.Settle(ctx, q) })
}

func (r *retrying) Requeue(ctx context.Context, q storage.Requeue) (storage.Answer, error) {
	return try(ctx, r, "Requeue", func(ctx context.Context) (storage.Answer, error) { return r.store.Requeue(ctx, q) })
}

func (r *retrying) Discard(ctx context.Context, q storage.Discard) (storage.Answer, error) {
	return try(ctx, r, "Discard", func(ctx context.Context) (storage.Answer, error) { return r.store.Discard(ctx, q) })
}

func (r *retrying) Census(ctx context.Context) (storage.Census, error) {
	return try(ctx, r, "Census", func(ctx context.Context) (storage.Census, error) { return r.store.Census(ctx) })
}
