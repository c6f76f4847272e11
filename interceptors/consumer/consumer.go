package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Defaults of a Config.
const (
	// DefaultMaxRuns is how many runs a message's handler is given.
	DefaultMaxRuns = 5
	// DefaultRetryBase and DefaultRetryCap bound the random wait before a failed
	// message is delivered again.
	DefaultRetryBase = time.Second
	DefaultRetryCap  = time.Minute
)

// Config configures a Consumer. The first four fields are required.
type Config struct {
	// Dedup reaches dedupd, best over a connection of interceptors.DialDedupd.
	Dedup dedupv1.DedupServiceClient
	// Namespace is the unit of administration that the records belong to.
	Namespace string
	// Operation is what the messages are for, such as "consume orders.created":
	// 1-255 printable bytes. Two queues that share it share their keys.
	Operation string
	// DeadLetters keeps what no delivery can settle: AtDedupd, or a place of your own.
	DeadLetters DeadLetters

	// Key makes a message's key of business facts (interceptors.Key), for
	// publishers that send one intent under several ids. It must depend on the
	// message alone. An error, or an empty key, makes a dead letter. Nil: Message.ID.
	Key func(m Message) (string, error)
	// Caller tells whose key it is, where publishers are told apart: from what the
	// broker has authenticated, never from what the publisher wrote. Keys of two
	// callers never meet. Nil: there is one, without a name.
	Caller func(m Message) (string, error)
	// Request returns what of a message tells it from another one under the same
	// key, for bodies whose bytes differ between copies, or hold times and trace
	// ids. Nil: the body's bytes, as a google.protobuf.BytesValue.
	Request func(m Message) (proto.Message, error)

	// Reconciler finds out, for a message whose earlier run ended in the dark, what
	// that did; it must compare that what it finds is of this very message. Its
	// verdicts are Applied and those of package interceptors (VerdictNotApplied,
	// VerdictNotSeen, ...). Nil: such a message runs again if RerunSafe, else it is
	// parked.
	Reconciler func(ctx context.Context, a interceptors.Attempt, m Message) (interceptors.Verdict, error)
	// Basis is why no earlier run can act any more after Reconciler has looked:
	// interceptors.Bounded, Fenced or Inbox. It is set with Reconciler, and only
	// with it; there is no default.
	Basis dedupv1.Basis
	// Inbox is the ready reconciler of an inbox (inbox.Reconciler), for handlers
	// whose every effect commits with their key: then nothing else is needed, and it
	// takes the place of Reconciler and Basis.
	Inbox guard.Reconciler
	// RerunSafe says that handling a message again is harmless, also while an
	// earlier run goes on.
	RerunSafe bool
	// Errors says what the handler's errors mean by their gRPC code; an error
	// without one has UNKNOWN, after which the effect may have happened. Nil:
	// policy.Default. Marks of package interceptors (NotApplied, OutcomeUnknown,
	// Final, MarkEffect) overrule it.
	Errors *policy.Table

	// MaxRuns is how many runs a message's handler is given before it is parked:
	// failed ones, and those in which its process died. They are counted on its
	// record, as the grants of its key, whatever process had them. One with which a
	// reconciler found, between deliveries, that nothing had happened counts too: it
	// may be fewer runs, never more. Zero means DefaultMaxRuns.
	MaxRuns int
	// Lease is how long a message stays with a process that died: 1 s - 15 min, and
	// guard.DefaultLease if zero. It is extended while the handler runs.
	Lease time.Duration
	// MaxRun ends the handler's context; zero means guard.DefaultMaxRun.
	MaxRun time.Duration
	// MaxWait is how long a delivery waits, kept alive, while an earlier one is
	// handled elsewhere, before it is delivered again later. Zero means until that
	// has surely ended: MaxRun and a lease.
	MaxWait time.Duration
	// RetryBase and RetryCap bound the wait before a failed message is delivered
	// again: random, up to RetryBase after its first run, doubling with each, up to
	// RetryCap. Zero means DefaultRetryBase and DefaultRetryCap.
	RetryBase, RetryCap time.Duration
	// Retention lengthens how long it is remembered that a message was handled, up to
	// 400 days; zero leaves the namespace's. It must be longer than the broker may deliver a
	// message again.
	Retention time.Duration

	// Logger takes what an operator should know: parked messages, lost leases. No
	// line holds a key or a message. Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told what happens, for counting.
	Observer Observer
	// Journal is guard.Config.Journal: a directory in which outcomes that dedupd
	// did not acknowledge outlive the process. Empty: in memory only.
	Journal string
}

// Observer counts what happens. Every function may be nil; they are called from
// many goroutines and must not block.
type Observer struct {
	guard.Observer
	// Decided: a delivery was decided on. Alert on dead letters.
	Decided func(operation string, d Decision)
	// ParkFailed: a dead letter could not be parked; its message is delivered
	// again. Alert on it.
	ParkFailed func(operation string)
}

func (c *Config) withDefaults() {
	c.MaxRuns = cmp.Or(c.MaxRuns, DefaultMaxRuns)
	c.Lease = cmp.Or(c.Lease, guard.DefaultLease)
	c.MaxRun = cmp.Or(c.MaxRun, guard.DefaultMaxRun)
	c.MaxWait = cmp.Or(c.MaxWait, c.MaxRun+c.Lease)
	c.RetryBase = cmp.Or(c.RetryBase, DefaultRetryBase)
	c.RetryCap = cmp.Or(c.RetryCap, max(DefaultRetryCap, c.RetryBase))
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Errors == nil {
		table := policy.Default()
		c.Errors = &table
	}
}

func (c *Config) validate() error {
	var faults []error
	fault := func(broken bool, format string, args ...any) {
		if broken {
			faults = append(faults, fmt.Errorf("consumer: "+format, args...))
		}
	}
	fault(c.Operation == "", "name the operation that the messages are for")
	fault(c.DeadLetters == nil, "say who keeps dead letters: no message may be dropped in silence")
	fault((c.Reconciler == nil) != (c.Basis == dedupv1.Basis_BASIS_UNSPECIFIED),
		"a reconciler names what it rests on: BOUNDED, FENCED or INBOX")
	fault(c.Reconciler != nil && c.Inbox != nil, "an inbox reconciles by itself, keep one of Inbox and Reconciler")
	fault(c.MaxRuns < 0, "a message has at least one run, not %d", c.MaxRuns)
	fault(c.MaxRun < 0 || c.MaxWait < 0, "times must not be negative")
	if err := guard.CheckLimits(c.Operation, c.Lease, c.Retention); err != nil {
		faults = append(faults, fmt.Errorf("consumer: %w", err))
	}
	return errors.Join(faults...)
}

// settles reports whether a later delivery finds out what an unknown run did, or
// may run whatever it did.
func (c *Config) settles() bool { return c.Reconciler != nil || c.Inbox != nil || c.RerunSafe }

// Consumer decides on the deliveries of one operation's messages. It is safe for
// concurrent use.
type Consumer struct {
	cfg     Config
	engine  *guard.Engine
	backoff policy.Backoff
}

// New returns a consumer, or an error that says everything that is wrong with c.
// Close it when the service stops.
func New(c Config) (*Consumer, error) {
	c.withDefaults()
	backoff, err := policy.NewBackoff(c.RetryBase, c.RetryCap, policy.DefaultFactor)
	if err := errors.Join(c.validate(), err); err != nil {
		return nil, err
	}
	engine, err := guard.New(guard.Config{
		Dedup: c.Dedup, Namespace: c.Namespace, Logger: c.Logger, Observer: c.Observer.Observer, Journal: c.Journal,
	})
	if err != nil {
		return nil, err
	}
	return &Consumer{cfg: c, engine: engine, backoff: backoff}, nil
}

// Close ends the contexts of handlers that still run, with guard.ErrClosed, and
// goes on for up to 5 s delivering to dedupd what it has not acknowledged. Every
// later delivery is decided as Nack. Take no more messages and wait for the
// handlers first: one that is cut off leaves its outcome unknown.
func (c *Consumer) Close() { c.engine.Close() }
