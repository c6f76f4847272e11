// Package gather lets concurrent calls travel together: while some are on their
// way, those that arrive pile up and go as one batch as soon as a slot is free.
// The SQL store sends a batch as one multi-row statement.
//
// Life of a call:
//
//  1. Do puts it in the queue. Where a slot is free, a goroutine takes the slot and
//     what is queued; else the call waits for one. There is no timer: a call that
//     meets an idle gatherer leaves at once, alone.
//  2. The flush function gets the batch, in order of arrival, and answers each
//     call, in any order; it may hand calls on to others and return before them.
//  3. When it returns, its slot takes what has piled up meanwhile.
//  4. Do returns the answer, or the context's error once its caller gives up. The
//     call itself may still be on its way then: flush sees its context.
//
// The package does not retry, does not split what failed and knows nothing of
// keys: that is the flush function's, and Options.Lane's.
package gather

import (
	"cmp"
	"context"
	"runtime"
	"sync"
	"time"
)

// Options bound a Gatherer. The zero value is one slot, 256 calls a batch and no
// limit of bytes.
type Options[In any] struct {
	// Slots is how many batches may be on their way at once. The default is 1.
	Slots int
	// MaxCalls is how many calls a batch may hold. The default is 256; 1 sends
	// each call alone.
	MaxCalls int
	// Lane parts calls among the slots: each slot takes those whose lane, modulo
	// Slots, is its own, so that calls of one lane are not in two batches at once
	// (but while the number of slots in use changes, see Brisk). Lanes are never
	// negative. Without Lane any slot takes any call.
	Lane func(In) int
	// Brisk is how long a batch of so many calls takes where batches are best sent
	// one after the other. While they have lately been that fast, all calls go by
	// the first slot, whose batches are the fuller for it; a slower other end is
	// asked by all slots at once. Without Brisk lanes are always used.
	Brisk func(calls int) time.Duration
	// MaxBytes is the sum of Size that a batch may reach; a larger call travels
	// alone. Without Size there is no such limit.
	MaxBytes int
	// Size is how many bytes of a batch the call takes.
	Size func(In) int
}

// Gatherer gathers calls. It is safe for concurrent use.
type Gatherer[In, Out any] struct {
	flush func([]*Call[In, Out])
	opts  Options[In]
	slots sync.WaitGroup // one for each taken slot

	mu     sync.Mutex
	queues []*queue[In, Out] // one for each slot where there are lanes, else one for all
	pace   float64           // average time of a batch, 1 is as long as Brisk says
}

// queue is what waits for a slot.
type queue[In, Out any] struct {
	calls []*Call[In, Out]
	slots int
	taken int
}

// lately is how many batches an average is made of, about.
const lately = 16

// New returns a Gatherer that sends batches by flush. Flush must answer every
// call of a batch exactly once, be it after its return.
func New[In, Out any](flush func([]*Call[In, Out]), opts Options[In]) *Gatherer[In, Out] {
	opts.Slots = cmp.Or(opts.Slots, 1)
	opts.MaxCalls = cmp.Or(opts.MaxCalls, 256)
	g := &Gatherer[In, Out]{flush: flush, opts: opts}
	if opts.Lane == nil {
		g.queues = []*queue[In, Out]{{slots: opts.Slots}}
		return g
	}
	for range opts.Slots {
		g.queues = append(g.queues, &queue[In, Out]{slots: 1})
	}
	return g
}

// Do sends in with whatever else is waiting and returns its answer, or ctx's
// error when ctx ends first.
func (g *Gatherer[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	var none Out
	if err := ctx.Err(); err != nil {
		return none, err
	}
	c := &Call[In, Out]{In: in, Since: time.Now(), ctx: ctx, done: make(chan result[Out], 1)}
	g.push(c)
	select {
	case r := <-c.done:
		return r.out, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-c.done: // answered in the same instant
		return r.out, r.err
	default:
		return none, ctx.Err()
	}
}

// Wait returns when no call is queued and no flush is running. Nothing may call
// Do meanwhile.
func (g *Gatherer[In, Out]) Wait() { g.slots.Wait() }

func (g *Gatherer[In, Out]) push(c *Call[In, Out]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queueOf(c.In)
	q.calls = append(q.calls, c)
	if q.taken < q.slots {
		q.taken++
		g.slots.Go(func() { g.run(q) })
	}
}

func (g *Gatherer[In, Out]) queueOf(in In) *queue[In, Out] {
	if g.opts.Lane == nil || g.opts.Brisk != nil && g.pace <= 1 {
		return g.queues[0]
	}
	return g.queues[g.opts.Lane(in)%len(g.queues)]
}

// run keeps a slot until its queue is empty.
func (g *Gatherer[In, Out]) run(q *queue[In, Out]) {
	for {
		batch := g.next(q)
		if batch == nil {
			return
		}
		n, begun := len(batch), time.Now() // flush may use the slice as it likes
		g.flush(batch)
		g.flushed(n, time.Since(begun))
		// Let the callers that were just answered ask again before the next batch
		// is cut: else it is theirs that goes half empty.
		runtime.Gosched()
	}
}

// flushed notes how long a batch took.
func (g *Gatherer[In, Out]) flushed(calls int, took time.Duration) {
	if g.opts.Brisk == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace += (min(float64(took)/float64(g.opts.Brisk(calls)), 2) - g.pace) / lately
}

// next cuts a batch off the queue; nil gives the slot back.
func (g *Gatherer[In, Out]) next(q *queue[In, Out]) []*Call[In, Out] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(q.calls) == 0 {
		q.calls = nil
		q.taken--
		return nil
	}
	n := min(len(q.calls), g.opts.MaxCalls)
	if g.opts.Size != nil {
		n = g.fitting(q.calls[:n])
	}
	batch := q.calls[:n:n]
	q.calls = q.calls[n:]
	return batch
}

// fitting is how many of the first calls fit, at least one.
func (g *Gatherer[In, Out]) fitting(calls []*Call[In, Out]) int {
	bytes := 0
	for i, c := range calls {
		bytes += g.opts.Size(c.In)
		if bytes > g.opts.MaxBytes && i > 0 {
			return i
		}
	}
	return len(calls)
}

// Call is one call on its way.
type Call[In, Out any] struct {
	In    In
	Since time.Time // when it was queued

	ctx  context.Context // a batch has as many contexts as calls
	done chan result[Out]
}

type result[Out any] struct {
	out Out
	err error
}

// Context is the caller's: once it has ended nobody waits for the answer.
func (c *Call[In, Out]) Context() context.Context { return c.ctx }

// Answer ends the call.
func (c *Call[In, Out]) Answer(out Out, err error) { c.done <- result[Out]{out, err} }
