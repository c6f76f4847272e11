package policy_test

import (
	"fmt"
	"math"
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
		if permit, err := b.Allow(method); err == nil {
			permit.Done(v)
			sent++
		}
	}
	return sent
}

// probe starts one call that must be let through.
func probe(t *testing.T, b *policy.Breaker) func(policy.Verdict) {
	t.Helper()
	permit, err := b.Allow(method)
	require.NoError(t, err)
	return permit.Done
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

// Calls that ended well are told to the library together, a step late at the most.
func TestBreakerCountsCallsThatEndedWellAsLongAsTheOthers(t *testing.T) {
	t.Parallel()
	for since, want := range map[time.Duration]policy.BreakerState{
		0:                       policy.BreakerClosed,
		8500 * time.Millisecond: policy.BreakerClosed,
		11 * time.Second:        policy.BreakerOpen,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBreaker(t, policy.BreakerSettings{})
			calls(b, 100, policy.Well)
			pass(since)
			calls(b, 20, policy.Ill)
			require.Equal(t, want, b.State(service), since)
		})
	}
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

// F01: the one question that must be asked of an ill server.
func TestBreakerLetsHealthChecksPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, policy.BreakerSettings{})
		for range 1000 {
			permit, err := b.Allow("/grpc.health.v1.Health/Check")
			require.NoError(t, err)
			permit.Done(policy.Ill)
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
		permit, err := b.Allow("/a.A/Do")
		require.NoError(t, err)
		permit.Done(policy.Well)
		for range 20 {
			permit, err := b.Allow("/b.B/Do")
			require.NoError(t, err)
			permit.Done(policy.Ill)
		}
		require.Equal(t, policy.BreakerClosed, b.State("b.B"))
		require.Len(t, unguarded, 20)
		require.Equal(t, "b.B", unguarded[0])

		pass(11 * time.Second) // a.A has no call in its window: nothing is lost with it
		for range 20 {
			permit, err := b.Allow("/b.B/Do")
			require.NoError(t, err)
			permit.Done(policy.Ill)
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
		permit, err := breaker.Allow(method)
		if err != nil {
			b.Fatal(err)
		}
		permit.Done(policy.Well)
	}
}
