package policy

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Defaults of [DefaultBackoff].
const (
	DefaultBase   = 250 * time.Millisecond
	DefaultCap    = 5 * time.Second
	DefaultFactor = 2.0
)

// maxSteps bounds the loop of [Backoff.Ceiling]; with a factor of 1.01 or more
// the cap is reached earlier, whatever base and cap are.
const maxSteps = 4500

// Backoff is exponential backoff with full jitter: the wait after try n, counted
// from 0, is uniform in (0, min(cap, base·factorⁿ)]. Its zero value is not
// usable; make one with [NewBackoff] or [DefaultBackoff].
type Backoff struct {
	base, limit time.Duration
	factor      float64
}

// NewBackoff returns a backoff of the given base, cap and factor. It refuses a
// base of zero or less, a cap below the base, and a factor that is not 1 or a
// finite number from 1.01 on.
func NewBackoff(base, limit time.Duration, factor float64) (Backoff, error) {
	switch {
	case base <= 0:
		return Backoff{}, fmt.Errorf("backoff base is %v, it must be more than zero", base)
	case limit < base:
		return Backoff{}, fmt.Errorf("backoff cap is %v, it must be at least the base of %v", limit, base)
	case factor != 1 && !(factor >= 1.01), math.IsInf(factor, 0): // NaN compares false
		return Backoff{}, fmt.Errorf("backoff factor is %v, it must be 1 or a finite number from 1.01 on", factor)
	}
	return Backoff{base: base, limit: limit, factor: factor}, nil
}

// DefaultBackoff starts at 250 ms, doubles, and stays at 5 s.
func DefaultBackoff() Backoff {
	return Backoff{base: DefaultBase, limit: DefaultCap, factor: DefaultFactor}
}

// Ceiling returns min(cap, base·factorⁿ): the longest wait after try n, counted
// from 0. It never falls as n grows, for any n; below 0 n counts as 0.
func (b Backoff) Ceiling(n int) time.Duration {
	// Multiplying step by step, not math.Pow: rounding then never makes a later
	// value smaller than an earlier one.
	ceiling, limit := float64(b.base), float64(b.limit)
	if b.factor > 1 {
		for range min(n, maxSteps) {
			if ceiling *= b.factor; ceiling >= limit {
				break
			}
		}
	}
	if ceiling >= limit { // also where the product is +Inf
		return b.limit
	}
	return min(b.limit, max(b.base, time.Duration(ceiling)))
}

// Wait returns how long to wait after try n, counted from 0: hint plus a jitter
// uniform in (0, Ceiling(n)]. A hint below zero counts as zero; a sum that does
// not fit is the longest duration. random(m) returns a number uniform in [0, m),
// as rand.Int64N does.
func (b Backoff) Wait(n int, hint time.Duration, random func(m int64) int64) time.Duration {
	jitter := time.Duration(random(int64(b.Ceiling(n)))) + 1
	hint = max(hint, 0)
	if hint > math.MaxInt64-jitter {
		return math.MaxInt64
	}
	return hint + jitter
}

// String describes the schedule in words with numbers, for logs and help texts.
func (b Backoff) String() string {
	const listed = 5
	var sb strings.Builder
	fmt.Fprintf(&sb, "waits between tries are random, up to %v after ", b.base)
	if b.factor == 1 || b.base == b.limit {
		sb.WriteString("each")
	} else {
		sb.WriteString("the first")
		n := 1
		for ; n < listed && b.Ceiling(n) < b.limit; n++ {
			fmt.Fprintf(&sb, ", %v", b.Ceiling(n))
		}
		if b.Ceiling(n) < b.limit {
			fmt.Fprintf(&sb, ", growing by %v up to %v", b.factor, b.limit)
		} else {
			fmt.Fprintf(&sb, ", then %v", b.limit)
		}
	}
	sb.WriteString("; a wait that the server asks for is added to it")
	return sb.String()
}
