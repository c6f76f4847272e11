package tally

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	// maxNames bounds the labels that callers choose.
	maxNames   = 1000
	otherLabel = "other"
)

// Meter makes instruments. Names are lower case with dots: client.attempts. What
// it returns is called from many goroutines. Labels and values go by their place.
type Meter interface {
	// Counter returns what adds one. ctx is the call's, or none in particular.
	Counter(name, help string, labels ...string) func(ctx context.Context, values ...string)
	// Level returns what changes a level by delta.
	Level(name, help string) func(delta int64)
}

// Client returns an observer for interceptors.WithCallObserver.
func Client(m Meter) interceptors.CallObserver {
	t := newTally(m)
	calls := t.counter("client.calls", "Unary calls that ended, by status code.", "method", "code")
	attempts := t.counter("client.attempts", "Tries that were sent.", "method")
	retries := t.counter("client.retries", "Tries after which the call was tried again, by status code.", "method", "code")
	waits := t.counter("client.waits", "Tries that found somebody else at work on the key.", "method")
	replays := t.counter("client.replays", "Calls that got the answer of an earlier run.", "method")
	unknown := t.counter("client.unknown_outcomes", "Calls after which nobody knows whether the effect happened.", "method")
	budget := t.counter("client.budget_refusals", "Retries that the retry budget refused.", "method")
	breaker := t.counter("client.breaker_refusals", "Tries that the circuit breaker held back.", "method")
	permanent := t.counter("client.permanent_errors", "Calls of methods that park which ended with an error that no replay would cure, by status code.", "method", "code")
	unparked := t.counter("client.unparked", "Calls that were to be parked, and nothing told which record it is.", "method")
	streams := t.counter("client.streams", "Streaming calls that passed through.", "method")
	return interceptors.CallObserver{
		Permanent:   func(ctx context.Context, method string, code codes.Code) { permanent(ctx, method, code.String()) },
		Unparked:    func(ctx context.Context, method string) { unparked(ctx, method) },
		Attempt:     func(ctx context.Context, method string, _ int) { attempts(ctx, method) },
		Retry:       func(ctx context.Context, method string, code codes.Code) { retries(ctx, method, code.String()) },
		Wait:        func(ctx context.Context, method string) { waits(ctx, method) },
		BudgetSpent: func(ctx context.Context, method string) { budget(ctx, method) },
		BreakerOpen: func(ctx context.Context, method string) { breaker(ctx, method) },
		Stream:      func(ctx context.Context, method string) { streams(ctx, method) },
		Ended: func(ctx context.Context, method string, end interceptors.CallEnd) {
			calls(ctx, method, end.Code.String())
			if end.Replayed {
				replays(ctx, method)
			}
			if end.Unknown {
				unknown(ctx, method)
			}
		},
	}
}

// Server returns an observer for interceptors.WithObserver.
func Server(m Meter) interceptors.Observer {
	t := newTally(m)
	by := func(name, help, label string) func(string) {
		count := t.counter(name, help, label)
		return func(value string) { count(context.Background(), value) }
	}
	observed := t.counter("server.observed", "Calls of methods in the mode OBSERVE, by what they would have been and the reason of a refusal.", "method", "would", "reason")
	streams := t.counter("server.streams", "Streaming calls that passed through.", "method", "keyed")
	return interceptors.Observer{
		Observer:    t.engine(),
		Keyless:     by("server.keyless", "Calls of methods that take keys that ran without one.", "method"),
		Unprotected: by("server.unprotected", "Calls of methods that fail open that ran while dedupd could not be reached.", "method"),
		Observed: func(method string, would interceptors.Sight, reason dedupv1.Reason) {
			observed(context.Background(), method, would.String(), reasonLabel(reason))
		},
		Stream: func(method string, keyed bool) {
			streams(context.Background(), method, strconv.FormatBool(keyed))
		},
	}
}

// engine counts what the engine under a server is told.
func (t *tally) engine() guard.Observer {
	by := func(name, help string) func(string) {
		count := t.counter(name, help, "operation")
		return func(operation string) { count(context.Background(), operation) }
	}
	refusals := t.counter("server.refusals", "Calls that were not run or whose answer was withheld, by reason.", "operation", "reason")
	journal := t.meter.Counter("server.journal_failures", "Outcomes that could not be written to the journal.")
	return guard.Observer{
		Granted:        by("server.runs", "Handlers that ran under a key."),
		Replayed:       by("server.replays", "Repeats that got the stored answer."),
		Refused:        func(operation string, r dedupv1.Reason) { refusals(context.Background(), operation, reasonLabel(r)) },
		LeaseLost:      by("server.leases_lost", "Runs that were told to stop, their lease could not be kept."),
		Unacknowledged: by("server.unacknowledged", "Outcomes that dedupd did not acknowledge in time."),
		Undelivered:    by("server.undelivered", "Outcomes that never reached dedupd."),
		Superseded:     by("server.superseded", "Outcomes that came too late, another holder had the record."),
		Reconciled:     by("server.reconciled", "Unknown outcomes that the background reconciler settled."),
		Unreconciled:   by("server.unreconciled", "Unknown outcomes that it gave up; an operator must resolve the record."),
		Partial:        by("server.partial", "Effects that happened in part; an operator must resolve the record."),
		CompleterFull:  by("server.completer_full", "Outcomes that found no room in the background and are lost to repeats."),
		Pending: latest(
			t.meter.Level("server.pending_messages", "Messages that wait in the background for dedupd."),
			t.meter.Level("server.pending_bytes", "Size of the messages that wait in the background for dedupd, in bytes."),
		),
		JournalFailed: func() { journal(context.Background()) },
	}
}

// Parker returns an observer for interceptors.ParkerConfig.
func Parker(m Meter) interceptors.ParkObserver {
	t := newTally(m)
	parked := t.counter("parker.parked", "Dead letters that dedupd took.", "method", "kind")
	spooled := t.counter("parker.spooled", "Dead letters that went into the spool: dedupd was away, or at its cap.", "method", "kind")
	lost := t.counter("parker.lost", "Dead letters that neither dedupd nor the spool took.", "method")
	failed := m.Counter("parker.spool_failures", "Dead letters that could not be written to disk.")
	return interceptors.ParkObserver{
		Parked: func(method string, kind dedupv1.DeadLetterKind) {
			parked(context.Background(), method, kindLabel(kind))
		},
		Spooled: func(method string, kind dedupv1.DeadLetterKind) {
			spooled(context.Background(), method, kindLabel(kind))
		},
		Lost:        func(method string) { lost(context.Background(), method) },
		SpoolFailed: func() { failed(context.Background()) },
		Waiting: latest(
			m.Level("parker.spool_entries", "Dead letters that wait in the spool."),
			m.Level("parker.spool_bytes", "Size of the dead letters that wait in the spool."),
		),
	}
}

func kindLabel(k dedupv1.DeadLetterKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "DEAD_LETTER_KIND_"))
}

// latest turns what one engine has pending into changes, so that the levels of
// several engines add up.
func latest(messages, size func(delta int64)) func(int, int64) {
	var mu sync.Mutex
	var hadMessages, hadSize int64
	return func(n int, bytes int64) {
		mu.Lock()
		defer mu.Unlock()
		messages(int64(n) - hadMessages)
		size(bytes - hadSize)
		hadMessages, hadSize = int64(n), bytes
	}
}

// tally makes counters whose labels are bounded.
type tally struct {
	meter Meter

	mu    sync.RWMutex
	names map[string]bool
}

func newTally(m Meter) *tally { return &tally{meter: m, names: map[string]bool{}} }

// counter returns what adds one to a counter whose first label is a method's or
// operation's name.
func (t *tally) counter(name, help string, labels ...string) func(ctx context.Context, values ...string) {
	count := t.meter.Counter(name, help, labels...)
	return func(ctx context.Context, values ...string) {
		values[0] = t.bounded(values[0])
		count(ctx, values...)
	}
}

// bounded returns name, or "other" after too many.
func (t *tally) bounded(name string) string {
	t.mu.RLock()
	known := t.names[name]
	t.mu.RUnlock()
	if known {
		return name
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.names[name] && len(t.names) >= maxNames {
		return otherLabel
	}
	t.names[name] = true
	return name
}

// reasonLabel is the reason's word on the wire, nothing for none, a number for
// one of a later version.
func reasonLabel(r dedupv1.Reason) string {
	if r == dedupv1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return policy.ReasonName(r)
}
