package policy

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
)

// Defaults of [BudgetSettings].
const (
	DefaultBudgetRatio   = 0.2
	DefaultBudgetMinimum = 3
)

// maxBudgetMinimum keeps a mistyped minimum from meaning "no budget".
const maxBudgetMinimum = 10_000

// rounding keeps a whole number one: 0.29 of 100 is 28.999999999999996 in
// floating point.
const rounding = 1e-9

// BudgetSettings says how many retries one connection may have. A field that is
// zero means its default.
type BudgetSettings struct {
	// Ratio is the share of the active calls that may be retrying: more than 0,
	// at most 1. Default 0.2.
	Ratio float64
	// Minimum is how many calls may be retrying however few are active: 1 to
	// 10,000. Default 3, so that a lone call gets its retry.
	Minimum int
	// Observer is told of refusals. Default none.
	Observer BudgetObserver
}

// BudgetObserver holds what to call when a [Budget] refuses a retry. Functions
// run on the goroutine of the call, outside the budget's lock, and may run
// concurrently; they must not block.
type BudgetObserver struct {
	// Spent is called for every refused retry, with the numbers it was judged
	// by: the active calls, and those of them that are retrying. May be nil.
	Spent func(active, retrying int)
}

func (s BudgetSettings) withDefaults() BudgetSettings {
	s.Ratio = cmp.Or(s.Ratio, DefaultBudgetRatio)
	s.Minimum = cmp.Or(s.Minimum, DefaultBudgetMinimum)
	return s
}

func (s BudgetSettings) validate() error {
	if !(s.Ratio > 0 && s.Ratio <= 1) { // NaN compares false
		return fmt.Errorf("retry budget ratio is %v, it must be more than 0 and at most 1", s.Ratio)
	}
	if s.Minimum < 1 || s.Minimum > maxBudgetMinimum {
		return fmt.Errorf("retry budget minimum is %d, it must be 1 to %d", s.Minimum, maxBudgetMinimum)
	}
	return nil
}

// Budget bounds the calls of one connection that are retrying, which is: waiting
// for their next try, or making one after their first. No retry is granted
// beyond the larger of the minimum and the ratio of the active calls; a permit
// once granted is not taken back when other calls end.
//
// A budget only says yes or no. A call that gets no retry returns the error that
// it has. Waits for somebody else's run (IN_PROGRESS) need no permit.
//
// It is safe for concurrent use and needs no closing.
type Budget struct {
	settings BudgetSettings

	// load holds both numbers, so that they are read and changed as one: every call
	// changes it twice, and a lock took as long as all else of it.
	load atomic.Int64
}

// The halves of a budget's load.
const (
	oneRetrying int64 = 1
	oneActive   int64 = 1 << 32
)

// NewBudget returns a budget, or an error that names the setting to correct.
func NewBudget(s BudgetSettings) (*Budget, error) {
	s = s.withDefaults()
	if err := s.validate(); err != nil {
		return nil, err
	}
	return &Budget{settings: s}, nil
}

// Begin counts a call as active from its first try to its End, tries and waits
// included.
//
// Calls are counted, not tries: tries that turn into waits would make the base
// smaller just when it is needed.
func (b *Budget) Begin() { b.load.Add(oneActive) }

// End ends a call that Begin counted, once. Defer it, so that a panic ends the
// call too.
func (b *Budget) End() { b.load.Add(-oneActive) }

// TryRetry asks for the permit of one retry: ask before the wait, not after it,
// and call release when that try has ended or the wait was cut short. Defer
// release; calling it again does nothing. Where ok is false the budget is spent
// and release does nothing.
func (b *Budget) TryRetry() (release func(), ok bool) {
	for {
		load := b.load.Load()
		active, retrying := halves(load)
		if retrying >= b.limit(active) {
			if b.settings.Observer.Spent != nil {
				b.settings.Observer.Spent(active, retrying)
			}
			return func() {}, false
		}
		if b.load.CompareAndSwap(load, load+oneRetrying) {
			return sync.OnceFunc(func() { b.load.Add(-oneRetrying) }), true
		}
	}
}

// Load returns how many calls are active and how many of them are retrying.
func (b *Budget) Load() (active, retrying int) { return halves(b.load.Load()) }

func halves(load int64) (active, retrying int) {
	return int(load >> 32), int(load & (oneActive - 1))
}

func (b *Budget) limit(active int) int {
	return max(b.settings.Minimum, int(b.settings.Ratio*float64(active)+rounding))
}
