package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dedupd/dedupd/storage"
)

// waiters holds the callers that wait for a record somebody else holds: one line
// per record. A completion wakes all of them. A release wakes the first Reserve
// in line, and so does the end of the lease, which is a timer: the store is not
// polled. Whoever is woken asks the store and decides by its answer; a wake that
// found nothing to take is passed on, never lost. Lookups in line are woken by
// any of it, since they take nothing.
//
// A call that does not wait may slip in between a release and the first in line;
// that one then keeps its place.
//
// Where other processes write to the store too, it is asked to say when the
// record changes: one goroutine per line, whose wake counts as a release. A line
// lives as long as it has a caller; its timer and its goroutine end with it.
type waiters struct {
	skew    time.Duration
	watcher storage.Watcher // nil where this process alone writes
	drained chan struct{}

	mu      sync.Mutex
	lines   map[storage.RecordID]*line
	count   int
	closing bool
}

// line is the callers held for one record.
type line struct {
	reserves []*waiter // first in line first
	lookups  []*waiter
	timer    *time.Timer // to the end of the lease; nil when none is set
	ends     time.Time   // when it fires
	last     storage.Answer
	lastAt   time.Time // of last, by this process's monotonic clock

	unwatch context.CancelFunc // nil while the store is not asked for changes
	watched int64              // the version that it is to change from
}

// waiter is one held caller; not for concurrent use.
type waiter struct {
	all    *waiters
	id     storage.RecordID
	lookup bool
	wake   chan struct{} // holds one wake
	over   *time.Timer   // end of the caller's wait
}

func newWaiters(store storage.Store) *waiters {
	watcher, _ := store.(storage.Watcher)
	return &waiters{skew: store.Skew(), watcher: watcher, drained: make(chan struct{}), lines: map[storage.RecordID]*line{}}
}

// join puts a caller in line for up to wait, and no longer than its deadline
// allows for an answer; false when there is nothing to wait for. The caller asks
// the store once more after joining, so that no wake is missed, and must leave.
func (w *waiters) join(ctx context.Context, id storage.RecordID, wait time.Duration, lookup bool) (*waiter, bool) {
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		wait = min(wait, left-min(left/10, 100*time.Millisecond)) // time for the answer to travel
	}
	if wait <= 0 {
		return nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return nil, false
	}
	l := w.lines[id]
	if l == nil {
		l = &line{}
		w.lines[id] = l
	}
	c := &waiter{all: w, id: id, lookup: lookup, wake: make(chan struct{}, 1), over: time.NewTimer(wait)}
	if lookup {
		l.lookups = append(l.lookups, c)
	} else {
		l.reserves = append(l.reserves, c)
	}
	w.count++
	return c, true
}

// wait blocks until it is worth asking the store again: true; or until the
// caller's wait is over: false, with its last answer as it stands now. The
// answer it is given is the store's latest: somebody else holds the record.
func (c *waiter) wait(ctx context.Context, held storage.Answer) (storage.Answer, bool, error) {
	c.all.heard(c.id, held) //nolint:contextcheck // a line is watched for all its callers
	select {
	case <-c.wake:
		return held, true, nil
	case <-c.over.C:
	case <-c.all.drained:
	case <-ctx.Done():
		return held, false, ctx.Err()
	}
	return c.all.aged(c.id, held), false, nil
}

// leave takes the caller out of line. took says that it was granted the record,
// so that the others go on waiting for it; else, when it had been woken, the
// next in line is. ans is the store's last answer.
func (c *waiter) leave(ans storage.Answer, took, woken bool) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	c.over.Stop()
	w.count--
	l := w.lines[c.id]
	is := func(o *waiter) bool { return o == c }
	l.reserves = slices.DeleteFunc(l.reserves, is)
	l.lookups = slices.DeleteFunc(l.lookups, is)
	if len(l.reserves) == 0 && len(l.lookups) == 0 {
		l.disarm()
		if l.unwatch != nil {
			l.unwatch()
		}
		delete(w.lines, c.id)
		return
	}
	if took {
		w.armLocked(c.id, l, ans)
	}
	pending := len(c.wake) > 0
	if !c.lookup && (pending || woken && !took) {
		l.wakeFirst()
	}
}

// settled wakes everybody: the outcome is stored.
func (w *waiters) settled(id storage.RecordID) { w.signal(id, true) }

// freed wakes the first Reserve in line: the record may be had.
func (w *waiters) freed(id storage.RecordID) { w.signal(id, false) }

func (w *waiters) signal(id storage.RecordID, everybody bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[id]
	if l == nil {
		return
	}
	if everybody {
		for _, c := range l.reserves {
			c.signal()
		}
	} else {
		l.wakeFirst()
	}
	l.wakeLookups()
}

// heard notes the store's latest answer on a record that somebody else holds.
func (w *waiters) heard(id storage.RecordID, held storage.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[id]
	if l.lastAt.IsZero() || held.Now >= l.last.Now {
		l.last, l.lastAt = held, time.Now()
	}
	w.armLocked(id, l, held)
	if w.watcher != nil && held.Record != nil && held.Record.Version > l.watched {
		w.watchLocked(id, l, held.Record.Version)
	}
}

// watchLocked has the store say when somebody changes the record.
func (w *waiters) watchLocked(id storage.RecordID, l *line, version int64) {
	if l.unwatch != nil {
		l.unwatch()
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.unwatch, l.watched = cancel, version
	go func() {
		defer cancel()
		if w.watcher.Changed(ctx, id, version) == nil {
			w.freed(id)
		}
	}()
}

// armLocked makes sure that the line is woken by the end of the lease in ans. A
// timer that fires early only asks once more; one that is set never moves back,
// so that an answer that was long on its way delays nobody.
func (w *waiters) armLocked(id storage.RecordID, l *line, ans storage.Answer) {
	left := ans.RetryAfter
	if ans.State == storage.StateReserved {
		left = ans.Record.LeaseEnd.Add(w.skew).Sub(ans.Now)
	}
	left = max(left, time.Millisecond)
	ends := time.Now().Add(left)
	if l.timer != nil && !ends.Before(l.ends) {
		return
	}
	l.disarm()
	l.ends = ends
	l.timer = time.AfterFunc(left, func() { w.lapsed(id, l, ends) })
}

// lapsed runs when the lease that a timer was set for has ended.
func (w *waiters) lapsed(id storage.RecordID, l *line, ends time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines[id] != l || l.timer == nil || !l.ends.Equal(ends) {
		return // stopped while it fired
	}
	l.timer = nil
	l.wakeFirst()
	l.wakeLookups()
}

// aged is the line's latest answer, a while later.
func (w *waiters) aged(id storage.RecordID, held storage.Answer) storage.Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[id]
	held.Record, held.State = l.last.Record, l.last.State
	held.Now = l.last.Now.Add(time.Since(l.lastAt))
	held.RetryAfter = min(max(held.LeaseLeft()+w.skew, minRetryAfter), maxRetryAfter)
	return held
}

// drain answers everybody, and holds nobody from here on.
func (w *waiters) drain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closing {
		w.closing = true
		close(w.drained)
	}
}

// held is how many callers wait.
func (w *waiters) held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

func (l *line) disarm() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *line) wakeFirst() {
	if len(l.reserves) > 0 {
		l.reserves[0].signal()
	}
}

func (l *line) wakeLookups() {
	for _, c := range l.lookups {
		c.signal()
	}
}

// signal leaves a wake for the caller, unless it has one already.
func (c *waiter) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
