package interceptors

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Defaults of the client.
const (
	// DefaultMaxAttempts is how often a call is sent in all.
	DefaultMaxAttempts = 5
	// DefaultTotalTimeout bounds a call whose context has no deadline.
	DefaultTotalTimeout = 60 * time.Second
)

// ClientOption configures ClientOptions.
type ClientOption interface{ applyClient(c *clientConfig) error }

// RetryOption is for a connection (ClientOptions) and for a single call.
type RetryOption interface {
	grpc.CallOption
	ClientOption
}

type clientOption func(c *clientConfig) error

func (f clientOption) applyClient(c *clientConfig) error { return f(c) }

// callOption is an option of a single call, and of a connection as well where it is
// a RetryOption.
type callOption struct {
	grpc.EmptyCallOption
	fn func(c *callConfig) error
}

func (o callOption) applyClient(c *clientConfig) error { return o.fn(&c.callConfig) }

// callConfig is what a single call may set for itself.
type callConfig struct {
	key         *string
	fresh       bool
	maxAttempts int
	perTry      time.Duration
	total       time.Duration
	backoff     policy.Backoff
	table       policy.Table
	identity    *identity
}

type clientConfig struct {
	callConfig
	perCall      []grpc.UnaryClientInterceptor
	perTry       []grpc.UnaryClientInterceptor
	safeMethods  map[string]bool
	dedupMethods map[string]bool
	keyFields    map[string][]string
	guarded      map[string]*guarded

	budget  *policy.BudgetSettings  // nil: off, or shared
	shared  *policy.Budget          // by several connections; nil: each has its own
	breaker *policy.BreakerSettings // nil: off
	observe CallObserver
	dedup   dedupv1.DedupServiceClient // nil: outcomes are not looked up

	parker         *Parker // nil: nothing is parked
	parkedMethods  map[string]bool
	parkedMetadata []string
}

func newClientConfig(opts []ClientOption) (*clientConfig, error) {
	c := &clientConfig{
		callConfig: callConfig{
			maxAttempts: DefaultMaxAttempts, total: DefaultTotalTimeout,
			backoff: policy.DefaultBackoff(), table: policy.Default(),
		},
		safeMethods: map[string]bool{}, dedupMethods: map[string]bool{},
		keyFields: map[string][]string{}, guarded: map[string]*guarded{},
		parkedMethods: map[string]bool{},
		budget:        &policy.BudgetSettings{}, breaker: &policy.BreakerSettings{},
	}
	faults := make([]error, 0, len(opts))
	for _, o := range opts {
		faults = append(faults, o.applyClient(c))
	}
	faults = append(faults, c.checkKeyFields())
	if len(c.parkedMethods) > 0 && c.parker == nil {
		faults = append(faults, errors.New("methods are to be parked, but nothing brings them to dedupd: WithDeadLetters"))
	}
	return c, errors.Join(faults...)
}

// WithKey gives a call its key: the same on every retry, after a restart of the
// process too, best made by Key from business facts. 1-255 bytes of any value,
// without white space at either end.
func WithKey(key string) grpc.CallOption {
	return callOption{fn: func(c *callConfig) error {
		c.key = &key
		return nil
	}}
}

// WithFreshKey gives a call a new key, a UUID of version 7, unless it has one:
// its retries within this one call are then harmless. Two calls have two keys.
// Methods whose proto option requires a key, and those of WithDeduplicated, get
// one without being asked.
func WithFreshKey() grpc.CallOption {
	return callOption{fn: func(c *callConfig) error {
		c.fresh = true
		return nil
	}}
}

// WithMaxAttempts sets how often a call is sent in all: 1 means no retry, 0 is
// refused; DefaultMaxAttempts unless set. Waiting for somebody else's run under
// the same key uses up no attempt.
func WithMaxAttempts(n int) RetryOption {
	return callOption{fn: func(c *callConfig) error {
		if n < 1 {
			return fmt.Errorf("max attempts is %d, 1 (no retry) or more are allowed", n)
		}
		c.maxAttempts = n
		return nil
	}}
}

// WithPerTryTimeout cuts each try after d; its outcome is then unknown and the
// call is tried again where that is safe. No cut unless set.
func WithPerTryTimeout(d time.Duration) RetryOption {
	return callOption{fn: func(c *callConfig) error {
		if d <= 0 {
			return fmt.Errorf("per-try timeout is %v, it must be more than zero", d)
		}
		c.perTry = d
		return nil
	}}
}

// WithTotalTimeout bounds a call that may be sent again, its retries and waits
// included, where its context has no deadline; DefaultTotalTimeout unless set. A
// deadline of the context is never moved, and a call that is sent exactly once
// is given none.
func WithTotalTimeout(d time.Duration) RetryOption {
	return callOption{fn: func(c *callConfig) error {
		if d <= 0 {
			return fmt.Errorf("total timeout is %v, it must be more than zero", d)
		}
		c.total = d
		return nil
	}}
}

// WithBackoff sets the waits between tries; policy.DefaultBackoff unless set. The
// zero Backoff, which has none, is refused.
func WithBackoff(b policy.Backoff) RetryOption {
	return callOption{fn: func(c *callConfig) error {
		if b == (policy.Backoff{}) {
			return errors.New("the backoff is empty, make one by policy.NewBackoff")
		}
		c.backoff = b
		return nil
	}}
}

// WithErrors sets what status codes mean; policy.Default unless set. The zero
// Table, which would take every lost call for harmless, is refused.
func WithErrors(t policy.Table) RetryOption {
	return callOption{fn: func(c *callConfig) error {
		if t == (policy.Table{}) {
			return errEmptyTable
		}
		c.table = t
		return nil
	}}
}

var errEmptyTable = errors.New("the table of errors is empty, start from policy.Default")

// WithSafeToRetry lists methods, by full name, that may be sent again without a
// key.
func WithSafeToRetry(fullMethods ...string) ClientOption {
	return listed(fullMethods, func(c *clientConfig) map[string]bool { return c.safeMethods })
}

// WithDeduplicated lists methods, by full name, whose server deduplicates
// although no proto option says so: calls without a key get a fresh one.
func WithDeduplicated(fullMethods ...string) ClientOption {
	return listed(fullMethods, func(c *clientConfig) map[string]bool { return c.dedupMethods })
}

// WithKeyFields names the request fields that the keys of a method, by its full
// name, are derived from, in place of the key_fields of its proto option: for
// methods whose proto file is somebody else's. The server must deduplicate the
// method. See the option for what may be named.
func WithKeyFields(fullMethod string, fields ...string) ClientOption {
	return clientOption(func(c *clientConfig) error {
		if len(fields) == 0 {
			return fmt.Errorf("name at least one key field of %s", fullMethod)
		}
		c.keyFields[fullMethod] = fields
		return methodName(fullMethod)
	})
}

func listed(fullMethods []string, of func(*clientConfig) map[string]bool) ClientOption {
	return clientOption(func(c *clientConfig) error {
		var faults []error
		for _, m := range fullMethods {
			faults = append(faults, methodName(m))
			of(c)[m] = true
		}
		return errors.Join(faults...)
	})
}

// PerCall adds interceptors around a whole call, retries included, in this order.
func PerCall(interceptors ...grpc.UnaryClientInterceptor) ClientOption {
	return clientOption(func(c *clientConfig) error {
		c.perCall = append(c.perCall, interceptors...)
		return nil
	})
}

// PerTry adds interceptors around every single try, in this order: short-lived
// tokens, for example.
func PerTry(interceptors ...grpc.UnaryClientInterceptor) ClientOption {
	return clientOption(func(c *clientConfig) error {
		c.perTry = append(c.perTry, interceptors...)
		return nil
	})
}

// WithBudget bounds how many calls of one connection may be retrying at a time (for
// several see WithSharedBudget); unless set, the larger of 3 and 20 % of its active
// calls. Where it is spent a call returns the error that it has.
func WithBudget(s policy.BudgetSettings) ClientOption {
	return clientOption(func(c *clientConfig) error {
		c.budget, c.shared = &s, nil
		_, err := policy.NewBudget(s)
		return err
	})
}

// WithSharedBudget bounds the retries of every connection that is given b
// together, in place of a budget for each. Give one to all connections over
// which the handlers of a process make their calls: nested calls then retry by
// their caller's deadline and one budget for the process, however many services
// they reach.
func WithSharedBudget(b *policy.Budget) ClientOption {
	return clientOption(func(c *clientConfig) error {
		if b == nil {
			return errors.New("the shared budget is nil, make one by policy.NewBudget")
		}
		c.budget, c.shared = nil, b
		return nil
	})
}

// WithoutBudget lets every call retry, however many others do: for tests, and
// for processes whose calls are bounded by something else.
func WithoutBudget() ClientOption {
	return clientOption(func(c *clientConfig) error {
		c.budget, c.shared = nil, nil
		return nil
	})
}

// WithBreaker sets when calls are held back from a server that is ill: one
// breaker for each service of each connection, by policy's defaults unless set.
// A try that is held back ends with UNAVAILABLE and the reason BREAKER_OPEN,
// counts as one of the call's attempts, and waits until the breaker may let it
// through if the call's deadline allows it. Calls of the health service pass.
func WithBreaker(s policy.BreakerSettings) ClientOption {
	return clientOption(func(c *clientConfig) error {
		c.breaker = &s
		_, err := policy.NewBreaker(s)
		return err
	})
}

// WithoutBreaker sends every try, however ill the server is.
func WithoutBreaker() ClientOption {
	return clientOption(func(c *clientConfig) error {
		c.breaker = nil
		return nil
	})
}

// WithDedupd looks up with dedupd, best over a connection of DialDedupd, how a
// keyed call ended whose tries do not tell: a completed record's outcome is then
// the answer, though the service itself is still down. The record is the one
// that the service named in its trailer idempotency-record, else that of
// WithIdentity. A look takes up to 2 s, never beyond the call's deadline.
func WithDedupd(dedup dedupv1.DedupServiceClient) ClientOption {
	return clientOption(func(c *clientConfig) error {
		if dedup == nil {
			return errors.New("the client of dedupd is nil")
		}
		c.dedup = dedup
		return nil
	})
}

// WithIdentity names the records of the calls for WithDedupd: the server's
// namespace, and this caller's name as the server's authentication knows it,
// which may be empty. Needed where no answer of the service tells the record.
func WithIdentity(namespace, caller string) RetryOption {
	return callOption{fn: func(c *callConfig) error {
		if namespace == "" {
			return errors.New("name the namespace of the records")
		}
		c.identity = &identity{namespace: namespace, caller: caller}
		return nil
	}}
}

// WithCallObserver is told what happens to the calls, for counting and tracing.
// Several are told in the order of the options.
func WithCallObserver(o CallObserver) ClientOption {
	return clientOption(func(c *clientConfig) error {
		c.observe = c.observe.and(o)
		return nil
	})
}

// inputInvalid refuses a call before anything is sent.
func inputInvalid(err error) error {
	return refusal{reason: dedupv1.Reason_REASON_INPUT_INVALID, message: err.Error(), field: "options"}.err()
}
