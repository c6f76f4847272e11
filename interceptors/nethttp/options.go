package nethttp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/hooks"
)

const (
	// DefaultMaxBody is the largest body of a keyed request, unless WithMaxBody or
	// a route sets it: 1 MiB.
	DefaultMaxBody = 1 << 20

	maxErrorHold = 15 * time.Minute
)

// CallerFunc tells who calls, from authentication: a stable principal such as a
// customer or account, never a session, address or token id, and never anything
// that the client may write itself. Keys of two callers never meet. An error or an
// empty caller refuses a keyed request with 401. At most 255 bytes.
type CallerFunc func(r *http.Request) (caller string, err error)

// Option configures New.
type Option interface{ apply(c *config) error }

type option func(c *config) error

func (f option) apply(c *config) error { return f(c) }

type config struct {
	caller  CallerFunc // nil: there is one caller, without a name
	callers int
	strict  bool
	maxBody int64
	hold    time.Duration
	routes  []namedRoute
	others  Route
	log     *slog.Logger
	observe Observer
}

type namedRoute struct {
	pattern string
	route   Route
}

func newConfig() config {
	return config{maxBody: DefaultMaxBody, hold: interceptors.DefaultErrorHold, log: slog.New(slog.DiscardHandler)}
}

// WithCaller tells the callers of keyed requests apart. Exactly one of WithCaller
// and SharedCaller is required.
func WithCaller(f CallerFunc) Option {
	return option(func(c *config) error {
		if f == nil {
			return errors.New("the caller function is nil")
		}
		c.caller = f
		c.callers++
		return nil
	})
}

// SharedCaller says that there is one caller only: everybody who reaches the
// server shares one space of keys, and can be given another's stored response.
func SharedCaller() Option {
	return option(func(c *config) error {
		c.callers++
		return nil
	})
}

// Strict refuses a key that is not an sf-string, as the draft has it:
// Idempotency-Key: "…". Unless set the bare form is taken too.
func Strict() Option {
	return option(func(c *config) error {
		c.strict = true
		return nil
	})
}

// WithRoute sets the policy of the requests that a pattern of http.ServeMux
// matches, such as "POST /orders" or "/orders/{id}/refunds". The most specific
// pattern counts. Patterns without a method leave safe methods (GET, HEAD,
// OPTIONS, TRACE) alone.
func WithRoute(pattern string, r Route) Option {
	return option(func(c *config) error {
		if pattern == "" {
			return errors.New("a route needs a pattern; WithOthers is for requests that none matches")
		}
		c.routes = append(c.routes, namedRoute{pattern, r})
		return nil
	})
}

// WithOthers sets the policy of the requests that no route matches. Unless set
// their keys are optional, and each path is an operation of its own, or each
// pattern of the http.ServeMux that the middleware is inside of.
func WithOthers(r Route) Option {
	return option(func(c *config) error {
		c.others = r
		return nil
	})
}

// WithMaxBody sets the largest body of a keyed request, in bytes: more is 413.
func WithMaxBody(n int64) Option {
	return option(func(c *config) error {
		if n < 1 {
			return fmt.Errorf("max body is %d, 1 byte or more is allowed", n)
		}
		c.maxBody = n
		return nil
	})
}

// WithErrorHold sets how long a permanent failure with nothing applied is kept
// for repeats of the same request: up to 15 min, 0 keeps none;
// interceptors.DefaultErrorHold unless set.
func WithErrorHold(d time.Duration) Option {
	return option(func(c *config) error {
		if d < 0 || d > maxErrorHold {
			return fmt.Errorf("error hold is %v, 0 to %v are allowed", d, maxErrorHold)
		}
		c.hold = d
		return nil
	})
}

// WithLogger takes what an operator should know. No line holds a key, a request or
// a response. Nothing is logged unless set.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return errors.New("the logger is nil")
		}
		c.log = l
		return nil
	})
}

// WithObserver is told what happens, for counting; grants and replays are told to
// the engine's observer. Several are told in the order of the options.
func WithObserver(o Observer) Option {
	return option(func(c *config) error {
		c.observe = Observer{
			Keyless:     hooks.Join1(c.observe.Keyless, o.Keyless),
			Unprotected: hooks.Join1(c.observe.Unprotected, o.Unprotected),
			Observed:    hooks.Join3(c.observe.Observed, o.Observed),
		}
		return nil
	})
}

// Observer counts what the middleware does. Every function may be nil; they are
// called from many goroutines and must not block.
type Observer struct {
	// Keyless: a request of a route that takes keys carried none and ran
	// unprotected.
	Keyless func(operation string)
	// Unprotected: dedupd could not be reached, and a route that fails open ran
	// without protection. Alert on it.
	Unprotected func(operation string)
	// Observed: a request of a route in the mode OBSERVE, what it would have been,
	// and the reason it would have been refused for (unspecified: its caller was not
	// known, or its body too large). Those without a key are told to Keyless.
	Observed func(operation string, would guard.Sight, reason dedupv1.Reason)
}
