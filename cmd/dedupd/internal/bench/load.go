package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// call makes one call for a caller, who numbers its own calls from 0.
type call func(ctx context.Context, caller, n int) error

// load is what a round of calls came to.
type load struct {
	took  time.Duration
	calls []time.Duration // sorted
}

// drive has every caller call again and again until the round is over.
func (b *bench) drive(ctx context.Context, do call) (load, error) {
	g, ctx := errgroup.WithContext(ctx)
	took := make([][]time.Duration, b.Callers)
	began := time.Now()
	for c := range b.Callers {
		g.Go(func() error {
			calls := make([]time.Duration, 0, 1<<12)
			for n, last := 0, began; last.Sub(began) < b.Duration; n++ {
				if err := do(ctx, c, n); err != nil {
					return err
				}
				now := time.Now()
				calls = append(calls, now.Sub(last))
				last = now
			}
			took[c] = calls
			return nil
		})
	}
	err := g.Wait()
	l := load{took: time.Since(began), calls: slices.Concat(took...)}
	slices.Sort(l.calls)
	return l, err
}

func (l load) rate() Rate {
	n := len(l.calls)
	if n == 0 {
		return Rate{}
	}
	return Rate{PerSecond: float64(n) / l.took.Seconds(), P50: l.calls[n/2], P99: l.calls[n*99/100]}
}

// processorTime is what a process has taken of the processors so far; 0 where the
// system does not tell.
func processorTime(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The program's name stands in brackets and may hold anything.
	f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	var ticks int64
	for _, part := range f[11:13] { // in the system and for itself
		n, _ := strconv.ParseInt(string(part), 10, 64) // 0: not told
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// tick is the unit of /proc/*/stat on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// residentSet is how much memory a process holds, in bytes; 0 where the system
// does not tell.
func residentSet(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(text)
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(string(f[1]), 10, 64) // 0: not told
	return pages * int64(os.Getpagesize())
}
