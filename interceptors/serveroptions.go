package interceptors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/hooks"
)

// DefaultErrorHold is how long a permanent error with nothing applied is kept
// for waiting repeats of the same request, unless WithErrorHold sets it.
const DefaultErrorHold = 10 * time.Second

const maxErrorHold = 15 * time.Minute

// CallerFunc tells who calls, from authentication: a stable principal such as a
// customer or account, never a pod, connection or token id, and never anything
// that the client itself wrote into metadata. Keys of two callers never meet. An
// error or an empty caller refuses a keyed call with UNAUTHENTICATED. At most
// 255 bytes.
type CallerFunc func(ctx context.Context) (caller string, err error)

// ServerOption configures ServerOptions.
type ServerOption interface{ applyServer(c *serverConfig) error }

type serverOption func(c *serverConfig) error

func (f serverOption) applyServer(c *serverConfig) error { return f(c) }

type registered struct {
	fn    ReconcileFunc
	inbox guard.Reconciler // instead of fn
	basis dedupv1.Basis
}

type serverConfig struct {
	namespace   string
	shadow      string
	caller      CallerFunc // nil: there is one caller, without a name
	callers     int        // options that said whose keys they are
	overrides   map[string]Method
	reconcilers map[string]registered
	before      []grpc.UnaryServerInterceptor
	after       []grpc.UnaryServerInterceptor

	lease, maxRun, wait time.Duration
	hold                time.Duration

	log      *slog.Logger
	observe  Observer
	lifetime context.Context //nolint:containedctx // the server's lifetime, not a call's
	closed   func()
	journal  string
	parker   *Parker // nil: what cannot be reconciled is counted and logged only
	trace    Tracing
}

func newServerConfig(opts []ServerOption) (*serverConfig, error) {
	c := &serverConfig{
		overrides: map[string]Method{}, reconcilers: map[string]registered{},
		lease: guard.DefaultLease, maxRun: guard.DefaultMaxRun, wait: guard.DefaultWait,
		hold: DefaultErrorHold,
	}
	var faults []error
	for _, o := range opts {
		faults = append(faults, o.applyServer(c))
	}
	if c.namespace == "" {
		faults = append(faults, errors.New("name the namespace of the records: WithNamespace"))
	}
	switch {
	case c.callers == 0:
		faults = append(faults, errors.New("say whose keys they are: WithCaller, or SharedCaller if there is only one caller"))
	case c.callers > 1:
		faults = append(faults, errors.New("the caller is configured twice, keep one of WithCaller and SharedCaller"))
	}
	c.shadow = cmp.Or(c.shadow, c.namespace+".shadow")
	if c.lifetime == nil && (c.closed != nil || c.journal != "") {
		faults = append(faults, errors.New("say when the server stops, for its journal and OnClosed: WithLifetime"))
	}
	c.log = cmp.Or(c.log, slog.New(slog.DiscardHandler))
	return c, errors.Join(faults...)
}

// WithNamespace names the unit of administration, usually one owning team or
// service, that the records belong to: 1-63 characters of a-z 0-9 . _ - that
// start with a letter or digit. Required.
func WithNamespace(namespace string) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.namespace = namespace
		return nil
	})
}

// WithShadowNamespace names the namespace of what methods in the mode OBSERVE
// keep; the namespace followed by ".shadow" unless set. It takes the same
// characters, and must not be a namespace that protects anything.
func WithShadowNamespace(namespace string) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.shadow = namespace
		return nil
	})
}

// WithCaller tells the callers of keyed calls apart. Exactly one of WithCaller
// and SharedCaller is required.
func WithCaller(f CallerFunc) ServerOption {
	return serverOption(func(c *serverConfig) error {
		if f == nil {
			return errors.New("the caller function is nil")
		}
		c.caller = f
		c.callers++
		return nil
	})
}

// SharedCaller says that there is one caller only: everybody who reaches the
// server shares one space of keys, and can be given another's stored answer.
// Exactly one of WithCaller and SharedCaller is required.
func SharedCaller() ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.callers++
		return nil
	})
}

// WithReconciler registers what finds out, for one method by its full name
// ("/package.Service/Method"), what a run did that ended in the dark. basis is
// Bounded, Fenced or Inbox: why no earlier run can act after the look; there is
// no default. Without a reconciler such calls are refused with OUTCOME_UNKNOWN,
// or run again if the method's policy says rerun_safe.
func WithReconciler(fullMethod string, basis dedupv1.Basis, fn ReconcileFunc) ServerOption {
	return serverOption(func(c *serverConfig) error {
		switch _, known := dedupv1.Basis_name[int32(basis)]; {
		case fn == nil:
			return fmt.Errorf("the reconciler of %s is nil", fullMethod)
		case !known || basis == dedupv1.Basis_BASIS_UNSPECIFIED:
			return fmt.Errorf("name what the reconciler of %s rests on: Bounded, Fenced or Inbox", fullMethod)
		}
		return c.register(fullMethod, registered{fn: fn, basis: basis})
	})
}

func (c *serverConfig) register(fullMethod string, r registered) error {
	if _, twice := c.reconcilers[fullMethod]; twice {
		return fmt.Errorf("%s has two reconcilers, keep one", fullMethod)
	}
	c.reconcilers[fullMethod] = r
	return methodName(fullMethod)
}

// WithMethod overrides the policy of one method, by its full name
// ("/package.Service/Method"): fields that are set win over the proto option,
// unless Replace takes its place.
func WithMethod(fullMethod string, m Method) ServerOption {
	return serverOption(func(c *serverConfig) error {
		if _, twice := c.overrides[fullMethod]; twice {
			return fmt.Errorf("%s is overridden twice, keep one WithMethod", fullMethod)
		}
		c.overrides[fullMethod] = m
		return methodName(fullMethod)
	})
}

func methodName(s string) error {
	service, name, ok := strings.Cut(strings.TrimPrefix(s, "/"), "/")
	if !strings.HasPrefix(s, "/") || !ok || service == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is no full method name, write it as /package.Service/Method", s)
	}
	return nil
}

// Before adds interceptors that run before keys are looked at, in this order:
// authentication, logging. They see repeats too.
func Before(interceptors ...grpc.UnaryServerInterceptor) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.before = append(c.before, interceptors...)
		return nil
	})
}

// After adds interceptors that run only when the handler runs, around it, in
// this order: what belongs to the work itself. Their errors count as the
// handler's.
func After(interceptors ...grpc.UnaryServerInterceptor) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.after = append(c.after, interceptors...)
		return nil
	})
}

// WithLease sets the lease of methods whose policy names none: 1 s - 15 min; 30 s
// unless set. It bounds how long a key is blocked after a crash, not how long a
// handler may run: the lease is extended while it does.
func WithLease(d time.Duration) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.lease = d
		return nil
	})
}

// WithMaxRun sets when a keyed handler's context ends; 5 min unless set.
func WithMaxRun(d time.Duration) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.maxRun = d
		return nil
	})
}

// WithWait sets how long a repeat waits for a run that is going on before it is
// answered IN_PROGRESS, cut to 200 ms before its deadline; 10 s unless set. For
// no wait at all use Method.RefuseAtOnce.
func WithWait(d time.Duration) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.wait = d
		return nil
	})
}

// WithErrorHold sets how long a permanent error with nothing applied is kept for
// waiting repeats of the same request: up to 15 min, 0 keeps none;
// DefaultErrorHold unless set.
func WithErrorHold(d time.Duration) ServerOption {
	return serverOption(func(c *serverConfig) error {
		if d < 0 || d > maxErrorHold {
			return fmt.Errorf("error hold is %v, 0 to %v are allowed", d, maxErrorHold)
		}
		c.hold = d
		return nil
	})
}

// WithLogger takes what an operator should know: lost leases, outcomes that
// dedupd did not acknowledge. No line holds a key, a request or a response.
// Nothing is logged unless set.
func WithLogger(l *slog.Logger) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.log = l
		return nil
	})
}

// WithObserver is told what happens, for counting. Several are told in the order
// of the options.
func WithObserver(o Observer) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.observe = c.observe.and(o)
		return nil
	})
}

// WithLifetime ties handlers' contexts and background work to the server's life:
// cancel ctx when the server stops, after a graceful stop has waited for its
// handlers. Then what dedupd has not acknowledged is delivered for up to 5 s
// more; OnClosed tells when that is over. Unless set they end by themselves:
// handlers by the maximum run time, deliveries after 24 hours at most.
func WithLifetime(ctx context.Context) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.lifetime = ctx
		return nil
	})
}

// OnClosed sets what is called once, after the end of WithLifetime's context,
// when nothing is going on in the background any more: wait for it before the
// process exits.
func OnClosed(f func()) ServerOption {
	return serverOption(func(c *serverConfig) error {
		c.closed = f
		return nil
	})
}

// WithJournal names a directory, of this process alone, in which outcomes that
// dedupd did not acknowledge outlive a restart of the service: they are on disk
// before the caller is answered, and are delivered from there once dedupd is
// back. It holds keys and responses, readable by the process's user only, up to
// 128 MiB. Unless set they are kept in memory only.
func WithJournal(dir string) ServerOption {
	return serverOption(func(c *serverConfig) error {
		if dir == "" {
			return errors.New("the journal's directory has no name")
		}
		c.journal = dir
		return nil
	})
}

// Observer counts what the server interceptors do. Every function may be nil;
// they are called from many goroutines and must not block.
type Observer struct {
	guard.Observer
	// Keyless: a call of a method that takes keys carried none and ran
	// unprotected.
	Keyless func(fullMethod string)
	// Unprotected: dedupd could not be reached, and a method that fails open ran
	// without protection. Alert on it.
	Unprotected func(fullMethod string)
	// Observed: a call of a method in the mode OBSERVE, what it would have been,
	// and the reason it would have been refused for (unspecified: its caller was
	// not known). Calls without a key are told to Keyless.
	Observed func(fullMethod string, would Sight, reason dedupv1.Reason)
	// Stream: a streaming call passed through; keyed tells that it carried a key,
	// which was ignored.
	Stream func(fullMethod string, keyed bool)
}

// and returns an observer that tells o, then next.
func (o Observer) and(next Observer) Observer {
	return Observer{
		Observer:    o.And(next.Observer),
		Keyless:     hooks.Join1(o.Keyless, next.Keyless),
		Unprotected: hooks.Join1(o.Unprotected, next.Unprotected),
		Observed:    hooks.Join3(o.Observed, next.Observed),
		Stream:      hooks.Join2(o.Stream, next.Stream),
	}
}
