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
)

// Bounds of the labels that callers choose: that many pairs of namespace and
// operation, and that many namespaces where they stand alone, are told apart; all
// later ones share "other".
const (
	maxOperations = 1000
	maxNamespaces = 200
	otherLabel    = "other"
)

// metrics is what the server counts. README.md tells every name.
type metrics struct {
	calls         *prometheus.CounterVec
	methods       map[string]methodMetrics // by full method, of the known ones
	other         methodMetrics
	panics        prometheus.Counter
	storeRetries  prometheus.Counter
	storeErrors   prometheus.Counter
	storeTook     *prometheus.HistogramVec
	swept         prometheus.Counter
	alertMessages *prometheus.CounterVec
	operationVecs
	entryVecs

	mu         sync.RWMutex
	operations map[operationKey]*operationMetrics
	namespaces map[string]bool // those with a label of their own
}

// methodMetrics is resolved once, so that a good call looks up no label.
type methodMetrics struct {
	name     string
	ok       prometheus.Counter
	duration prometheus.Observer
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func newMetrics(reg prometheus.Registerer, version string, more ...prometheus.Collector) (*metrics, error) {
	m := &metrics{
		calls:         counters("dedupd_calls_total", "Calls by method, gRPC code and reason of the refusal.", "method", "code", "reason"),
		panics:        counter("dedupd_panics_total", "Calls that failed by a fault of dedupd itself."),
		storeRetries:  counter("dedupd_store_retries_total", "Tries after the first of a store that was out of reach."),
		storeErrors:   counter("dedupd_store_errors_total", "Calls that failed because the store was out of reach."),
		swept:         counter("dedupd_swept_records_total", "Records and closed dead letters deleted because their time was over."),
		alertMessages: counters("dedupd_alert_messages_total", "Messages to the alert webhook, sent and failed.", "result"),
		storeTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dedupd_store_duration_seconds", Help: "Time of one try of a call to the store.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"call"}),
		operationVecs: newOperationVecs(),
		entryVecs:     newEntryVecs(),
		operations:    map[operationKey]*operationMetrics{},
		namespaces:    map[string]bool{},
		methods:       map[string]methodMetrics{},
	}
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "dedupd_call_duration_seconds", Help: "Time to answer a call, waiting for another holder included.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30},
	}, []string{"method"})
	method := func(name string) methodMetrics {
		return methodMetrics{name: name, ok: m.calls.WithLabelValues(name, "OK", ""), duration: duration.WithLabelValues(name)}
	}
	for _, d := range ownServices() {
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
	all := []prometheus.Collector{m.calls, duration, m.panics, m.storeRetries, m.storeErrors, m.storeTook, m.swept, m.alertMessages, info}
	all = append(append(append(all, m.operationVecs.all()...), m.entryVecs.all()...), more...)
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("server: register metrics, give each server a registry of its own: %w", err)
		}
	}
	return m, nil
}

// ownServices are the services of dedupd's own protocol.
func ownServices() []grpc.ServiceDesc {
	return []grpc.ServiceDesc{
		dedupv1.DedupService_ServiceDesc, dedupv1.DeadLetterService_ServiceDesc, dedupv1.AdminService_ServiceDesc,
	}
}

// gauge is a number that is asked for when it is scraped.
func gauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
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

// namespace is the label of a namespace that stands alone.
func (m *metrics) namespace(name string) string {
	m.mu.RLock()
	known, full := m.namespaces[name], len(m.namespaces) >= maxNamespaces
	m.mu.RUnlock()
	switch {
	case known:
		return name
	case full:
		return otherLabel
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.namespaces) >= maxNamespaces {
		return otherLabel
	}
	m.namespaces[name] = true
	return name
}
