package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/internal/tally"
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
	m := &meter{reg: reg}
	o := tally.Parker(m)
	return o, m.err
}
