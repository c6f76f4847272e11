package policy_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// F02: breakers of many processes must not come back as one.
func TestBreakerSpreadsTheTimeOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		seen := map[time.Duration]bool{}
		for range 50 {
			calls(b, 20, policy.Ill)
			_, err := b.Allow(method)
			left, ok := policy.RetryAfter(err)
			require.True(t, ok)
			require.Greater(t, left, 4*time.Second)
			require.LessOrEqual(t, left, 6*time.Second)
			seen[left] = true
			pass(left)
			require.Equal(t, 3, calls(b, 3, policy.Well))
			require.Equal(t, policy.BreakerClosed, b.State(service))
		}
		require.Greater(t, len(seen), 40)
	})
}

// F02: a hundred callers wait for the end of the open time; three reach the
// server, and while these are slow everybody else fails fast.
func TestBreakerLetsThreeOfAHundredProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{ProbeFor: time.Minute})
		openThenWait(t, b)
		var reached, failed atomic.Int64
		var wg sync.WaitGroup
		start := time.Now()
		for range 100 {
			wg.Go(func() {
				permit, err := b.Allow(method)
				if err != nil {
					failed.Add(1)
					return
				}
				reached.Add(1)
				pass(20 * time.Second)
				permit.Done(policy.Well)
			})
		}
		synctest.Wait()
		require.Equal(t, int64(3), reached.Load())
		require.Equal(t, int64(97), failed.Load())
		require.Equal(t, start, time.Now(), "fast means at once")
		pass(19 * time.Second)
		requireHeldBack(t, b)
		_, err := b.Allow(method)
		left, _ := policy.RetryAfter(err)
		require.Equal(t, time.Second, left)
		wg.Wait()
		require.Equal(t, policy.BreakerClosed, b.State(service))
	})
}

// F02: also with probes that end at once, three are all that a half-open server
// sees: the third success closes, the first failure opens.
func TestBreakerClosesOnThreeSuccessesAndOpensOnOneFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		openThenWait(t, b)
		for range 3 {
			require.NotEqual(t, policy.BreakerClosed, b.State(service))
			calls(b, 1, policy.Well)
		}
		require.Equal(t, policy.BreakerClosed, b.State(service))
		calls(b, 19, policy.Ill)
		require.Equal(t, policy.BreakerClosed, b.State(service), "it counts from nothing")
		pass(11 * time.Second)

		openThenWait(t, b)
		calls(b, 2, policy.Well)
		require.Equal(t, 1, calls(b, 100, policy.Ill))
		require.Equal(t, policy.BreakerOpen, b.State(service))
		pass(4 * time.Second)
		requireHeldBack(t, b) // the timer is a fresh one
		pass(2 * time.Second)
		require.Equal(t, 3, calls(b, 3, policy.Well))
		require.Equal(t, policy.BreakerClosed, b.State(service), "one failed probe is not for ever")
	})
}

// F02, siblings: probes that end without a verdict.
func TestBreakerGetsAProbesPlaceBack(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, b *policy.Breaker){
		"from one that was cancelled": func(t *testing.T, b *policy.Breaker) {
			t.Helper()
			probe(t, b)(policy.Neutral)
		},
		"from one that panicked": func(t *testing.T, b *policy.Breaker) {
			t.Helper()
			require.Panics(t, func() {
				defer probe(t, b)(policy.Neutral)
				(*policy.Budget)(nil).Begin()
			})
		},
		"from one that hangs": func(t *testing.T, b *policy.Breaker) {
			t.Helper()
			probe(t, b)
			pass(5 * time.Second)
		},
		"from one that hung, and then was cancelled": func(t *testing.T, b *policy.Breaker) {
			t.Helper()
			done := probe(t, b)
			pass(5 * time.Second)
			p := probe(t, b)
			done(policy.Neutral)
			p(policy.Neutral)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker(t, policy.BreakerSettings{})
				openThenWait(t, b)
				for range 10 {
					lose(t, b)
				}
				held := []func(policy.Verdict){probe(t, b), probe(t, b), probe(t, b)}
				requireHeldBack(t, b) // not one more than there are
				for _, done := range held {
					done(policy.Well)
				}
				require.Equal(t, policy.BreakerClosed, b.State(service))
			})
		})
	}
}

// F02, sibling: where every call lasts longer than a probe may, the late
// results are all there is.
func TestBreakerTakesTheLateResultOfAProbe(t *testing.T) {
	t.Parallel()
	for v, want := range map[policy.Verdict]policy.BreakerState{
		policy.Well: policy.BreakerClosed,
		policy.Ill:  policy.BreakerOpen,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBreaker(t, policy.BreakerSettings{})
			openThenWait(t, b)
			late := []func(policy.Verdict){probe(t, b), probe(t, b), probe(t, b)}
			requireHeldBack(t, b)
			pass(5 * time.Second)
			for range 3 {
				probe(t, b)
			}
			requireHeldBack(t, b)
			for _, done := range late {
				done(v)
			}
			require.Equal(t, want, b.State(service))
		})
	}
}

// F02, sibling: what began before a change says nothing about what came after.
func TestBreakerIgnoresCallsThatBeganBeforeAChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		old := make([]func(policy.Verdict), 140)
		for i := range old {
			old[i] = probe(t, b)
		}
		end := func(n int, v policy.Verdict) {
			for _, done := range old[:n] {
				done(v)
			}
			old = old[n:]
		}
		calls(b, 20, policy.Ill)
		pass(3 * time.Second)
		end(20, policy.Well) // while open
		require.Equal(t, policy.BreakerOpen, b.State(service))
		pass(3 * time.Second)

		first := probe(t, b)
		slow := probe(t, b)
		end(20, policy.Well) // while half-open
		require.Equal(t, policy.BreakerHalfOpen, b.State(service))
		end(20, policy.Ill)
		require.Equal(t, policy.BreakerHalfOpen, b.State(service))
		first(policy.Ill)
		require.Equal(t, policy.BreakerOpen, b.State(service))

		pass(6 * time.Second)
		calls(b, 2, policy.Well)
		slow(policy.Ill) // a probe of the last time
		require.Equal(t, policy.BreakerHalfOpen, b.State(service))
		calls(b, 1, policy.Well)
		require.Equal(t, policy.BreakerClosed, b.State(service))
		end(40, policy.Ill) // while closed again
		require.Equal(t, policy.BreakerClosed, b.State(service))
		end(40, policy.Well)
		calls(b, 20, policy.Ill)
		require.Equal(t, policy.BreakerOpen, b.State(service))
	})
}

func TestBreakerTakesTheFirstVerdictOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		for range 19 {
			done := probe(t, b)
			done(policy.Ill)
			done(policy.Ill)
		}
		require.Equal(t, policy.BreakerClosed, b.State(service))
		calls(b, 1, policy.Ill)
		pass(6 * time.Second)
		done := probe(t, b)
		for range 3 {
			done(policy.Well)
		}
		require.Equal(t, policy.BreakerHalfOpen, b.State(service))
	})
}
