package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/storage"
)

// entryVecs are the counters of dead letters.
type entryVecs struct {
	parks, atCap *prometheus.CounterVec
}

func newEntryVecs() entryVecs {
	return entryVecs{
		parks: counters("dedupd_dead_letters_parked_total",
			"Dead letters parked: a new entry is created, another park of an open one repeated.", "namespace", "kind", "entry"),
		atCap: counters("dedupd_dead_letters_refused_total",
			"Parks refused because the namespace was at its cap.", "namespace"),
	}
}

func (v *entryVecs) all() []prometheus.Collector { return []prometheus.Collector{v.parks, v.atCap} }

// parked counts an answer that parked something; every new entry moves it, and
// every repeat.
func (m *metrics) parked(ans storage.Answer) {
	if !ans.Parked || ans.Entry == nil {
		return
	}
	entry := "repeated"
	if ans.Entry.Count <= 1 {
		entry = "created"
	}
	m.parks.WithLabelValues(m.namespace(ans.Entry.Identity.Namespace), ans.Entry.Kind.String(), entry).Inc()
}

// capped counts a Park that was refused at the cap.
func (m *metrics) capped(namespace string) { m.atCap.WithLabelValues(m.namespace(namespace)).Inc() }
