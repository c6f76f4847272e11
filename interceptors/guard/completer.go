package guard

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Bounds of the background completer.
const (
	// MaxPending is how many messages wait for dedupd at a time.
	MaxPending = 10_000
	// MaxPendingBytes is how large they may be together.
	MaxPendingBytes = 64 << 20

	maxUnread     = 1024 // of them, grants given back unread: they must not crowd out outcomes
	deliverWidth  = 8    // deliveries at a time while dedupd answers; one while it does not
	letterBytes   = 512  // counted for each, beside its message
	noMoreLetters = -1
)

// limits bound a completer.
type limits struct {
	letters int
	bytes   int64
	age     time.Duration // after which a letter is given up; 0: never
}

// letter is a message that ends a run or a grant, or a dead letter, on its way to
// dedupd. All but its message is guarded by the completer.
type letter struct {
	id           uint64                   // in the journal; 0: it is not there
	recordID     string                   // of a dead letter: its kind and record
	operation    string                   // of a dead letter: its method
	complete     *dedupv1.CompleteRequest // exactly one of the three is set
	release      *dedupv1.ReleaseRequest
	park         *dedupv1.ParkRequest
	stands       bool // the outcome was given to the first caller, and no later run can answer otherwise
	fingerprints []*dedupv1.Fingerprint

	size  int64
	since time.Time
	tries int
	due   time.Time
	gone  bool // delivered or given up
}

func (l *letter) unread() bool { return l.release != nil && l.release.GetFence() == 0 }

// completer delivers in the background what dedupd did not acknowledge. Its one
// goroutine lives only while there is something to deliver.
type completer struct {
	dedup   dedupv1.DedupServiceClient
	parks   dedupv1.DeadLetterServiceClient // of a Parker's
	limits  limits
	log     *slog.Logger
	observe Observer
	seldom  policy.Backoff
	often   policy.Backoff // while closing
	journal *journal       // nil: nothing outlives the process

	life context.Context //nolint:containedctx // until when deliveries go on: longer than the engine's runs
	end  context.CancelFunc
	wake chan struct{}

	mu        sync.Mutex
	letters   []*letter // in the order they came, with gone ones among them
	latest    map[string]*letter
	taken     int // places, including those of letters still being journaled
	bytes     int64
	unread    int
	running   chan struct{} // closed by the goroutine when it ends; nil: there is none
	closing   bool
	closed    bool
	down      int // rounds in which nothing was answered
	notBefore time.Time
}

func newCompleter(c Config) (*completer, error) {
	often, err := policy.NewBackoff(tryBase, tryCap, policy.DefaultFactor)
	if err != nil {
		return nil, err
	}
	seldom, err := policy.NewBackoff(laterBase, laterCap, policy.DefaultFactor)
	if err != nil {
		return nil, err
	}
	q := &completer{
		dedup: c.Dedup, log: c.Logger, observe: c.Observer, often: often, seldom: seldom,
		limits: limits{letters: MaxPending, bytes: MaxPendingBytes, age: laterTime},
		latest: map[string]*letter{}, wake: make(chan struct{}, 1),
	}
	q.life, q.end = context.WithCancel(context.Background())
	return q, nil
}

// reopen opens the journal and takes up what an earlier process left in it.
func (q *completer) reopen(ctx context.Context, dir string) error {
	j, letters, torn, err := openJournal(dir)
	if err == nil {
		q.takeUp(ctx, j, letters, torn)
	}
	return err
}

func (q *completer) takeUp(ctx context.Context, j *journal, letters []*letter, torn int64) {
	if torn > 0 {
		q.log.LogAttrs(ctx, slog.LevelWarn, "the journal ended in the middle of an entry; its end was cut off",
			slog.Int64("bytes", torn))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.journal = j
	now := time.Now()
	for _, l := range letters {
		l.size, l.since, l.due = letterBytes+int64(proto.Size(l.message())), now, now
		q.tally(l, 1)
		if older := q.latest[l.recordID]; older != nil && l.park != nil {
			older.gone = true
			q.tally(older, -1)
			j.done(older.id)
		}
		q.enqueueLocked(l)
	}
}

// add takes a letter; false when it is full or closed.
func (q *completer) add(ctx context.Context, l *letter) bool {
	l.size = letterBytes + int64(proto.Size(l.message()))
	l.since = time.Now()
	l.due = l.since
	if !q.place(ctx, l) {
		return false
	}
	if q.journal != nil && !l.unread() {
		if err := q.journal.append(l); err != nil {
			count0(q.observe.JournalFailed)
			q.log.LogAttrs(ctx, slog.LevelError, "an outcome could not be written to the journal; it is kept in memory only",
				slog.String("operation", l.operation), slog.Any("error", err))
		}
	}
	q.mu.Lock()
	late := q.closed
	var older *letter
	if !late {
		if l.park != nil {
			older = q.latest[l.recordID]
		}
		q.enqueueLocked(l)
	}
	q.mu.Unlock()
	if older != nil {
		q.remove(older) // one dead letter per key: the newer one takes its place
	}
	if late && l.id == 0 {
		q.giveUp(ctx, l)
	}
	return !late
}

// place makes room for a letter.
func (q *completer) place(ctx context.Context, l *letter) bool {
	q.mu.Lock()
	full := q.taken >= q.limits.letters || q.bytes+l.size > q.limits.bytes || l.unread() && q.unread >= maxUnread
	ok := !full && !q.closed
	if ok {
		q.tally(l, 1)
	}
	q.mu.Unlock()
	switch {
	case ok:
	case full:
		count(q.observe.CompleterFull, l.operation)
		fallthrough
	default:
		q.giveUp(ctx, l)
	}
	return ok
}

func (q *completer) tally(l *letter, n int) {
	q.taken += n
	q.bytes += int64(n) * l.size
	if l.unread() {
		q.unread += n
	}
	if q.observe.Pending != nil { // under the lock: the last one told is the last one true
		q.observe.Pending(q.taken, q.bytes)
	}
}

func (q *completer) enqueueLocked(l *letter) {
	q.letters = append(q.letters, l)
	if !l.unread() {
		q.latest[l.recordID] = l
	}
	if q.running == nil {
		q.running = make(chan struct{})
		go q.drain()
	}
	q.nudge()
}

func (q *completer) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// drain delivers until nothing is left, or its time is over.
func (q *completer) drain() {
	for {
		round, wait := q.next()
		switch {
		case len(round) > 0:
			q.deliver(round)
		case wait == noMoreLetters:
			return
		default:
			q.rest(wait)
		}
	}
}

func (q *completer) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-q.wake:
	case <-q.life.Done():
	}
}

// next returns the letters to deliver now, or how long to wait for some.
func (q *completer) next() ([]*letter, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.letters = slices.DeleteFunc(q.letters, func(l *letter) bool { return l.gone })
	if len(q.letters) == 0 || q.life.Err() != nil {
		close(q.running)
		q.running = nil
		return nil, noMoreLetters
	}
	now := time.Now()
	if q.notBefore.After(now) {
		return nil, q.notBefore.Sub(now)
	}
	width := deliverWidth
	if q.down > 0 {
		width = 1
	}
	var round []*letter
	earliest := q.letters[0].due
	for _, l := range q.letters {
		if !l.due.After(now) {
			round = append(round, l)
		}
		if l.due.Before(earliest) {
			earliest = l.due
		}
		if len(round) == width {
			break
		}
	}
	return round, max(0, earliest.Sub(now))
}

// flush delivers now what this process still has to say of a record, so that a
// repeat does not find it unfinished.
func (q *completer) flush(ctx context.Context, recordID []byte) {
	q.mu.Lock()
	l := q.latest[string(recordID)]
	q.mu.Unlock()
	if l != nil {
		q.send(ctx, l)
	}
}

// knows reports whether how a run of the record ended waits to be delivered.
func (q *completer) knows(recordID []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.latest[string(recordID)] != nil
}

// outcomeOf returns the outcome of a record that waits to be delivered, if it
// was the first caller's answer to the same request.
func (q *completer) outcomeOf(recordID []byte, fingerprints []*dedupv1.Fingerprint) *dedupv1.Outcome {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.latest[string(recordID)]
	if l == nil || !l.stands || !SameRequest(l.fingerprints, fingerprints) {
		return nil
	}
	return l.complete.GetOutcome()
}

// close goes on delivering for up to d, then gives up what is only in memory.
func (q *completer) close(ctx context.Context, d time.Duration) {
	q.mu.Lock()
	q.closing = true
	q.notBefore = time.Time{}
	for _, l := range q.letters {
		l.due = time.Now()
	}
	q.nudge()
	q.mu.Unlock()
	timer := time.AfterFunc(d, q.end)
	defer timer.Stop()
	for {
		q.mu.Lock()
		running := q.running
		q.closed = running == nil
		q.mu.Unlock()
		if running == nil {
			break
		}
		<-running
	}
	q.end()
	q.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(q.letters), func(l *letter) bool { return l.gone || l.id != 0 })
	q.mu.Unlock()
	for _, l := range left {
		if q.remove(l) {
			q.giveUp(ctx, l)
		}
	}
	if q.journal != nil {
		q.journal.close()
	}
}

func (l *letter) message() proto.Message {
	switch {
	case l.complete != nil:
		return l.complete
	case l.park != nil:
		return l.park
	}
	return l.release
}
