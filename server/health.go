package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/dedupd/dedupd/storage"
)

// How often the store is checked, and how long a check may take.
const (
	healthEvery   = time.Second
	healthTimeout = 900 * time.Millisecond
	healthPause   = 100 * time.Millisecond // between two that failed calls ask for
)

// healthLoop says SERVING while the store answers a real read, and not while
// draining. Only changes are logged.
type healthLoop struct {
	store storage.Maintenance
	grpc  *health.Server
	log   *slog.Logger
	soon  chan struct{}

	mu       sync.Mutex
	reason   string // why not ready; empty when ready
	draining bool
}

func newHealthLoop(store storage.Maintenance, to *health.Server, log *slog.Logger) *healthLoop {
	h := &healthLoop{store: store, grpc: to, log: log, soon: make(chan struct{}, 1), reason: "starting"}
	h.tell(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	return h
}

// run checks until ctx ends.
func (h *healthLoop) run(ctx context.Context) {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		h.check(ctx)
		last := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-h.soon:
			select { // an outage fails every call
			case <-ctx.Done():
				return
			case <-time.After(healthPause - time.Since(last)):
			}
		}
	}
}

// check reads the store. One that does not answer in time, whatever it does with
// its context, is not ready; the next check waits for it.
func (h *healthLoop) check(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- h.store.Check(bounded) }()
	select {
	case err := <-done:
		h.set(ctx, err)
		return
	case <-bounded.Done():
	}
	if ctx.Err() == nil {
		h.set(ctx, bounded.Err())
	}
	select {
	case late := <-done:
		h.log.LogAttrs(ctx, slog.LevelDebug, "a check of the store ended late", slog.Any("error", late))
	case <-ctx.Done():
	}
}

// checkSoon asks for a check now: a call has failed.
func (h *healthLoop) checkSoon() {
	select {
	case h.soon <- struct{}{}:
	default:
	}
}

func (h *healthLoop) set(ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining || ctx.Err() != nil {
		return
	}
	was := h.reason
	switch {
	case err == nil && was != "":
		h.reason = ""
		h.tell(grpc_health_v1.HealthCheckResponse_SERVING)
		h.log.LogAttrs(ctx, slog.LevelInfo, "ready")
	case err != nil && was != storeDown:
		h.reason = storeDown
		h.tell(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		h.log.LogAttrs(ctx, slog.LevelError, "not ready", slog.Any("error", err))
	}
}

const storeDown = "the store cannot be reached"

// drain says NOT_SERVING from here on.
func (h *healthLoop) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining, h.reason = true, "draining"
	h.tell(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
}

// notReady is why the server should get no new work; empty when it should.
func (h *healthLoop) notReady() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reason
}

func (h *healthLoop) tell(s grpc_health_v1.HealthCheckResponse_ServingStatus) {
	h.grpc.SetServingStatus("", s)
	for _, service := range ownServices() {
		h.grpc.SetServingStatus(service.ServiceName, s)
	}
}
