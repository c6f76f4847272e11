package policy

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// refusedWait is what a call that is held back while probes are out is told to
// wait: a probe's answer is due at any time.
const refusedWait = time.Second

// windowSteps is how many steps the window moves in.
const windowSteps = 10

// What the library is told of a call.
var (
	errIll     = errors.New("ill")
	errNeutral = errors.New("neutral")
)

// circuit is the breaker of one service: the library's state machine and its
// counts, and around it what the library does not do.
//
//   - Results are counted when a call ends. The library counts them in the step
//     in which the call began and drops those that began before its window, so
//     calls that hang until a deadline beyond it would never open it.
//   - The time open has jitter, anew each time; the library's is fixed.
//   - A probe that hangs gives its place to another; the library waits for ever.
//   - Changes are told in order outside the lock; the library calls out under it.
type circuit struct {
	service  string
	settings *BreakerSettings

	mu  sync.Mutex
	lib *gobreaker.TwoStepCircuitBreaker[struct{}]
	// state is the library's, as its last change told.
	state BreakerState
	// era grows with every change: results of calls begun in an earlier one are
	// ignored.
	era uint64
	// until is the end of the time open.
	until time.Time
	// probes holds the probes that have a place, the oldest first.
	probes []*probe
	// changes are those not yet told; telling is set while somebody tells them.
	changes []change
	telling bool
}

// probe is a call let through while half-open.
type probe struct {
	began  time.Time
	report func(error)
}

type change struct{ from, to BreakerState }

func newCircuit(service string, s *BreakerSettings) *circuit {
	c := &circuit{service: service, settings: s}
	c.lib = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  uint32(s.Probes), //nolint:gosec // validated: 1 to 1,000
		Interval:     s.Window,
		BucketPeriod: s.Window / windowSteps,
		// The shortest time open; until holds calls back for the rest.
		Timeout: s.shortestOpen(),
		ReadyToTrip: func(n gobreaker.Counts) bool {
			ended := n.TotalSuccesses + n.TotalFailures
			return int64(ended) >= int64(s.MinCalls) && float64(n.TotalFailures) >= s.Ratio*float64(ended)-rounding
		},
		IsExcluded:    func(err error) bool { return errors.Is(err, errNeutral) },
		OnStateChange: func(_ string, _, to gobreaker.State) { c.changedLocked(stateOf(to)) },
	})
	return c
}

func (s *BreakerSettings) shortestOpen() time.Duration {
	return time.Duration((1 - s.Jitter) * float64(s.OpenFor))
}

// openTime returns a random time in (OpenFor·(1-Jitter), OpenFor·(1+Jitter)].
func (s *BreakerSettings) openTime() time.Duration {
	spread := int64(2 * s.Jitter * float64(s.OpenFor))
	return s.shortestOpen() + 1 + time.Duration(rand.Int64N(max(spread, 1))) //nolint:gosec // spreads load, guards nothing
}

func stateOf(s gobreaker.State) BreakerState {
	switch s {
	case gobreaker.StateClosed:
		return BreakerClosed
	case gobreaker.StateHalfOpen:
		return BreakerHalfOpen
	case gobreaker.StateOpen:
	}
	return BreakerOpen
}

// changedLocked is called by the library, under c.mu since every call of it is.
func (c *circuit) changedLocked(to BreakerState) {
	c.changes = append(c.changes, change{from: c.state, to: to})
	c.state = to
	c.era++
	c.probes = nil
	if to == BreakerOpen {
		c.until = time.Now().Add(c.settings.openTime())
	}
}

// allow returns done, or nil, the state that refuses, and how long to wait.
func (c *circuit) allow() (done func(Verdict), state BreakerState, left time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == BreakerClosed {
		return c.doneInEra(c.era, nil), c.state, 0
	}
	now := time.Now() // not for every call: on some machines it takes as long as all of this
	if c.state == BreakerOpen && now.Before(c.until) {
		return nil, c.state, c.until.Sub(now)
	}
	c.reclaimLocked(now)
	report, err := c.lib.Allow() // turns open into half-open
	if err != nil {
		return nil, c.state, min(refusedWait, c.settings.ProbeFor)
	}
	p := &probe{began: now, report: report}
	c.probes = append(c.probes, p)
	return c.doneInEra(c.era, p), c.state, 0
}

// reclaimLocked takes the place of every probe that has hung for too long. Its
// result is still taken if it comes before the next change: a service whose
// calls all last longer must be able to close its breaker.
func (c *circuit) reclaimLocked(now time.Time) {
	for len(c.probes) > 0 && now.Sub(c.probes[0].began) >= c.settings.ProbeFor {
		hung := c.probes[0]
		c.probes = c.probes[1:]
		hung.report(errNeutral)
	}
}

// doneInEra returns the done of a call that began in the era, as probe p unless
// that is nil.
func (c *circuit) doneInEra(era uint64, p *probe) func(Verdict) {
	ended := false
	return func(v Verdict) {
		c.mu.Lock()
		if !ended {
			ended = true
			c.endLocked(era, p, v)
		}
		changed := len(c.changes) > 0
		c.mu.Unlock()
		if changed {
			c.tell()
		}
	}
}

func (c *circuit) endLocked(era uint64, p *probe, v Verdict) {
	if c.era != era {
		return
	}
	var result error
	switch v {
	case Well:
	case Ill:
		result = errIll
	case Neutral:
		result = errNeutral
	}
	if p == nil {
		if v == Neutral {
			return
		}
		if report, err := c.lib.Allow(); err == nil { // it is closed, so it allows
			report(result)
		}
		return
	}
	i := slices.Index(c.probes, p)
	if i < 0 && v == Neutral {
		return // its place is another's by now
	}
	if i >= 0 {
		c.probes = slices.Delete(c.probes, i, i+1)
	}
	p.report(result)
}

// idle reports whether the circuit holds nothing worth keeping: it is closed, and
// no call that told of the server has ended within its window.
func (c *circuit) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != BreakerClosed {
		return false
	}
	c.lib.State() // moves the window on
	return c.lib.Counts().Requests == 0
}

// tell calls the observer for the changes that it was not told of, one at a time
// and in order, however many calls end at once: who finds somebody telling
// leaves it to them.
func (c *circuit) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.telling || len(c.changes) == 0 {
		return
	}
	c.telling = true
	defer func() { c.telling = false }() // also if the observer panics
	for len(c.changes) > 0 {
		next := c.changes[0]
		c.changes = c.changes[1:]
		c.tellOneLocked(next)
	}
}

func (c *circuit) tellOneLocked(next change) {
	if c.settings.Observer.Changed == nil {
		return
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	c.settings.Observer.Changed(c.service, next.from, next.to)
}
