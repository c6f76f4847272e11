package policy

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Defaults of [BreakerSettings].
const (
	DefaultBreakerWindow   = 10 * time.Second
	DefaultBreakerMinCalls = 20
	DefaultBreakerRatio    = 0.5
	DefaultBreakerOpenFor  = 5 * time.Second
	DefaultBreakerJitter   = 0.2
	DefaultBreakerProbes   = 3
	DefaultBreakerServices = 100
)

// healthPrefix begins the methods of the health service, which must tell how a
// server is while its breaker is open.
const healthPrefix = "/grpc.health.v1.Health/"

// BreakerSettings says when the breakers of one connection open and close. A
// field that is zero means its default.
type BreakerSettings struct {
	// Window is how far back ended calls count, in ten steps: 10 ms to 1 h.
	// Default 10 s.
	Window time.Duration
	// MinCalls is the least number of ended calls in the window that a breaker
	// opens on: 1 to 1,000,000. Default 20.
	MinCalls int
	// Ratio is the share of ill calls in the window from which on a breaker is
	// open: more than 0, at most 1. Default 0.5.
	Ratio float64
	// OpenFor is how long a breaker stays open before it lets probes through:
	// 1 ms to 1 h. Default 5 s.
	OpenFor time.Duration
	// Jitter spreads OpenFor by up to this share either way, anew each time, so
	// that many clients do not probe at once: more than 0, less than 1. Default
	// 0.2.
	Jitter float64
	// Probes is how many calls at a time may find out whether the server is well
	// again, and how many of them must find that it is: 1 to 1,000. Default 3.
	Probes int
	// ProbeFor is how long a probe that has not ended keeps another from taking
	// its place; its own result counts all the same: 1 ms to 1 h. Default OpenFor.
	ProbeFor time.Duration
	// Services is how many services have a breaker at a time: 1 to 10,000.
	// Default 100.
	Services int
	// Observer is told of changes and refusals. Default none.
	Observer BreakerObserver
}

// BreakerObserver holds what to call when a breaker changes or refuses. Each may
// be nil. They run on the goroutine of a call, outside the breaker's locks, and
// may call the breaker; they must not block.
type BreakerObserver struct {
	// Changed is called for every change of a service's breaker, in the order of
	// the changes of that service.
	Changed func(service string, from, to BreakerState)
	// Refused is called for every call that was held back; left is what its
	// error tells the caller to wait.
	Refused func(service string, state BreakerState, left time.Duration)
	// Unguarded is called for every call that went through without a breaker,
	// since as many services as the settings allow have one and none is idle.
	Unguarded func(service string)
}

// BreakerState is the state of one service's breaker.
type BreakerState uint8

const (
	// BreakerClosed lets every call through.
	BreakerClosed BreakerState = iota
	// BreakerOpen holds every call back until its time is over.
	BreakerOpen
	// BreakerHalfOpen lets a few probes through and holds the rest back.
	BreakerHalfOpen
)

// String returns the name of s: closed, open or half_open.
func (s BreakerState) String() string { return name(int(s), "closed", "open", "half_open") }

func (s BreakerSettings) withDefaults() BreakerSettings {
	s.Window = cmp.Or(s.Window, DefaultBreakerWindow)
	s.MinCalls = cmp.Or(s.MinCalls, DefaultBreakerMinCalls)
	s.Ratio = cmp.Or(s.Ratio, DefaultBreakerRatio)
	s.OpenFor = cmp.Or(s.OpenFor, DefaultBreakerOpenFor)
	s.Jitter = cmp.Or(s.Jitter, DefaultBreakerJitter)
	s.Probes = cmp.Or(s.Probes, DefaultBreakerProbes)
	s.ProbeFor = cmp.Or(s.ProbeFor, s.OpenFor)
	s.Services = cmp.Or(s.Services, DefaultBreakerServices)
	return s
}

func (s BreakerSettings) validate() error {
	for _, d := range []struct {
		name    string
		v, from time.Duration
	}{
		{"window", s.Window, 10 * time.Millisecond},
		{"open time", s.OpenFor, time.Millisecond},
		{"probe time", s.ProbeFor, time.Millisecond},
	} {
		if d.v < d.from || d.v > time.Hour {
			return fmt.Errorf("breaker %s is %v, it must be %v to %v", d.name, d.v, d.from, time.Hour)
		}
	}
	for _, n := range []struct {
		name string
		v    int
		to   int
	}{
		{"minimum of calls", s.MinCalls, 1_000_000},
		{"number of probes", s.Probes, 1_000},
		{"number of services", s.Services, 10_000},
	} {
		if n.v < 1 || n.v > n.to {
			return fmt.Errorf("breaker %s is %d, it must be 1 to %d", n.name, n.v, n.to)
		}
	}
	if !(s.Ratio > 0 && s.Ratio <= 1) { // NaN compares false
		return fmt.Errorf("breaker ratio is %v, it must be more than 0 and at most 1", s.Ratio)
	}
	if !(s.Jitter > 0 && s.Jitter < 1) {
		return fmt.Errorf("breaker jitter is %v, it must be more than 0 and less than 1", s.Jitter)
	}
	return nil
}

// Breaker holds calls back from a server that is ill, for one connection: one
// breaker for each service, since the services behind one address fail apart.
//
//	permit, err := breaker.Allow(method)
//	if err != nil {
//		return err // BREAKER_OPEN; nothing was sent
//	}
//	defer permit.Done(policy.Neutral) // a panic says nothing about the server
//	err = send()
//	permit.Done(policy.VerdictOf(policy.Try{Err: err, …}))
//
// It is safe for concurrent use and needs no closing.
type Breaker struct {
	settings BreakerSettings

	mu       sync.RWMutex
	circuits map[string]*circuit // by service, at most settings.Services
}

// NewBreaker returns the breakers of one connection, or an error that names the
// setting to correct.
func NewBreaker(s BreakerSettings) (*Breaker, error) {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return nil, err
	}
	return &Breaker{settings: s, circuits: map[string]*circuit{}}, nil
}

// Permit is the leave to send one try. Its zero value tells nobody anything. It is
// not safe for concurrent use, and must not be copied once it is in use.
type Permit struct {
	circuit *circuit
	era     uint32
	probe   *probe // nil: it is none
}

// Done takes what the try said about the server; its first call counts and every
// later one does nothing. A Done that is never called costs nothing but the try's
// place among the probes, for the probe time.
func (p *Permit) Done(v Verdict) {
	if c := p.circuit; c != nil {
		p.circuit = nil
		c.end(p.era, p.probe, v)
	}
}

// Allow asks whether one try of a full method name (/package.Service/Method) may
// be sent. If not, nothing may be sent, and err has code UNAVAILABLE, the reason
// BREAKER_OPEN and the time left as RetryInfo: an open breaker's remaining time,
// or a second while the probes are out.
//
// Calls of the health service always pass and never count.
func (b *Breaker) Allow(method string) (Permit, error) {
	if strings.HasPrefix(method, healthPrefix) {
		return Permit{}, nil
	}
	service := serviceOf(method)
	c := b.circuit(service)
	if c == nil {
		if b.settings.Observer.Unguarded != nil {
			b.settings.Observer.Unguarded(service)
		}
		return Permit{}, nil
	}
	permit, state, left := c.allow()
	if state != BreakerClosed {
		c.tell() // the time open may just be over
	}
	if permit.circuit != nil {
		return permit, nil
	}
	if b.settings.Observer.Refused != nil {
		b.settings.Observer.Refused(service, state, left)
	}
	return Permit{}, openError(service, method, left)
}

// State returns the state of the breaker of a service (package.Service). A
// service without calls is closed; an open breaker whose time is over is open
// until a call asks.
func (b *Breaker) State(service string) BreakerState {
	b.mu.RLock()
	c := b.circuits[service]
	b.mu.RUnlock()
	if c == nil {
		return BreakerClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// circuit returns the service's breaker, nil if there is no room for one.
func (b *Breaker) circuit(service string) *circuit {
	b.mu.RLock()
	c := b.circuits[service]
	b.mu.RUnlock()
	if c != nil {
		return c
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c = b.circuits[service]; c != nil {
		return c
	}
	if len(b.circuits) >= b.settings.Services && !b.forgetIdleLocked() {
		return nil
	}
	service = strings.Clone(service) // a part of the method would keep all of it
	c = newCircuit(service, &b.settings)
	b.circuits[service] = c
	return c
}

// forgetIdleLocked drops every breaker that knows nothing.
func (b *Breaker) forgetIdleLocked() (dropped bool) {
	for service, c := range b.circuits {
		if c.idle() {
			delete(b.circuits, service)
			dropped = true
		}
	}
	return dropped
}

// serviceOf returns package.Service of /package.Service/Method.
func serviceOf(method string) string {
	method = strings.TrimPrefix(method, "/")
	if i := strings.LastIndexByte(method, '/'); i >= 0 {
		return method[:i]
	}
	return method
}
