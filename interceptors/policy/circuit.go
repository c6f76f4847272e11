package policy

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
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

	// closed is all that a call touches whose server is well, without the lock: in
	// its upper half the era, in its lower how many calls have ended well of which
	// the library was not told yet. notClosed while the circuit is not closed.
	closed atomic.Uint64

	mu  sync.Mutex
	lib *gobreaker.TwoStepCircuitBreaker[struct{}]
	// state is the library's, as its last change told.
	state BreakerState
	// era grows with every change: results of calls begun in an earlier one are
	// ignored.
	era uint32
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

const (
	notClosed = math.MaxUint64
	eraBits   = 32 // of closed, the lower ones
)

type change struct{ from, to BreakerState }

func newCircuit(service string, s *BreakerSettings) *circuit {
	c := &circuit{service: service, settings: s}
	c.lib = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  uint32(s.Probes), //nolint:gosec // validated: 1 to 1,000
		Interval:     s.Window,
		BucketPeriod: s.step(),
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

// step is how much of the window is forgotten at a time.
func (s *BreakerSettings) step() time.Duration { return s.Window / windowSteps }

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
	c.closed.Store(notClosed)
	if to == BreakerClosed {
		c.closed.Store(uint64(c.era) << eraBits)
	}
	if to == BreakerOpen {
		c.until = time.Now().Add(c.settings.openTime())
	}
}

// allow lets a call through, or says what state refuses it and how long to wait.
func (c *circuit) allow() (permit Permit, state BreakerState, left time.Duration) {
	if closed := c.closed.Load(); closed != notClosed {
		return Permit{circuit: c, era: uint32(closed >> eraBits)}, BreakerClosed, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == BreakerClosed {
		return Permit{circuit: c, era: c.era}, BreakerClosed, 0
	}
	now := time.Now()
	if c.state == BreakerOpen && now.Before(c.until) {
		return Permit{}, c.state, c.until.Sub(now)
	}
	c.reclaimLocked(now)
	report, err := c.lib.Allow() // turns open into half-open
	if err != nil {
		return Permit{}, c.state, min(refusedWait, c.settings.ProbeFor)
	}
	p := &probe{began: now, report: report}
	c.probes = append(c.probes, p)
	return Permit{circuit: c, era: c.era, probe: p}, c.state, 0
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

// end takes what the end of a call said that began in the era, as probe p unless
// that is nil.
func (c *circuit) end(era uint32, p *probe, v Verdict) {
	if p == nil && v == Well {
		c.well(era)
		return
	}
	c.mu.Lock()
	c.endLocked(era, p, v)
	changed := len(c.changes) > 0
	c.mu.Unlock()
	if changed {
		c.tell()
	}
}

// well counts a call of a closed circuit that ended well.
func (c *circuit) well(era uint32) {
	for {
		closed := c.closed.Load()
		if closed == notClosed || uint32(closed>>eraBits) != era {
			return
		}
		if !c.closed.CompareAndSwap(closed, closed+1) {
			continue
		}
		if endedWell(closed) == 0 { // the first since the library was told
			time.AfterFunc(c.settings.step(), c.tellWell)
		}
		return
	}
}

// tellWell tells the library of the calls that ended well, a step of the window
// after the first of them at the latest, so that none counts for longer than that.
func (c *circuit) tellWell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tellWellLocked()
}

func (c *circuit) tellWellLocked() {
	if c.state != BreakerClosed {
		return
	}
	told := uint64(c.era) << eraBits
	for range endedWell(c.closed.Swap(told)) {
		c.countLocked(nil)
	}
}

// endedWell is the lower half of closed.
func endedWell(closed uint64) uint64 { return closed & (1<<eraBits - 1) }

// countLocked tells the library of a call of a closed circuit.
func (c *circuit) countLocked(result error) {
	if report, err := c.lib.Allow(); err == nil { // it is closed, so it allows
		report(result)
	}
}

func (c *circuit) endLocked(era uint32, p *probe, v Verdict) {
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
		if v == Ill {
			c.tellWellLocked() // it is judged by all calls
			c.countLocked(result)
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
	c.tellWellLocked()
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
