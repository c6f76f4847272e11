package cockroach

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/storagetest"
)

// BenchmarkGathered and BenchmarkUngathered differ in Options.NoGather alone.
func BenchmarkGathered(b *testing.B) { storagetest.Bench(b, opener(Options{})) }

func BenchmarkUngathered(b *testing.B) { storagetest.Bench(b, opener(Options{NoGather: true})) }

// BenchmarkPairs measures both by turns: the first alone, the second gathered.
func BenchmarkPairs(b *testing.B) {
	storagetest.BenchPairs(b, opener(Options{NoGather: true}), opener(Options{}))
}

// The latencies of other callers are measured by turns, a second without and a
// second with what may disturb them, so that what else the machine does meets both.
const turnTime = time.Second

// BenchmarkReserveDuringASweep is B10: 200,000 rows whose time is over are swept, as
// the server does it (batches of 1,000, a pause of 100 ms), beside 16 callers.
func BenchmarkReserveDuringASweep(b *testing.B) {
	const rows = 200_000
	for range b.N {
		s, _ := opener(Options{})(b).Store.(*Store)
		seed(b, s, rows)
		swept := 0
		quiet, disturbed := turns(b, s, func(ctx context.Context) bool {
			for ctx.Err() == nil {
				n, err := s.Sweep(context.WithoutCancel(ctx), 1000)
				if err != nil {
					b.Error(err)
				}
				if swept += n; n == 0 {
					return false
				}
				pause(ctx, ctx, 100*time.Millisecond)
			}
			return true
		})
		require.Equal(b, rows, swept)
		report(b, "quiet", quiet)
		report(b, "sweep", disturbed)
	}
}

// BenchmarkReserveBesideAHotKey is B07: 200 callers ask for one key, first while it
// is held, then when it is completed, beside 16 callers of other keys.
func BenchmarkReserveBesideAHotKey(b *testing.B) {
	const crowd, turnsEach = 200, 8
	for range b.N {
		s, _ := opener(Options{})(b).Store.(*Store)
		h := newHolder("hot")
		_, err := h.reserve(b.Context(), s)
		require.NoError(b, err)
		var hot latencies
		turn := 0
		quiet, disturbed := turns(b, s, func(ctx context.Context) bool {
			want := storage.VerdictInProgress
			if turn++; turn > turnsEach/2 {
				want = storage.VerdictCompleted
				_, err := h.complete(context.WithoutCancel(ctx), s)
				require.NoError(b, err)
			}
			hot.from(ctx, b, crowd, func() error {
				ans, err := newHolder("hot").reserve(b.Context(), s)
				if err == nil && ans.Verdict != want {
					err = fmt.Errorf("%s, not %s", ans.Verdict, want)
				}
				return err
			})
			return turn < turnsEach
		})
		report(b, "quiet", quiet)
		report(b, "beside", disturbed)
		report(b, "hot", &hot)
	}
}

// turns reserves fresh keys from 16 callers, by turns without and with disturb,
// until that returns false. Disturb ends soon after its context.
func turns(b *testing.B, s *Store, disturb func(ctx context.Context) bool) (quiet, disturbed *latencies) {
	b.Helper()
	const callers = 16
	var next atomic.Int64
	quiet, disturbed = &latencies{}, &latencies{}
	fresh := func() error {
		_, err := newHolder(fmt.Sprint("fresh", next.Add(1))).reserve(b.Context(), s)
		return err
	}
	for more := true; more; {
		for _, l := range []*latencies{quiet, disturbed} {
			ctx, cancel := context.WithTimeout(b.Context(), turnTime)
			var done sync.WaitGroup
			if l == disturbed {
				done.Go(func() { more = disturb(ctx) })
			}
			l.from(ctx, b, callers, fresh)
			done.Wait()
			cancel()
		}
	}
	return quiet, disturbed
}

// latencies are those of many calls.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

// from measures calls of so many callers until ctx ends.
func (l *latencies) from(ctx context.Context, b *testing.B, callers int, call func() error) {
	b.Helper()
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			var own []time.Duration
			for ctx.Err() == nil {
				begun := time.Now()
				if err := call(); err != nil {
					b.Error(err)
				}
				own = append(own, time.Since(begun))
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.all = append(l.all, own...)
		})
	}
	done.Wait()
}

func report(b *testing.B, name string, l *latencies) {
	b.Helper()
	slices.Sort(l.all)
	b.ReportMetric(float64(len(l.all)), name+"-calls")
	for _, p := range []int{50, 99} {
		b.ReportMetric(l.all[len(l.all)*p/100].Seconds()*1000, fmt.Sprintf("%s-p%d-ms", name, p))
	}
}
