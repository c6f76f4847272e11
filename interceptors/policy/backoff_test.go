package policy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Both ends of what a random source may return.
func lowest(int64) int64    { return 0 }
func highest(m int64) int64 { return m - 1 }

func TestBackoffNeverLeavesItsRange(t *testing.T) { // E01
	t.Parallel()
	for _, base := range []time.Duration{1, time.Microsecond, time.Millisecond, 250 * time.Millisecond, time.Second, time.Hour} {
		for _, limit := range []time.Duration{base, base + 1, 3*base + 7, 5 * time.Second, time.Hour, 24 * time.Hour, math.MaxInt64} {
			for _, factor := range []float64{1, 1.01, 1.5, 2, math.Pi, 10} {
				if limit < base {
					continue
				}
				b, err := NewBackoff(base, limit, factor)
				require.NoError(t, err)
				requireRange(t, b, base, limit)
			}
		}
	}
}

// requireRange checks attempts 0 to 1,000 without a call of require for each,
// which would take most of the time.
func requireRange(tb testing.TB, b Backoff, base, limit time.Duration) {
	tb.Helper()
	before := time.Duration(0)
	for n := range 1001 {
		ceiling := b.Ceiling(n)
		low, high := b.Wait(n, 0, lowest), b.Wait(n, 0, highest)
		if ceiling < before || ceiling < base || ceiling > limit || low != 1 || high != ceiling {
			tb.Fatalf("%v: try %d: ceiling %v after %v, waits %v to %v", b, n, ceiling, before, low, high)
		}
		before = ceiling
	}
	if b.factor > 1 {
		require.Equal(tb, limit, b.Ceiling(maxSteps))
		require.Equal(tb, limit, b.Ceiling(math.MaxInt))
	}
	require.Equal(tb, base, b.Ceiling(0))
	require.Equal(tb, base, b.Ceiling(-1))
}

func TestBackoffDoublesFromAQuarterSecondToFiveSeconds(t *testing.T) {
	t.Parallel()
	b := DefaultBackoff()
	want := []time.Duration{250, 500, 1000, 2000, 4000, 5000, 5000}
	for n, ms := range want {
		require.Equal(t, ms*time.Millisecond, b.Ceiling(n))
	}
	made, err := NewBackoff(DefaultBase, DefaultCap, DefaultFactor)
	require.NoError(t, err)
	require.Equal(t, b, made)
}

func TestBackoffIsUniform(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	quarters := [4]int{}
	for range 40_000 {
		w := DefaultBackoff().Wait(2, 0, r.Int64N) // up to one second
		require.Positive(t, w)
		quarters[min(3, w/(250*time.Millisecond))]++
	}
	for _, n := range quarters {
		require.InDelta(t, 10_000, n, 400) // more than four standard deviations
	}
}

func TestAHintIsAFloorUnderTheJitter(t *testing.T) { // E06
	t.Parallel()
	b := DefaultBackoff()
	require.Equal(t, 3*time.Second+1, b.Wait(0, 3*time.Second, lowest))
	require.Equal(t, 3250*time.Millisecond, b.Wait(0, 3*time.Second, highest))
	require.Equal(t, time.Duration(1), b.Wait(0, -time.Hour, lowest))
	require.EqualValues(t, math.MaxInt64, b.Wait(0, math.MaxInt64, lowest))
	require.EqualValues(t, math.MaxInt64, b.Wait(9, math.MaxInt64-time.Second, highest))
	require.EqualValues(t, math.MaxInt64, b.Wait(0, math.MaxInt64-1, lowest))
}

func TestBackoffIsValidatedWhenItIsMade(t *testing.T) { // E01
	t.Parallel()
	for _, tt := range []struct {
		name        string
		base, limit time.Duration
		factor      float64
		want        string
	}{
		{"no base", 0, time.Second, 2, "base is 0s"},
		{"a negative base", -1, time.Second, 2, "base is -1ns"},
		{"a cap below the base", time.Second, time.Second - 1, 2, "cap is 999.999999ms"},
		{"no cap", time.Second, 0, 2, "cap is 0s"},
		{"no factor", 1, 1, 0, "factor is 0"},
		{"a factor that shrinks", 1, 1, 0.5, "factor is 0.5"},
		{"a factor that hardly grows", 1, 1, 1.001, "factor is 1.001"},
		{"a negative factor", 1, 1, -2, "factor is -2"},
		{"not a number", 1, 1, math.NaN(), "factor is NaN"},
		{"infinity", 1, 1, math.Inf(1), "factor is +Inf"},
		{"minus infinity", 1, 1, math.Inf(-1), "factor is -Inf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := NewBackoff(tt.base, tt.limit, tt.factor)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestBackoffDescribesItself(t *testing.T) {
	t.Parallel()
	describe := func(base, limit time.Duration, factor float64) string {
		b, err := NewBackoff(base, limit, factor)
		require.NoError(t, err)
		return b.String()
	}
	const asked = "; a wait that the server asks for is added to it"
	require.Equal(t, "waits between tries are random, up to 250ms after the first, 500ms, 1s, 2s, 4s, then 5s"+asked, DefaultBackoff().String())
	require.Equal(t, "waits between tries are random, up to 1ms after the first, 3ms, 9ms, 27ms, 81ms, growing by 3 up to 1h0m0s"+asked, describe(time.Millisecond, time.Hour, 3))
	require.Equal(t, "waits between tries are random, up to 1s after each"+asked, describe(time.Second, time.Second, 2))
	require.Equal(t, "waits between tries are random, up to 1s after each"+asked, describe(time.Second, time.Minute, 1))
	require.Equal(t, "waits between tries are random, up to 1s after the first, then 1.5s"+asked, describe(time.Second, 1500*time.Millisecond, 2))
}

func FuzzBackoff(f *testing.F) {
	f.Add(int64(time.Millisecond), int64(time.Second), 2.0, 5, int64(0))
	f.Add(int64(1), int64(math.MaxInt64), 10.0, 1000, int64(math.MaxInt64))
	f.Add(int64(1), int64(1<<53+1), 1.01, 4499, int64(-1))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), 1.0, math.MaxInt, int64(1))
	f.Add(int64(1), int64(math.MaxInt64), math.MaxFloat64, 3, int64(1))
	f.Add(int64(-1), int64(1), math.NaN(), -1, int64(1))
	f.Fuzz(func(t *testing.T, base, limit int64, factor float64, n int, hint int64) {
		b, err := NewBackoff(time.Duration(base), time.Duration(limit), factor)
		valid := base > 0 && limit >= base && (factor == 1 || factor >= 1.01) && !math.IsInf(factor, 0)
		require.Equal(t, valid, err == nil)
		if err != nil {
			return
		}
		ceiling := b.Ceiling(n)
		require.GreaterOrEqual(t, int64(ceiling), base)
		require.LessOrEqual(t, int64(ceiling), limit)
		if n < math.MaxInt {
			require.LessOrEqual(t, ceiling, b.Ceiling(n+1))
		}
		low, high := b.Wait(n, time.Duration(hint), lowest), b.Wait(n, time.Duration(hint), highest)
		require.Positive(t, low)
		require.GreaterOrEqual(t, int64(low), hint)
		require.LessOrEqual(t, low, high)
		require.NotEmpty(t, b.String())
	})
}
