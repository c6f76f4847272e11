package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/storage"
)

// A round deletes in batches, with a pause after each, so that it never takes
// the store from the calls.
const (
	sweepBatch = 1000
	sweepPause = 100 * time.Millisecond
)

// sweeper deletes records whose time is over. It changes no answer: a record is
// judged by its times, whether or not its row is still there.
type sweeper struct {
	store storage.Maintenance
	every time.Duration
	log   *slog.Logger
	swept prometheus.Counter
}

// run sweeps until ctx ends.
func (s *sweeper) run(ctx context.Context) {
	timer := time.NewTimer(s.every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(s.batch(ctx))
	}
}

// batch deletes once and returns the pause to the next.
func (s *sweeper) batch(ctx context.Context) time.Duration {
	n, err := s.store.Sweep(ctx, sweepBatch)
	s.swept.Add(float64(n))
	switch {
	case err != nil:
		if ctx.Err() == nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "deleting old records failed; it goes on later",
				slog.Any("error", err), slog.Duration("pause", s.every))
		}
	case n == sweepBatch:
		return sweepPause
	}
	return s.every
}
