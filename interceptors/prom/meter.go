package prom

import (
	"context"
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/interceptors/internal/tally"
)

// meter makes Prometheus's instruments. One that is registered already is shared.
type meter struct {
	reg prometheus.Registerer
	err error // of the instruments that could not be registered
}

var _ tally.Meter = (*meter)(nil)

// Counter returns what adds one to a counter.
func (m *meter) Counter(name, help string, labels ...string) func(context.Context, ...string) {
	vec := register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricName(name) + "_total", Help: help}, labels))
	return func(_ context.Context, values ...string) { vec.WithLabelValues(values...).Inc() }
}

// Level returns what changes a gauge.
func (m *meter) Level(name, help string) func(int64) {
	gauge := register(m, prometheus.NewGauge(prometheus.GaugeOpts{Name: metricName(name), Help: help}))
	return func(delta int64) { gauge.Add(float64(delta)) }
}

func metricName(name string) string { return "dedup_" + strings.ReplaceAll(name, ".", "_") }

// register returns c, or the one of its kind and name that is registered already.
func register[C prometheus.Collector](m *meter, c C) C {
	err := m.reg.Register(c)
	if had, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := had.ExistingCollector.(C); ok {
			return same
		}
	}
	m.err = errors.Join(m.err, err)
	return c
}
