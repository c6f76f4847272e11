package gather_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dedupd/dedupd/internal/gather"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type call = gather.Call[int, int]

// flushes records batches and holds each until it is let go.
type flushes struct {
	mu      sync.Mutex
	batches [][]int
	let     chan struct{}
}

func (f *flushes) flush(batch []*call) {
	var ins []int
	for _, c := range batch {
		ins = append(ins, c.In)
	}
	f.mu.Lock()
	f.batches = append(f.batches, ins)
	f.mu.Unlock()
	<-f.let
	for _, c := range batch {
		c.Answer(-c.In, nil)
	}
}

// ask sends calls one after the other, each queued before the next.
func ask(t *testing.T, g *gather.Gatherer[int, int], ins ...int) {
	t.Helper()
	for _, in := range ins {
		go func() {
			out, err := g.Do(t.Context(), in)
			if err != nil || out != -in {
				t.Errorf("Do(%d) = %d, %v", in, out, err)
			}
		}()
		synctest.Wait()
	}
}

func TestCallsThatArriveDuringAFlushTravelTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{let: make(chan struct{})}
		g := gather.New(f.flush, gather.Options[int]{MaxCalls: 3})
		ask(t, g, 1, 2, 3, 4, 5)
		require.Equal(t, [][]int{{1}}, f.batches, "a call that meets an idle gatherer leaves at once")
		close(f.let)
		g.Wait()
		synctest.Wait()
		require.Equal(t, [][]int{{1}, {2, 3, 4}, {5}}, f.batches)
	})
}

func TestSlotsBoundTheBatchesOnTheirWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{let: make(chan struct{})}
		g := gather.New(f.flush, gather.Options[int]{Slots: 2})
		ask(t, g, 1, 2, 3, 4)
		require.Equal(t, [][]int{{1}, {2}}, f.batches)
		f.let <- struct{}{}
		synctest.Wait()
		require.Equal(t, [][]int{{1}, {2}, {3, 4}}, f.batches)
		close(f.let)
		g.Wait()
	})
}

func TestASlowOtherEndIsAskedByAllSlotsAndAFastOneByTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		took := time.Second
		f := &flushes{let: make(chan struct{})}
		g := gather.New(func(batch []*call) {
			time.Sleep(took) //nolint:forbidigo // inside a synctest bubble
			f.flush(batch)
		}, gather.Options[int]{
			Slots: 2, Lane: func(in int) int { return in },
			Brisk: func(calls int) time.Duration { return time.Duration(calls) * time.Second },
		})
		flushed := func(ins ...int) [][]int {
			f.let, f.batches = make(chan struct{}), nil
			ask(t, g, ins...)
			close(f.let)
			g.Wait()
			synctest.Wait()
			return f.batches
		}
		require.Equal(t, [][]int{{1}, {2, 3, 4}}, flushed(1, 2, 3, 4), "a fast one by one slot, whatever the lanes")
		took = 3 * time.Second
		for i := range 20 {
			flushed(i)
		}
		require.ElementsMatch(t, [][]int{{1}, {2}, {3, 5}, {4}}, flushed(1, 2, 3, 4, 5), "a slow one by both")
		require.ElementsMatch(t, [][]int{{1}, {3, 5, 7}}, flushed(1, 3, 5, 7), "but a lane is never in two batches")
		took = time.Second / 2
		for i := range 20 {
			flushed(i)
		}
		require.Equal(t, [][]int{{1}, {2, 3}}, flushed(1, 2, 3), "and forgotten")
	})
}

func TestABatchIsCutByBytesAndALargeCallTravelsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{let: make(chan struct{})}
		g := gather.New(f.flush, gather.Options[int]{MaxBytes: 10, Size: func(in int) int { return in }})
		ask(t, g, 1, 4, 6, 99, 3, 3)
		close(f.let)
		g.Wait()
		require.Equal(t, [][]int{{1}, {4, 6}, {99}, {3, 3}}, f.batches)
	})
}

func TestACallerThatGivesUpIsNotHeldAndItsCallSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := make(chan error, 1)
		g := gather.New(func(batch []*call) {
			time.Sleep(time.Minute) //nolint:forbidigo // inside a synctest bubble
			seen <- batch[0].Context().Err()
			batch[0].Answer(0, nil)
		}, gather.Options[int]{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		_, err := g.Do(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begun))
		g.Wait()
		require.Equal(t, time.Minute, time.Since(begun), "Wait waits for what is on its way")
		require.ErrorIs(t, <-seen, context.DeadlineExceeded)

		_, err = g.Do(ctx, 2)
		require.ErrorIs(t, err, context.DeadlineExceeded, "nothing is queued for a context that has ended")
		g.Wait()
		require.Empty(t, seen)
	})
}

func TestAnErrorIsOfItsCallAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fault := errors.New("fault")
		g := gather.New(func(batch []*call) {
			time.Sleep(time.Second) //nolint:forbidigo // inside a synctest bubble; the next calls pile up
			for _, c := range batch {
				if c.In%2 == 0 {
					c.Answer(0, fault)
				} else {
					go c.Answer(c.In, nil) // answered after the flush
				}
			}
		}, gather.Options[int]{})
		var wg sync.WaitGroup
		for in := range 10 {
			wg.Go(func() {
				out, err := g.Do(t.Context(), in)
				if in%2 == 0 {
					if !errors.Is(err, fault) {
						t.Errorf("Do(%d): %v", in, err)
					}
				} else if err != nil || out != in {
					t.Errorf("Do(%d) = %d, %v", in, out, err)
				}
			})
		}
		wg.Wait()
	})
}
