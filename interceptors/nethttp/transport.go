package nethttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// maxHosts bounds how many hosts have a budget of their own; the others share one.
const maxHosts = 1000

// TransportConfig configures NewTransport. Zero fields mean their defaults.
type TransportConfig struct {
	// Base sends the tries; nil means http.DefaultTransport.
	Base http.RoundTripper
	// MaxAttempts is how often a request is sent in all: 1 means no retry; zero
	// means interceptors.DefaultMaxAttempts.
	MaxAttempts int
	// Total bounds requests whose context has no deadline, up to the response's
	// headers; zero means interceptors.DefaultTotalTimeout.
	Total time.Duration
	// PerTry cuts a try whose response's headers do not come in time; its outcome is
	// then unknown. Zero: no cut.
	PerTry time.Duration
	// Backoff is the wait between tries; nil means policy.DefaultBackoff.
	Backoff *policy.Backoff
	// MaxBody is the largest request body, in bytes, that is held for another try;
	// a larger one is sent once, unless the request has a GetBody. Zero means
	// DefaultMaxBody.
	MaxBody int64
	// Budget bounds how many requests to one host may be retrying.
	Budget policy.BudgetSettings
	// Breaker says when requests are held back from a host that is ill.
	Breaker policy.BreakerSettings
	// Providers are the callees that are known, by host as in the URL, with its
	// port if it has one.
	Providers map[string]Provider
	// Others is every other callee.
	Others Provider
}

// Provider is what is known of a callee.
type Provider struct {
	// KeyHeader is the header by which it takes keys; empty means Idempotency-Key,
	// and with Guarded none.
	KeyHeader string
	// BareKeys sends keys as they are; unless set, as sf-strings, in quotes.
	BareKeys bool
	// Deduplicates says that it does a request under a known key once, for at least
	// as long as it may be repeated: requests without a key get one, and are tried
	// again. Inside a keyed run that is the request's child key, else a fresh one.
	Deduplicates bool
	// Errors says what its statuses mean, by policy.CodeOfHTTP; nil means
	// policy.Default.
	Errors *policy.Table
	// Guarded guards the requests on this side, for a callee that knows nothing of
	// keys.
	Guarded *Guarded
}

// Guarded is how requests to a callee are guarded on this side: around each try
// the key is reserved with dedupd, and how the try ended is stored with its
// response. A try whose outcome is unknown is not sent again, by anybody, unless
// Rerun says so. Requests and responses are held in memory.
type Guarded struct {
	// Engine reserves and stores; required.
	Engine *guard.Engine
	// Caller is whose keys they are; may be empty.
	Caller string
	// Lease is asked for around each try: 1 s - 15 min; zero means
	// guard.DefaultLease.
	Lease time.Duration
	// Retention lengthens the namespace's retention of the response, up to 400 days;
	// zero leaves it.
	Retention time.Duration
	// RefusalsApplyNothing: the callee answers 425 and 429 only where it has applied
	// nothing. Else they leave the outcome unknown.
	RefusalsApplyNothing bool
	// Rerun: the callee deduplicates by Provider.KeyHeader, under which it is sent the
	// record's id in hexadecimal, so that a try whose outcome is unknown is sent
	// again. net/http's own Transport too may then send it again.
	Rerun bool
}

// Transport is an http.RoundTripper whose requests carry keys, and are tried again
// where that is safe: with a key that the callee looks at, or by a method that is
// idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE). Every other request is sent
// once. Inside a keyed run a request is noted as what it may have left behind.
// It is safe for concurrent use.
type Transport struct {
	config  TransportConfig
	backoff policy.Backoff
	breaker *policy.Breaker

	mu      sync.Mutex
	budgets map[string]*policy.Budget // by host, at most maxHosts, and "" for the rest
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a transport, or an error that tells every fault of the
// configuration at once.
func NewTransport(c TransportConfig) (*Transport, error) {
	if c.Base == nil {
		c.Base = http.DefaultTransport
	}
	c.MaxAttempts = cmp.Or(c.MaxAttempts, interceptors.DefaultMaxAttempts)
	c.Total = cmp.Or(c.Total, interceptors.DefaultTotalTimeout)
	c.MaxBody = cmp.Or(c.MaxBody, DefaultMaxBody)
	t := &Transport{config: c, backoff: policy.DefaultBackoff(), budgets: map[string]*policy.Budget{}}
	if c.Backoff != nil {
		t.backoff = *c.Backoff
	}
	var faults []error
	if c.MaxAttempts < 1 || c.Total < 0 || c.PerTry < 0 || c.MaxBody < 0 {
		faults = append(faults, errors.New("attempts, times and sizes must not be negative"))
	}
	for host, p := range c.Providers {
		if host == "" || host != strings.ToLower(host) || strings.Contains(host, "/") {
			faults = append(faults, fmt.Errorf("provider %q is no host as in a URL, lower case", host))
		}
		faults = append(faults, p.validate())
	}
	faults = append(faults, c.Others.validate())
	var err error
	if t.breaker, err = policy.NewBreaker(c.Breaker); err != nil {
		faults = append(faults, err)
	}
	if t.budgets[""], err = policy.NewBudget(c.Budget); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return t, nil
}

func (p Provider) validate() error {
	g := p.Guarded
	switch {
	case strings.ContainsFunc(p.KeyHeader, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }):
		return fmt.Errorf("key header %q is no header's name", p.KeyHeader)
	case g == nil:
		return nil
	case g.Engine == nil:
		return errors.New("the engine that guards a provider is nil, make one by guard.New")
	case p.Deduplicates:
		return errors.New("a callee that deduplicates needs no guard; where it takes a key, name its header and say Rerun")
	case g.Rerun && p.KeyHeader == "":
		return errors.New("sending an unknown try again is safe only under a key that the callee takes, name its header")
	}
	return guard.CheckLimits("", g.Lease, g.Retention)
}

// budget returns the host's.
func (t *Transport) budget(host string) *policy.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.budgets[host]; b != nil {
		return b
	}
	if len(t.budgets) > maxHosts {
		return t.budgets[""]
	}
	b, err := policy.NewBudget(t.config.Budget)
	if err != nil { // it was found good at construction
		return t.budgets[""]
	}
	t.budgets[strings.Clone(host)] = b
	return b
}

// CallEnd is how a request of a Transport ended.
type CallEnd struct {
	// Attempts is how often it was sent.
	Attempts int
	// RecordID names dedupd's record, in hexadecimal; empty where it is not known.
	RecordID string
	// Unknown: nobody knows whether the effect happened. Asking again with the same
	// key is always safe.
	Unknown bool
}

type endKey struct{}

// EndOf tells how the request ended that resp answers; false where it was not sent
// by a Transport. A 503 after the last try, for example, may have been applied.
func EndOf(resp *http.Response) (CallEnd, bool) {
	if resp == nil || resp.Request == nil {
		return CallEnd{}, false
	}
	end, ok := resp.Request.Context().Value(endKey{}).(CallEnd)
	return end, ok
}

// CallError is the error of a request that got no response. errors.Is finds
// interceptors.ErrOutcomeUnknown in it where nobody knows whether the effect
// happened, and Unwrap has what the last try ended with.
type CallError struct {
	CallEnd
	err error
}

// Error tells what the last try ended with.
func (e *CallError) Error() string {
	if e.Unknown && !errors.Is(e.err, interceptors.ErrOutcomeUnknown) {
		return e.err.Error() + "; the outcome is unknown, ask again with the same key"
	}
	return e.err.Error()
}

// Unwrap returns what the last try ended with.
func (e *CallError) Unwrap() error { return e.err }

// Is matches interceptors.ErrOutcomeUnknown where nobody knows.
func (e *CallError) Is(target error) bool {
	return e.Unknown && target == interceptors.ErrOutcomeUnknown
}

// RoundTrip sends a request as often as it takes and is safe. A key is the
// request's own header's (SetKey), else the callee's Provider decides. The response
// of the last try is returned whatever its status: EndOf tells what it may have
// left behind.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := &outgoing{t: t, req: req, budget: t.budget(req.URL.Host), provider: t.config.Others, table: policy.Default()}
	if p, ok := t.config.Providers[strings.ToLower(req.URL.Host)]; ok {
		c.provider = p
	}
	if c.provider.Errors != nil {
		c.table = *c.provider.Errors
	}
	defer func() {
		if !c.sent && req.Body != nil {
			_ = req.Body.Close()
		}
	}()
	ctx := req.Context()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	c.budget.Begin()
	defer c.budget.End()
	total, cancel := ctx, context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		total, cancel = context.WithTimeout(ctx, t.config.Total)
	}
	defer cancel()
	err := c.loop(total)
	return c.end(ctx, err)
}
