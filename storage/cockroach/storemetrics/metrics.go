// Package storemetrics turns what a SQL store tells its Observer into Prometheus
// metrics. It is apart from the store, so that the store imports no metrics.
//
//  1. New registers the metrics and returns the Observer for cockroach.Options.
//  2. The store calls it; the numbers go to the registry that was given.
//
// It has no labels but a kind of call and a cause of a retry, and starts nothing.
package storemetrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/storage/cockroach"
)

// New registers the metrics with reg and returns an observer that feeds them. It
// fails where reg has them already.
func New(reg prometheus.Registerer) (cockroach.Observer, error) {
	batch := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "dedupd_sql_batch_calls", Help: "Calls that travelled in one statement.",
		Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256},
	}, []string{"kind"})
	retries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dedupd_sql_retries_total", Help: "Tries that failed and were made again.",
	}, []string{"cause"})
	swept := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "dedupd_sql_swept_rows_total", Help: "Rows deleted by this process after the end of their time.",
	})
	backlog := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dedupd_sql_sweep_backlog_seconds", Help: "How long the oldest row of the last sweep had been overdue.",
	})
	for _, c := range []prometheus.Collector{batch, retries, swept, backlog} {
		if err := reg.Register(c); err != nil {
			return cockroach.Observer{}, err
		}
	}
	return cockroach.Observer{
		Batch: func(kind string, calls int) { batch.WithLabelValues(kind).Observe(float64(calls)) },
		Retry: func(cause string) { retries.WithLabelValues(cause).Inc() },
		Swept: func(rows int, overdue time.Duration) {
			swept.Add(float64(rows))
			backlog.Set(overdue.Seconds())
		},
	}, nil
}
