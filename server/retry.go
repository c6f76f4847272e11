package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// retrying asks a store again while it is unavailable. Every call is safe to
// repeat: the attempt id, or a record's version, makes a second write of the
// same request a repeat.
type retrying struct {
	store   storage.Records
	retries prometheus.Counter
}

var _ storage.Records = (*retrying)(nil)

func try[T any](ctx context.Context, r *retrying, ask func() (T, error)) (T, error) {
	ans, err := ask()
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
		if ans, err = ask(); err == nil {
			return ans, nil
		}
	}
	return ans, err
}

func (r *retrying) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	return try(ctx, r, func() (storage.Answer, error) { return r.store.Reserve(ctx, q) })
}

func (r *retrying) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return try(ctx, r, func() (storage.Answer, error) { return r.store.BeginRun(ctx, id, q) })
}

func (r *retrying) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return try(ctx, r, func() (storage.Answer, error) { return r.store.Complete(ctx, id, q) })
}

func (r *retrying) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return try(ctx, r, func() (storage.Answer, error) { return r.store.Extend(ctx, id, q) })
}

func (r *retrying) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return try(ctx, r, func() (storage.Answer, error) { return r.store.Release(ctx, q) })
}

func (r *retrying) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return try(ctx, r, func() (storage.Answer, error) { return r.store.Lookup(ctx, id, q) })
}

func (r *retrying) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return try(ctx, r, func() (storage.Answer, error) { return r.store.Resolve(ctx, id, q) })
}

func (r *retrying) List(ctx context.Context, q storage.List) (storage.Page, error) {
	return try(ctx, r, func() (storage.Page, error) { return r.store.List(ctx, q) })
}
