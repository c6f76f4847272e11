package policy_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dedupd/dedupd/interceptors/policy"
)

func newBudget(t *testing.T, s policy.BudgetSettings) *policy.Budget {
	t.Helper()
	b, err := policy.NewBudget(s)
	require.NoError(t, err)
	return b
}

func begin(b *policy.Budget, n int) {
	for range n {
		b.Begin()
	}
}

// E10: a hundred calls fail at once; those that wait count.
func TestBudgetGrantsAFifthOfAHundredCallsThatFailAtOnce(t *testing.T) {
	t.Parallel()
	type spent struct{ active, retrying int }
	var told []spent
	b := newBudget(t, policy.BudgetSettings{Observer: policy.BudgetObserver{
		Spent: func(active, retrying int) { told = append(told, spent{active, retrying}) },
	}})
	begin(b, 100)
	var releases []func()
	for range 100 {
		if release, ok := b.TryRetry(); ok {
			releases = append(releases, release)
		}
	}
	require.Len(t, releases, 20)
	require.Len(t, told, 80)
	require.Equal(t, spent{100, 20}, told[79])

	_, ok := b.TryRetry()
	require.False(t, ok, "twenty are waiting")
	releases[0]()
	_, ok = b.TryRetry()
	require.True(t, ok, "one has ended")
}

// E10, concurrent: nobody slips in between the look and the grant. One permit
// that everybody wants all the time is the hardest case.
func TestBudgetHoldsWhileManyAskAtOnce(t *testing.T) {
	t.Parallel()
	b := newBudget(t, policy.BudgetSettings{Minimum: 1})
	var held, most atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for granted := 0; granted < 1_000; {
				release, ok := b.TryRetry()
				if !ok {
					runtime.Gosched()
					continue
				}
				granted++
				if now := held.Add(1); now > 1 {
					most.Store(now)
				}
				runtime.Gosched() // the others ask meanwhile
				held.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	require.Zero(t, most.Load(), "permits held at a time")
}

// E10: the share of one call is no whole retry; the minimum is.
func TestBudgetGivesALoneCallItsRetries(t *testing.T) {
	t.Parallel()
	b := newBudget(t, policy.BudgetSettings{})
	b.Begin()
	defer b.End()
	for range 10 { // one after the other
		release, ok := b.TryRetry()
		require.True(t, ok)
		release()
	}
	for range 3 { // and three at a time
		_, ok := b.TryRetry()
		require.True(t, ok)
	}
	_, ok := b.TryRetry()
	require.False(t, ok)
}

func TestBudgetCountsEachPermitOnce(t *testing.T) {
	t.Parallel()
	b := newBudget(t, policy.BudgetSettings{Minimum: 1})
	begin(b, 2)
	release, ok := b.TryRetry()
	require.True(t, ok)
	refused, ok := b.TryRetry()
	require.False(t, ok)
	refused()
	_, retrying := b.Load()
	require.Equal(t, 1, retrying, "a refusal holds nothing to give back")
	for range 3 {
		release()
	}
	active, retrying := b.Load()
	require.Equal(t, 2, active)
	require.Zero(t, retrying)
}

func TestBudgetGetsEverythingBackFromACallThatPanics(t *testing.T) {
	t.Parallel()
	b := newBudget(t, policy.BudgetSettings{})
	require.Panics(t, func() {
		b.Begin()
		defer b.End()
		release, ok := b.TryRetry()
		require.True(t, ok)
		defer release()
		(*policy.Budget)(nil).Begin()
	})
	active, retrying := b.Load()
	require.Zero(t, active)
	require.Zero(t, retrying)
}

func TestBudgetRefusesSettingsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for _, s := range []policy.BudgetSettings{
		{Ratio: -0.1},
		{Ratio: 1.1},
		{Ratio: math.NaN()},
		{Ratio: math.Inf(1)},
		{Minimum: -1},
		{Minimum: 10_001},
	} {
		_, err := policy.NewBudget(s)
		require.Error(t, err, "%+v", s)
	}
	b := newBudget(t, policy.BudgetSettings{Ratio: 0.29, Minimum: 1})
	begin(b, 100)
	granted := 0
	for range 100 {
		if _, ok := b.TryRetry(); ok {
			granted++
		}
	}
	require.Equal(t, 29, granted)
}

// However calls begin, ask, give back and end: a retry is granted exactly while
// fewer are retrying than the larger of minimum and share, and the counts are
// right.
func TestBudgetGrantsExactlyWithinItsBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		percent := rapid.IntRange(1, 100).Draw(rt, "percent")
		minimum := rapid.IntRange(1, 5).Draw(rt, "minimum")
		b, err := policy.NewBudget(policy.BudgetSettings{Ratio: float64(percent) / 100, Minimum: minimum})
		require.NoError(rt, err)
		var calls, permits []func()
		end := func(open *[]func()) {
			if len(*open) == 0 {
				return
			}
			i := rapid.IntRange(0, len(*open)-1).Draw(rt, "which")
			(*open)[i]()
			*open = append((*open)[:i], (*open)[i+1:]...)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"calls begin": func(rt *rapid.T) {
				n := rapid.IntRange(1, 40).Draw(rt, "calls")
				begin(b, n)
				for range n {
					calls = append(calls, b.End)
				}
			},
			"a call ends":  func(*rapid.T) { end(&calls) },
			"a retry ends": func(*rapid.T) { end(&permits) },
			"retries are asked for": func(rt *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(rt, "retries") {
					release, ok := b.TryRetry()
					require.Equal(rt, len(permits) < max(minimum, percent*len(calls)/100), ok)
					if ok {
						permits = append(permits, release)
					}
				}
			},
			"": func(rt *rapid.T) {
				active, retrying := b.Load()
				require.Equal(rt, len(calls), active)
				require.Equal(rt, len(permits), retrying)
			},
		})
	})
}

// However calls overlap in truth, each gives back what it took.
func TestBudgetIsEmptyAfterAnyCrowd(t *testing.T) {
	t.Parallel()
	b := newBudget(t, policy.BudgetSettings{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 200 {
				b.Begin()
				if release, ok := b.TryRetry(); ok && rand.IntN(2) == 0 {
					release()
					b.End()
				} else {
					b.End()
					release()
				}
			}
		})
	}
	wg.Wait()
	active, retrying := b.Load()
	require.Zero(t, active)
	require.Zero(t, retrying)
}

func BenchmarkBudget(b *testing.B) {
	budget, err := policy.NewBudget(policy.BudgetSettings{})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		budget.Begin()
		budget.End()
	}
}
