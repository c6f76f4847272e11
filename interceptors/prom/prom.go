package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/internal/tally"
)

// Client returns an observer for interceptors.WithCallObserver whose counters,
// all by method, are registered with reg:
//
//	dedup_client_calls_total             calls that ended, by the code the caller got
//	dedup_client_attempts_total          tries that were sent
//	dedup_client_retries_total           tries that will be made again, by code
//	dedup_client_waits_total             tries that found somebody else at work
//	dedup_client_replays_total           calls whose answer was that of an earlier run
//	dedup_client_unknown_outcomes_total  calls after which nobody knows
//	dedup_client_budget_refusals_total   retries that the budget refused
//	dedup_client_breaker_refusals_total  tries that the breaker held back
//	dedup_client_permanent_errors_total  calls to be parked that no replay would cure, by code
//	dedup_client_unparked_total          calls to be parked whose record nobody named
//	dedup_client_ignored_keys_total      keyed calls answered by a server that looks at no keys: alert
//	dedup_client_streams_total           streaming calls that passed through
//
// It fails where reg has other metrics under these names.
func Client(reg prometheus.Registerer) (interceptors.CallObserver, error) {
	m := &meter{reg: reg}
	o := tally.Client(m)
	return o, m.err
}

// Server returns an observer for interceptors.WithObserver whose metrics are
// registered with reg:
//
//	dedup_server_runs_total              handlers that ran under a key
//	dedup_server_replays_total           repeats that got the stored answer
//	dedup_server_refusals_total          calls that were not run, by reason
//	dedup_server_leases_lost_total       runs that were told to stop
//	dedup_server_unacknowledged_total    outcomes that dedupd did not acknowledge in time
//	dedup_server_undelivered_total       outcomes that never reached dedupd
//	dedup_server_superseded_total        outcomes that came too late: look for a conflict
//	dedup_server_reconciled_total        unknown outcomes that the background reconciler settled
//	dedup_server_unreconciled_total      those that it gave up: alert
//	dedup_server_partial_total           effects that happened in part: alert
//	dedup_server_completer_full_total    outcomes that found no room in the background: alert
//	dedup_server_journal_failures_total  outcomes that the journal did not take: alert
//	dedup_server_pending_messages        what waits in the background for dedupd, a gauge
//	dedup_server_pending_bytes           and its size, a gauge
//	dedup_server_keyless_total           calls that ran without a key
//	dedup_server_unprotected_total       calls that ran although dedupd was away: alert
//	dedup_server_observed_total          calls in the mode OBSERVE, by what they would have been
//	dedup_server_streams_total           streaming calls, and whether they had a key
//
// Those of the engine are by operation, the last four by method. It fails where
// reg has other metrics under these names.
func Server(reg prometheus.Registerer) (interceptors.Observer, error) {
	m := &meter{reg: reg}
	o := tally.Server(m)
	return o, m.err
}
