package server

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/storage"
)

// entryVecs are the counters of dead letters.
type entryVecs struct {
	parks, atCap *prometheus.CounterVec
	ledger       *ledger
}

// seriesKey is a namespace, under a label that is bounded, and a kind or state.
type seriesKey struct{ namespace, kind string }

// ledger keeps what the alerts need of the same counts.
type ledger struct {
	mu      sync.Mutex
	parks   map[seriesKey]int64 // all
	created map[seriesKey]int64 // new entries
	atCap   map[string]int64
}

// sums is a copy of the numbers at one moment.
func (l *ledger) sums() (parks, created map[seriesKey]int64, atCap map[string]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.parks), maps.Clone(l.created), maps.Clone(l.atCap)
}

func newEntryVecs() entryVecs {
	return entryVecs{
		parks: counters("dedupd_dead_letters_parked_total",
			"Dead letters parked: a new entry is created, another park of an open one repeated.", "namespace", "kind", "entry"),
		atCap: counters("dedupd_dead_letters_refused_total",
			"Parks refused because the namespace was at its cap.", "namespace"),
		ledger: &ledger{parks: map[seriesKey]int64{}, created: map[seriesKey]int64{}, atCap: map[string]int64{}},
	}
}

func (v *entryVecs) all() []prometheus.Collector { return []prometheus.Collector{v.parks, v.atCap} }

// parked counts an answer that parked something; every new entry moves it, and
// every repeat.
func (m *metrics) parked(ans storage.Answer) {
	if !ans.Parked || ans.Entry == nil {
		return
	}
	k := seriesKey{m.namespace(ans.Entry.Identity.Namespace), ans.Entry.Kind.String()}
	entry := "repeated"
	m.ledger.mu.Lock()
	m.ledger.parks[k]++
	if ans.Entry.Count <= 1 {
		entry = "created"
		m.ledger.created[k]++
	}
	m.ledger.mu.Unlock()
	m.parks.WithLabelValues(k.namespace, k.kind, entry).Inc()
}

// capped counts a Park that was refused at the cap.
func (m *metrics) capped(namespace string) {
	namespace = m.namespace(namespace)
	m.ledger.mu.Lock()
	m.ledger.atCap[namespace]++
	m.ledger.mu.Unlock()
	m.atCap.WithLabelValues(namespace).Inc()
}
