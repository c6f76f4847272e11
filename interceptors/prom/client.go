package prom

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/dedupd/dedupd/interceptors"
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
//	dedup_client_streams_total           streaming calls that passed through
//
// It fails where reg has other metrics under these names.
func Client(reg prometheus.Registerer) (interceptors.CallObserver, error) {
	s := newSet(reg)
	calls := s.counter("dedup_client_calls_total", "Unary calls that ended, by status code.", "method", "code")
	attempts := s.counter("dedup_client_attempts_total", "Tries that were sent.", "method")
	retries := s.counter("dedup_client_retries_total", "Tries after which the call was tried again, by status code.", "method", "code")
	waits := s.counter("dedup_client_waits_total", "Tries that found somebody else at work on the key.", "method")
	replays := s.counter("dedup_client_replays_total", "Calls that got the answer of an earlier run.", "method")
	unknown := s.counter("dedup_client_unknown_outcomes_total", "Calls after which nobody knows whether the effect happened.", "method")
	budget := s.counter("dedup_client_budget_refusals_total", "Retries that the retry budget refused.", "method")
	breaker := s.counter("dedup_client_breaker_refusals_total", "Tries that the circuit breaker held back.", "method")
	permanent := s.counter("dedup_client_permanent_errors_total", "Calls of methods that park which ended with an error that no replay would cure, by status code.", "method", "code")
	unparked := s.counter("dedup_client_unparked_total", "Calls that were to be parked, and nothing told which record it is.", "method")
	streams := s.counter("dedup_client_streams_total", "Streaming calls that passed through.", "method")
	return interceptors.CallObserver{
		Permanent:   func(_ context.Context, method string, code codes.Code) { permanent(method, code.String()) },
		Unparked:    func(_ context.Context, method string) { unparked(method) },
		Attempt:     func(_ context.Context, method string, _ int) { attempts(method) },
		Retry:       func(_ context.Context, method string, code codes.Code) { retries(method, code.String()) },
		Wait:        func(_ context.Context, method string) { waits(method) },
		BudgetSpent: func(_ context.Context, method string) { budget(method) },
		BreakerOpen: func(_ context.Context, method string) { breaker(method) },
		Stream:      func(_ context.Context, method string) { streams(method) },
		Ended: func(_ context.Context, method string, end interceptors.CallEnd) {
			calls(method, end.Code.String())
			if end.Replayed {
				replays(method)
			}
			if end.Unknown {
				unknown(method)
			}
		},
	}, s.err
}

// Server returns an observer for interceptors.WithObserver whose counters are
// registered with reg:
//
//	dedup_server_runs_total             handlers that ran under a key
//	dedup_server_replays_total          repeats that got the stored answer
//	dedup_server_refusals_total         calls that were not run, by reason
//	dedup_server_leases_lost_total      runs that were told to stop
//	dedup_server_unacknowledged_total   outcomes that dedupd did not acknowledge in time
//	dedup_server_undelivered_total      outcomes that never reached dedupd
//	dedup_server_superseded_total       outcomes that came too late: look for a conflict
//	dedup_server_keyless_total          calls that ran without a key
//	dedup_server_streams_total          streaming calls, and whether they had a key
//
// The first seven are by operation, the last two by method. It fails where reg
// has other metrics under these names.
func Server(reg prometheus.Registerer) (interceptors.Observer, error) {
	s := newSet(reg)
	keyless := s.counter("dedup_server_keyless_total", "Calls of methods that take keys that ran without one.", "method")
	streams := s.counter("dedup_server_streams_total", "Streaming calls that passed through.", "method", "keyed")
	o := interceptors.Observer{
		Keyless: func(method string) { keyless(method) },
		Stream:  func(method string, keyed bool) { streams(method, strconv.FormatBool(keyed)) },
	}
	o.Observer = s.engine()
	return o, s.err
}
