package prom

import (
	"errors"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

const (
	// maxNames bounds the labels that callers choose.
	maxNames   = 1000
	otherLabel = "other"
)

// set registers counters and bounds their labels.
type set struct {
	reg prometheus.Registerer
	err error // of the first counter that could not be registered

	mu    sync.RWMutex
	names map[string]bool
}

func newSet(reg prometheus.Registerer) *set { return &set{reg: reg, names: map[string]bool{}} }

// counter returns what adds one to a counter. Of its labels, the first is a
// method's or operation's name.
func (s *set) counter(name, help string, labels ...string) func(values ...string) {
	vec := register(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
	return func(values ...string) {
		values[0] = s.bounded(values[0])
		vec.WithLabelValues(values...).Inc()
	}
}

// count returns what adds one to a counter without labels.
func (s *set) count(name, help string) func() {
	return register(s, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})).Inc
}

// gauge returns what sets a gauge.
func (s *set) gauge(name, help string) func(float64) {
	return register(s, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})).Set
}

// register registers c, or returns the one of its kind that is there already.
func register[C prometheus.Collector](s *set, c C) C {
	err := s.reg.Register(c)
	if had, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := had.ExistingCollector.(C); ok {
			return same
		}
	}
	s.err = errors.Join(s.err, err)
	return c
}

// bounded returns name, or "other" after too many.
func (s *set) bounded(name string) string {
	s.mu.RLock()
	known := s.names[name]
	s.mu.RUnlock()
	if known {
		return name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.names[name] && len(s.names) >= maxNames {
		return otherLabel
	}
	s.names[name] = true
	return name
}

// engine counts what the engine under server, or guard mode, is told.
func (s *set) engine() guard.Observer {
	by := func(name, help string) func(operation string) {
		count := s.counter(name, help, "operation")
		return func(operation string) { count(operation) }
	}
	refusals := s.counter("dedup_server_refusals_total", "Calls that were not run or whose answer was withheld, by reason.", "operation", "reason")
	return guard.Observer{
		Granted:        by("dedup_server_runs_total", "Handlers that ran under a key."),
		Replayed:       by("dedup_server_replays_total", "Repeats that got the stored answer."),
		Refused:        func(operation string, reason dedupv1.Reason) { refusals(operation, reasonLabel(reason)) },
		LeaseLost:      by("dedup_server_leases_lost_total", "Runs that were told to stop, their lease could not be kept."),
		Unacknowledged: by("dedup_server_unacknowledged_total", "Outcomes that dedupd did not acknowledge in time."),
		Undelivered:    by("dedup_server_undelivered_total", "Outcomes that never reached dedupd."),
		Superseded:     by("dedup_server_superseded_total", "Outcomes that came too late, another holder had the record."),
	}
}

// reasonLabel is the reason's word on the wire; a number for one of a later
// version.
func reasonLabel(r dedupv1.Reason) string { return strings.TrimPrefix(r.String(), "REASON_") }
