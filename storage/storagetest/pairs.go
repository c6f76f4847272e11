package storagetest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pairRound is how long each side of a pair runs.
const pairRound = 400 * time.Millisecond

// BenchPairs measures two stores by turns, so that what else the machine does
// meets both: b.N is the number of pairs of short rounds. It reports the median
// rate of each and the median of the ratios, a pair's second to its first.
func BenchPairs(b *testing.B, first, second Opener) {
	b.Helper()
	loads := []struct {
		name string
		run  func(w *workload, i uint64)
	}{
		{"ReserveFresh", (*workload).reserve},
		{"ReserveComplete", (*workload).cycle},
	}
	for _, l := range loads {
		for _, callers := range []int{1, 4, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", l.name, callers), func(b *testing.B) {
				p := pair{newWorkload(b, first(b).Store), newWorkload(b, second(b).Store)}
				p.measure(b, callers, l.run)
				for _, w := range p {
					require.NoError(b, w.store.Close())
				}
			})
		}
	}
}

// pair is the two sides that take turns.
type pair [2]*workload

func (p pair) measure(b *testing.B, callers int, call func(w *workload, i uint64)) {
	b.Helper()
	for _, w := range p {
		w.rate(callers, call) // connections and caches
	}
	var rates [2][]float64
	ratios := make([]float64, 0, b.N)
	b.ResetTimer()
	for n := range b.N {
		var rate [2]float64
		for i := range p {
			side := (n + i) % len(p) // who begins changes
			runtime.GC()
			rate[side] = p[side].rate(callers, call)
			rates[side] = append(rates[side], rate[side])
		}
		ratios = append(ratios, rate[1]/rate[0])
	}
	b.StopTimer()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(rates[0]), "first/s")
	b.ReportMetric(median(rates[1]), "second/s")
	b.ReportMetric(median(ratios), "ratio")
}

// rate drives the store for one round, each key once, and returns calls per
// second.
func (w *workload) rate(callers int, call func(w *workload, i uint64)) float64 {
	var done sync.WaitGroup
	var calls atomic.Int64
	begun := time.Now()
	for range callers {
		done.Go(func() {
			for time.Since(begun) < pairRound {
				call(w, w.next.Add(1))
				calls.Add(1)
			}
		})
	}
	done.Wait()
	return float64(calls.Load()) / time.Since(begun).Seconds()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
