package server

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// operationVecs are the counters of operations.
type operationVecs struct {
	reserves, reruns, waits, completions, late, conflicts *prometheus.CounterVec
}

func newOperationVecs() operationVecs {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return counters(name, help, append([]string{"namespace", "operation"}, labels...)...)
	}
	return operationVecs{
		reserves:    vec("dedupd_reserves_total", "Answers to Reserve.", "verdict"),
		reruns:      vec("dedupd_rerun_grants_total", "Grants of keys that had been granted before: retries that run again."),
		waits:       vec("dedupd_waits_total", "Callers that were held until another holder was done."),
		completions: vec("dedupd_completions_total", "Runs whose outcome was stored."),
		late:        vec("dedupd_late_completions_total", "Completions of records that had been released meanwhile."),
		conflicts:   vec("dedupd_conflicts_total", "Refused completions that may be the trace of a double effect."),
	}
}

func (v *operationVecs) all() []prometheus.Collector {
	return []prometheus.Collector{v.reserves, v.reruns, v.waits, v.completions, v.late, v.conflicts}
}

type operationKey struct{ namespace, operation string }

// operationMetrics is what is counted of one operation.
type operationMetrics struct {
	verdicts                                    [storage.VerdictFull + 1]prometheus.Counter // those that a Reserve can have
	reruns, waits, completions, late, conflicts prometheus.Counter
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
	of := func(v *prometheus.CounterVec) prometheus.Counter { return v.WithLabelValues(k.namespace, k.operation) }
	o = &operationMetrics{
		reruns: of(m.reruns), waits: of(m.waits), completions: of(m.completions), late: of(m.late), conflicts: of(m.conflicts),
	}
	for _, v := range reserveVerdicts() {
		o.verdicts[v] = m.reserves.WithLabelValues(k.namespace, k.operation, v.String())
	}
	m.operations[k] = o
	return o
}

// reserveVerdicts are those that a Reserve is answered with.
func reserveVerdicts() []storage.Verdict {
	return []storage.Verdict{
		storage.VerdictGranted, storage.VerdictCompleted, storage.VerdictInProgress, storage.VerdictOutcomeUnknown,
		storage.VerdictKeyReused, storage.VerdictKeyExpired, storage.VerdictStaleHolder, storage.VerdictClaimInvalid,
	}
}

// reserved counts an answer to Reserve.
func (o *operationMetrics) reserved(ans storage.Answer) {
	if c := o.verdicts[ans.Verdict]; c != nil {
		c.Inc()
	}
	if ans.Verdict == storage.VerdictGranted && ans.Record.Grants > 1 {
		o.reruns.Inc()
	}
}

// completed counts an answer to Complete that took the outcome.
func (o *operationMetrics) completed(ans storage.Answer) {
	if ans.State == storage.StateCompleted {
		o.completions.Inc()
	}
	if ans.Late {
		o.late.Inc()
	}
}

// stats tells what was counted of the operations of one namespace, or of all, in
// the order of their names.
func (m *metrics) stats(namespace string) []*dedupv1.OperationStats {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []*dedupv1.OperationStats
	for k, o := range m.operations {
		if namespace != "" && k.namespace != namespace {
			continue
		}
		refused := o.count(storage.VerdictKeyReused) + o.count(storage.VerdictKeyExpired) +
			o.count(storage.VerdictStaleHolder) + o.count(storage.VerdictClaimInvalid)
		out = append(out, &dedupv1.OperationStats{
			Namespace: k.namespace, Operation: k.operation,
			Granted:    o.count(storage.VerdictGranted),
			Replayed:   o.count(storage.VerdictCompleted),
			InProgress: o.count(storage.VerdictInProgress),
			Unknown:    o.count(storage.VerdictOutcomeUnknown),
			Refused:    refused,
			Completed:  valueOf(o.completions),
		})
	}
	slices.SortFunc(out, func(a, b *dedupv1.OperationStats) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetOperation(), b.GetOperation()))
	})
	return out
}

func (o *operationMetrics) count(v storage.Verdict) int64 { return valueOf(o.verdicts[v]) }

// valueOf reads a counter, so that nothing is counted twice.
func valueOf(c prometheus.Metric) int64 {
	var m dto.Metric
	if c.Write(&m) != nil {
		return 0
	}
	return int64(m.GetCounter().GetValue())
}
