package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// maxOperations bounds the labels that callers choose: that many pairs of
// namespace and operation are told apart, all later ones share "other".
const (
	maxOperations = 1000
	otherLabel    = "other"
)

// metrics is what the server counts.
type metrics struct {
	calls        *prometheus.CounterVec
	methods      map[string]methodMetrics // by full method, of the known ones
	other        methodMetrics
	reserves     *prometheus.CounterVec
	conflicts    *prometheus.CounterVec
	late         *prometheus.CounterVec
	panics       prometheus.Counter
	storeRetries prometheus.Counter
	storeErrors  prometheus.Counter
	swept        prometheus.Counter

	mu         sync.RWMutex
	operations map[operationKey]*operationMetrics
}

// methodMetrics is resolved once, so that a good call looks up no label.
type methodMetrics struct {
	name     string
	ok       prometheus.Counter
	duration prometheus.Observer
}

type operationKey struct{ namespace, operation string }

// operationMetrics is what is counted of one operation.
type operationMetrics struct {
	verdicts        [storage.VerdictRecordChanged + 1]prometheus.Counter
	conflicts, late prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, version string, w *waiters) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		calls:        vec("dedupd_calls_total", "Calls by method, gRPC code and reason of the refusal.", "method", "code", "reason"),
		reserves:     vec("dedupd_reserves_total", "Answers to Reserve.", "namespace", "operation", "verdict"),
		conflicts:    vec("dedupd_conflicts_total", "Refused completions that may be the trace of a double effect.", "namespace", "operation"),
		late:         vec("dedupd_late_completions_total", "Completions of records that had been released meanwhile.", "namespace", "operation"),
		panics:       counter("dedupd_panics_total", "Calls that failed by a fault of dedupd itself."),
		storeRetries: counter("dedupd_store_retries_total", "Tries after the first of a store that was out of reach."),
		storeErrors:  counter("dedupd_store_errors_total", "Calls that failed because the store was out of reach."),
		swept:        counter("dedupd_swept_records_total", "Records deleted because their time was over."),
		operations:   map[operationKey]*operationMetrics{},
		methods:      map[string]methodMetrics{},
	}
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "dedupd_call_duration_seconds", Help: "Time to answer a call, waiting for another holder included.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30},
	}, []string{"method"})
	method := func(name string) methodMetrics {
		return methodMetrics{name: name, ok: m.calls.WithLabelValues(name, "OK", ""), duration: duration.WithLabelValues(name)}
	}
	for _, d := range []grpc.ServiceDesc{dedupv1.DedupService_ServiceDesc, dedupv1.AdminService_ServiceDesc} {
		for _, md := range d.Methods {
			m.methods["/"+d.ServiceName+"/"+md.MethodName] = method(md.MethodName)
		}
	}
	m.other = method(otherLabel)
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dedupd_build_info", Help: "Always 1; the version is its label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dedupd_waiters", Help: "Callers held until another holder is done.",
	}, func() float64 { return float64(w.held()) })
	for _, c := range []prometheus.Collector{
		m.calls, duration, m.reserves, m.conflicts, m.late, m.panics,
		m.storeRetries, m.storeErrors, m.swept, info, waiting,
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("server: register metrics, give each server a registry of its own: %w", err)
		}
	}
	return m, nil
}

// unary counts and times a call.
func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	began := time.Now()
	res, err := handler(ctx, req)
	method, ok := m.methods[info.FullMethod]
	if !ok {
		method = m.other
	}
	method.duration.Observe(time.Since(began).Seconds())
	if err == nil {
		method.ok.Inc()
		return res, nil
	}
	reason := ""
	var w *wireError
	if errors.As(err, &w) {
		reason = w.reason
	}
	m.calls.WithLabelValues(method.name, status.Code(err).String(), reason).Inc()
	return res, err
}

// operation is what is counted of one operation, under its own labels or the
// shared ones.
func (m *metrics) operation(id storage.Identity) *operationMetrics {
	k := operationKey{id.Namespace, id.Operation}
	m.mu.RLock()
	o := m.operations[k]
	full := len(m.operations) >= maxOperations
	m.mu.RUnlock()
	if o != nil {
		return o
	}
	if full {
		k = operationKey{otherLabel, otherLabel}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o = m.operations[k]; o != nil {
		return o
	}
	o = &operationMetrics{
		conflicts: m.conflicts.WithLabelValues(k.namespace, k.operation),
		late:      m.late.WithLabelValues(k.namespace, k.operation),
	}
	for v := storage.VerdictGranted; v < storage.VerdictNotReconciled; v++ {
		o.verdicts[v] = m.reserves.WithLabelValues(k.namespace, k.operation, v.String())
	}
	m.operations[k] = o
	return o
}

// reserved counts an answer to Reserve.
func (o *operationMetrics) reserved(v storage.Verdict) {
	if c := o.verdicts[v]; c != nil {
		c.Inc()
	}
}
