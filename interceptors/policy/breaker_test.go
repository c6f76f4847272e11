package policy_test

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	service = "payments.v1.Payments"
	method  = "/payments.v1.Payments/Charge"
)

func newBreaker(t *testing.T, s policy.BreakerSettings) *policy.Breaker {
	t.Helper()
	b, err := policy.NewBreaker(s)
	require.NoError(t, err)
	return b
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // only called in synctest bubbles
}

// calls makes n calls, one after the other, that all end in v, and returns how
// many were sent.
func calls(b *policy.Breaker, n int, v policy.Verdict) (sent int) {
	for range n {
		if done, err := b.Allow(method); err == nil {
			done(v)
			sent++
		}
	}
	return sent
}

// probe starts one call that must be let through.
func probe(t *testing.T, b *policy.Breaker) func(policy.Verdict) {
	t.Helper()
	done, err := b.Allow(method)
	require.NoError(t, err)
	return done
}

func requireHeldBack(t *testing.T, b *policy.Breaker) {
	t.Helper()
	_, err := b.Allow(method)
	require.Error(t, err)
}

// openThenWait opens the breaker and waits until its time is over for certain.
func openThenWait(t *testing.T, b *policy.Breaker) {
	t.Helper()
	require.Equal(t, 20, calls(b, 20, policy.Ill))
	require.Equal(t, policy.BreakerOpen, b.State(service))
	pass(6 * time.Second)
}

// F01: the rule is a share of enough calls, not a number of errors.
func TestBreakerOpensAtHalfOfTwentyCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		calls(b, 19, policy.Ill)
		require.Equal(t, policy.BreakerClosed, b.State(service), "too few calls to tell")
		calls(b, 1, policy.Ill)
		require.Equal(t, policy.BreakerOpen, b.State(service))
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		calls(b, 51, policy.Well)
		calls(b, 50, policy.Ill)
		require.Equal(t, policy.BreakerClosed, b.State(service), "less than half")
		calls(b, 1, policy.Ill)
		require.Equal(t, policy.BreakerOpen, b.State(service), "half")
	})
}

func TestBreakerCountsTheLastTenSecondsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		calls(b, 19, policy.Ill)
		pass(11 * time.Second)
		calls(b, 19, policy.Ill)
		require.Equal(t, policy.BreakerClosed, b.State(service), "the first are too old")
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		calls(b, 1, policy.Well)
		pass(9500 * time.Millisecond)
		calls(b, 10, policy.Ill)
		pass(time.Second)
		calls(b, 10, policy.Ill)
		require.Equal(t, policy.BreakerOpen, b.State(service), "the window rolls, it does not start anew")
	})
}

// F01, sibling: calls that hang for longer than the window until their deadline
// are the plainest sign of all.
func TestBreakerCountsCallsThatOutlastTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		var dones []func(policy.Verdict)
		for range 20 {
			dones = append(dones, probe(t, b))
		}
		pass(30 * time.Second)
		for _, done := range dones {
			done(policy.Ill)
		}
		require.Equal(t, policy.BreakerOpen, b.State(service))
	})
}

// F01: an open breaker says why, what it did not do, and for how long.
func TestBreakerTellsHowLongItStaysOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		calls(b, 20, policy.Ill)
		_, err := b.Allow(method)
		require.Equal(t, codes.Unavailable, status.Code(err))
		reason, ours := policy.ReasonOf(err)
		require.True(t, ours)
		require.Equal(t, dedupv1.Reason_REASON_BREAKER_OPEN, reason)
		refusal, _ := policy.RefusalOf(err)
		require.Equal(t, method, refusal.Operation)

		answer := policy.Default().Classify(policy.Try{Err: err, Sent: policy.SentNothing})
		require.Equal(t, policy.Transient, answer.Retry)
		require.Equal(t, policy.EffectNone, answer.Effect)
		require.True(t, answer.HasHint)
		require.GreaterOrEqual(t, answer.Hint, 4*time.Second)
		require.LessOrEqual(t, answer.Hint, 6*time.Second)

		pass(time.Second)
		_, err = b.Allow(method)
		left, ok := policy.RetryAfter(err)
		require.True(t, ok)
		require.Equal(t, answer.Hint-time.Second, left)
		pass(left)
		probe(t, b) // a caller that waits as told is let through
	})
}

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
				done, err := b.Allow(method)
				if err != nil {
					failed.Add(1)
					return
				}
				reached.Add(1)
				pass(20 * time.Second)
				done(policy.Well)
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
		old := make([]func(policy.Verdict), 100)
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

// F01: the one question that must be asked of an ill server.
func TestBreakerLetsHealthChecksPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		for range 1000 {
			done, err := b.Allow("/grpc.health.v1.Health/Check")
			require.NoError(t, err)
			done(policy.Ill)
		}
		require.Equal(t, policy.BreakerClosed, b.State("grpc.health.v1.Health"))
	})
}

func TestBreakerKeepsServicesApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		calls(b, 20, policy.Ill)
		_, err := b.Allow("/payments.v1.Payments/Refund")
		require.Error(t, err, "a method of the same service")
		_, err = b.Allow("/payments.v1.Reports/Charge")
		require.NoError(t, err)
	})
}

func TestBreakerKeepsABoundedNumberOfServices(t *testing.T) {
	t.Parallel()
	var unguarded []string
	s := policy.BreakerSettings{Services: 2, Observer: policy.BreakerObserver{
		Unguarded: func(service string) { unguarded = append(unguarded, service) },
	}}
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, s)
		calls(b, 20, policy.Ill)
		_, err := b.Allow("/a.A/Do")
		require.NoError(t, err)
		for range 20 {
			done, err := b.Allow("/b.B/Do")
			require.NoError(t, err)
			done(policy.Ill)
		}
		require.Equal(t, policy.BreakerClosed, b.State("b.B"))
		require.Len(t, unguarded, 20)
		require.Equal(t, "b.B", unguarded[0])

		pass(11 * time.Second) // a.A has no call in its window: nothing is lost with it
		for range 20 {
			done, err := b.Allow("/b.B/Do")
			require.NoError(t, err)
			done(policy.Ill)
		}
		require.Equal(t, policy.BreakerOpen, b.State("b.B"))
		require.Equal(t, policy.BreakerOpen, b.State(service), "one that is open is never forgotten")
		require.Len(t, unguarded, 20)
	})
}

func TestBreakerTellsItsChangesAndRefusals(t *testing.T) {
	t.Parallel()
	var told []string
	var b *policy.Breaker
	s := policy.BreakerSettings{Observer: policy.BreakerObserver{
		Changed: func(service string, from, to policy.BreakerState) {
			told = append(told, fmt.Sprintf("%s: %v to %v", service, from, to))
			b.State(service) // it may ask
		},
		Refused: func(service string, state policy.BreakerState, left time.Duration) {
			told = append(told, fmt.Sprintf("%s: refused, %v, %v", service, state, left > 0))
		},
	}}
	synctest.Test(t, func(t *testing.T) {
		b = newBreaker(t, s)
		openThenWait(t, b)
		calls(b, 1, policy.Ill)
		calls(b, 1, policy.Ill)
		pass(6 * time.Second)
		calls(b, 3, policy.Well)
		require.Equal(t, []string{
			"payments.v1.Payments: closed to open",
			"payments.v1.Payments: open to half_open",
			"payments.v1.Payments: half_open to open",
			"payments.v1.Payments: refused, open, true",
			"payments.v1.Payments: open to half_open",
			"payments.v1.Payments: half_open to closed",
		}, told)
	})
}

func TestBreakerRefusesSettingsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for _, s := range []policy.BreakerSettings{
		{Window: time.Millisecond},
		{Window: 2 * time.Hour},
		{Window: -1},
		{OpenFor: -1},
		{OpenFor: time.Microsecond},
		{OpenFor: 2 * time.Hour},
		{ProbeFor: -1},
		{ProbeFor: 2 * time.Hour},
		{MinCalls: -1},
		{MinCalls: 1_000_001},
		{Probes: -1},
		{Probes: 1_001},
		{Services: -1},
		{Services: 10_001},
		{Ratio: -0.1},
		{Ratio: 1.1},
		{Ratio: math.NaN()},
		{Jitter: -0.1},
		{Jitter: 1},
		{Jitter: math.NaN()},
	} {
		_, err := policy.NewBreaker(s)
		require.Error(t, err, "%+v", s)
	}
}

func BenchmarkBreaker(b *testing.B) {
	breaker, err := policy.NewBreaker(policy.BreakerSettings{})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		done, err := breaker.Allow(method)
		if err != nil {
			b.Fatal(err)
		}
		done(policy.Well)
	}
}
