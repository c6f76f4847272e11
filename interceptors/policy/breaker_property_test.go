package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// step is one move of a random history: time passes, then a call begins or one
// that is under way ends.
type step struct {
	wait    time.Duration
	end     int // which call under way ends; -1: a call begins
	verdict policy.Verdict
}

// However calls begin, end, hang and go missing: an open breaker sends nothing
// for four seconds, a half-open one has no more than three probes younger than
// the probe time, and a server that is well again is found to be.
func TestBreakerBoundsProbesAndAlwaysCloses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{
				wait:    time.Duration(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 300, 5000, 7000}).Draw(rt, "wait")) * time.Millisecond,
				end:     rapid.IntRange(-1, 5).Draw(rt, "end"),
				verdict: rapid.SampledFrom([]policy.Verdict{policy.Ill, policy.Ill, policy.Ill, policy.Well, policy.Neutral}).Draw(rt, "verdict"),
			}
		}), 1, 150).Draw(rt, "steps")
		var err error
		synctest.Test(t, func(*testing.T) { err = history(steps) })
		require.NoError(rt, err)
	})
}

func history(steps []step) error {
	var opened time.Time
	var probes []time.Time // begun in the present half-open state, and not ended
	changed := func(_ string, from, to policy.BreakerState) {
		probes = nil
		if to == policy.BreakerOpen {
			opened = time.Now()
		}
	}
	b, err := policy.NewBreaker(policy.BreakerSettings{MinCalls: 4, Observer: policy.BreakerObserver{Changed: changed}})
	if err != nil {
		return err
	}
	type call struct {
		done  func(policy.Verdict)
		began time.Time
		probe bool
	}
	var under []call
	begin := func() error {
		before := b.State(service)
		permit, err := b.Allow(method)
		after := b.State(service)
		if err != nil {
			if before == policy.BreakerClosed {
				return errors.New("a closed breaker refused")
			}
			return nil
		}
		if before == policy.BreakerOpen && time.Since(opened) < 4*time.Second {
			return fmt.Errorf("sent %v after it opened", time.Since(opened))
		}
		c := call{done: permit.Done, began: time.Now(), probe: after == policy.BreakerHalfOpen}
		under = append(under, c)
		if !c.probe {
			return nil
		}
		probes = append(probes, c.began)
		young := 0
		for _, p := range probes {
			if time.Since(p) < policy.DefaultBreakerOpenFor {
				young++
			}
		}
		if young > policy.DefaultBreakerProbes {
			return fmt.Errorf("%d probes at a time", young)
		}
		return nil
	}
	for _, s := range steps {
		pass(s.wait)
		if s.end < 0 || s.end >= len(under) {
			if err := begin(); err != nil {
				return err
			}
			continue
		}
		c := under[s.end]
		under = append(under[:s.end], under[s.end+1:]...)
		for i, p := range probes {
			if c.probe && s.verdict == policy.Neutral && p.Equal(c.began) {
				probes = append(probes[:i], probes[i+1:]...)
				break
			}
		}
		c.done(s.verdict)
	}
	// What is still under way never ends; the server is well from here on.
	pass(6 * time.Second)
	calls(b, 3, policy.Well)
	if s := b.State(service); s != policy.BreakerClosed {
		return fmt.Errorf("still %v", s)
	}
	return nil
}

// A crowd of calls that truly overlap: changes are told one at a time and in
// order, and the breaker works afterwards.
func TestBreakerHoldsInACrowd(t *testing.T) {
	t.Parallel()
	var last, changes, telling, disorder atomic.Int64
	// Ill more often than not, so that the breaker surely opens.
	verdicts := [...]policy.Verdict{policy.Neutral, policy.Well, policy.Ill, policy.Ill}
	s := policy.BreakerSettings{
		OpenFor: 100 * time.Millisecond, ProbeFor: time.Minute,
		Observer: policy.BreakerObserver{Changed: func(_ string, from, to policy.BreakerState) {
			if telling.Add(1) != 1 || last.Swap(int64(to)) != int64(from) {
				disorder.Add(1)
			}
			pass(time.Millisecond) // others end meanwhile
			telling.Add(-1)
			changes.Add(1)
		}},
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(t, s)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for range 100 {
					permit, err := b.Allow(method)
					if err != nil {
						pass(time.Duration(rand.IntN(100)) * time.Millisecond)
						continue
					}
					if rand.IntN(2) == 0 {
						pass(time.Duration(rand.IntN(5)) * time.Millisecond)
					}
					permit.Done(verdicts[rand.IntN(len(verdicts))])
				}
			})
		}
		wg.Wait()
		require.Zero(t, disorder.Load(), "a change was told out of order, or with another")
		require.Greater(t, changes.Load(), int64(10))
		pass(time.Second)
		calls(b, 3, policy.Well)
		require.Equal(t, policy.BreakerClosed, b.State(service))
	})
}
