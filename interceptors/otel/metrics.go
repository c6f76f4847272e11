package otel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/internal/tally"
)

// ClientMetrics returns the option of interceptors.ClientOptions that counts by a
// meter of mp what package prom counts, under the same names with dots and without
// total: dedup.client.calls, dedup.client.attempts, and so on. It fails where an
// instrument cannot be made.
func ClientMetrics(mp metric.MeterProvider) (interceptors.ClientOption, error) {
	m := newMeter(mp)
	o := tally.Client(m)
	return interceptors.WithCallObserver(o), m.err
}

// ServerMetrics is the same for interceptors.ServerOptions: dedup.server.runs,
// dedup.server.replays, and so on.
func ServerMetrics(mp metric.MeterProvider) (interceptors.ServerOption, error) {
	m := newMeter(mp)
	o := tally.Server(m)
	return interceptors.WithObserver(o), m.err
}

// ParkerMetrics is the same for interceptors.ParkerConfig: dedup.parker.parked,
// dedup.parker.spool_entries, and so on.
func ParkerMetrics(mp metric.MeterProvider) (interceptors.ParkObserver, error) {
	m := newMeter(mp)
	o := tally.Parker(m)
	return o, m.err
}

// meter makes OpenTelemetry's instruments.
type meter struct {
	metric.Meter
	err error // of the instruments that could not be made
}

var _ tally.Meter = (*meter)(nil)

func newMeter(mp metric.MeterProvider) *meter { return &meter{Meter: mp.Meter(scope)} }

// Counter returns what adds one to a counter.
func (m *meter) Counter(name, help string, labels ...string) func(context.Context, ...string) {
	counter, err := m.Int64Counter("dedup."+name, metric.WithDescription(help))
	m.err = errors.Join(m.err, err)
	return func(ctx context.Context, values ...string) {
		attributes := make([]attribute.KeyValue, len(labels))
		for i, label := range labels {
			attributes[i] = attribute.String(label, values[i])
		}
		counter.Add(ctx, 1, metric.WithAttributes(attributes...))
	}
}

// Level returns what changes an up-down counter.
func (m *meter) Level(name, help string) func(int64) {
	counter, err := m.Int64UpDownCounter("dedup."+name, metric.WithDescription(help))
	m.err = errors.Join(m.err, err)
	return func(delta int64) { counter.Add(context.Background(), delta) }
}
