package otel_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/otel"
)

// counts is a meter provider and meter that keeps what is added.
type counts struct {
	noop.MeterProvider
	added map[string]int64
	fail  error
}

func (c *counts) Meter(string, ...metric.MeterOption) metric.Meter { return meter{c: c} }

type meter struct {
	noop.Meter
	c *counts
}

func (m meter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return up{name: name, to: m.c}, m.c.fail
}

func (m meter) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return upDown{name: name, to: m.c}, m.c.fail
}

type up struct {
	noop.Int64Counter
	name string
	to   *counts
}

func (u up) Add(_ context.Context, n int64, opts ...metric.AddOption) {
	set := metric.NewAddConfig(opts).Attributes()
	name := u.name
	for _, kv := range set.ToSlice() {
		name += " " + string(kv.Key) + "=" + kv.Value.AsString()
	}
	u.to.added[name] += n
}

type upDown struct {
	noop.Int64UpDownCounter
	name string
	to   *counts
}

func (u upDown) Add(_ context.Context, n int64, _ ...metric.AddOption) { u.to.added[u.name] += n }

func TestMetricsSayWhatBecameOfTheCalls(t *testing.T) {
	t.Parallel()
	c := &counts{added: map[string]int64{}}
	client, err := otel.ClientMetrics(c)
	require.NoError(t, err)
	server, err := otel.ServerMetrics(c)
	require.NoError(t, err)
	payments := served(t, &payments{}, []interceptors.ServerOption{server}, []interceptors.ClientOption{client})
	for range 2 {
		_, err := payments.Charge(t.Context(), request(), interceptors.WithKey("k"))
		require.NoError(t, err)
	}
	const name = "/dedup.demo.v1.PaymentsService/Charge"
	require.Equal(t, map[string]int64{
		"dedup.client.attempts method=" + name:      2,
		"dedup.client.calls code=OK method=" + name: 2,
		"dedup.client.replays method=" + name:       1,
		"dedup.server.runs operation=" + name:       1,
		"dedup.server.replays operation=" + name:    1,
	}, c.added)
}

func TestDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	c := &counts{added: map[string]int64{}}
	o, err := otel.ParkerMetrics(c)
	require.NoError(t, err)
	o.Parked("m", dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED)
	o.Waiting(3, 400)
	o.Waiting(1, 100)
	require.Equal(t, map[string]int64{
		"dedup.parker.parked kind=exhausted method=m": 1, "dedup.parker.spool_entries": 1, "dedup.parker.spool_bytes": 100,
	}, c.added)
}

func TestInstrumentsThatCannotBeMadeAreAnError(t *testing.T) {
	t.Parallel()
	c := &counts{added: map[string]int64{}, fail: errors.New("no room")}
	_, err := otel.ClientMetrics(c)
	require.ErrorContains(t, err, "no room")
	_, err = otel.ServerMetrics(c)
	require.ErrorContains(t, err, "no room")
	_, err = otel.ParkerMetrics(c)
	require.ErrorContains(t, err, "no room")
}
