package prom

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// Parker returns an observer for interceptors.ParkerConfig whose metrics are
// registered with reg:
//
//	dedup_parker_parked_total        dead letters that dedupd took, by method and kind
//	dedup_parker_spooled_total       dead letters that went into the spool, likewise
//	dedup_parker_lost_total          dead letters that nobody took, by method: alert on any
//	dedup_parker_spool_failures_total  dead letters that could not be written to disk
//	dedup_parker_spool_entries       dead letters that wait in the spool
//	dedup_parker_spool_bytes         their size
//
// It fails where reg has other metrics under these names.
func Parker(reg prometheus.Registerer) (interceptors.ParkObserver, error) {
	s := newSet(reg)
	parked := s.counter("dedup_parker_parked_total", "Dead letters that dedupd took.", "method", "kind")
	spooled := s.counter("dedup_parker_spooled_total", "Dead letters that went into the spool: dedupd was away, or at its cap.", "method", "kind")
	lost := s.counter("dedup_parker_lost_total", "Dead letters that neither dedupd nor the spool took.", "method")
	failed := s.count("dedup_parker_spool_failures_total", "Dead letters that could not be written to disk.")
	entries := s.gauge("dedup_parker_spool_entries", "Dead letters that wait in the spool.")
	bytes := s.gauge("dedup_parker_spool_bytes", "Size of the dead letters that wait in the spool.")
	return interceptors.ParkObserver{
		Parked:      func(method string, kind dedupv1.DeadLetterKind) { parked(method, kindLabel(kind)) },
		Spooled:     func(method string, kind dedupv1.DeadLetterKind) { spooled(method, kindLabel(kind)) },
		Lost:        func(method string) { lost(method) },
		SpoolFailed: failed,
		Waiting: func(n int, size int64) {
			entries(float64(n))
			bytes(float64(size))
		},
	}, s.err
}

func kindLabel(k dedupv1.DeadLetterKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "DEAD_LETTER_KIND_"))
}
