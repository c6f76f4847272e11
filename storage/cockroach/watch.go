package cockroach

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/storage"
)

// A caller that waits for a record may wait for another process. The databases
// cannot tell us (CockroachDB has no LISTEN), so one poller asks for the versions
// of all records that are waited for: one read a poll, however many wait.

// Bounds of the pauses between two polls of a record: they grow while nothing
// happens, and are jittered within the upper half.
const (
	firstPoll   = 50 * time.Millisecond
	slowestPoll = 250 * time.Millisecond
	maxPolled   = 1000 // records in one read
)

// Changed returns nil once the record's version is not the given one, whoever
// wrote it; a version of zero means no record. It notices a change of another
// process within 250 ms and a read. The end of a lease is no change. It returns
// ctx's error when ctx ends first, and ErrClosed when the store is closed.
func (s *Store) Changed(ctx context.Context, id storage.RecordID, version int64) error {
	if !s.begin() {
		return storage.ErrClosed
	}
	defer s.calls.Done()
	changed, leave := s.watch.join(id, version)
	defer leave()
	select {
	case <-changed:
		return nil
	case <-s.closing:
		return storage.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

const versionsOfSQL = `/* dedupd watch */ SELECT id, version FROM dedup_records WHERE id = ANY($1::BYTEA[])`

// versions reads the versions of records; those that are absent are missing.
func (s *Store) versions(ids [][]byte) (map[storage.RecordID]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	found := make(map[storage.RecordID]int64, len(ids))
	err := s.onConn(ctx, ctx, func(conn *pgxpool.Conn) error {
		rows, err := conn.Query(ctx, versionsOfSQL, ids)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id []byte
			var version int64
			if err := rows.Scan(&id, &version); err != nil {
				return err
			}
			if len(id) != len(storage.RecordID{}) {
				return errCorrupt
			}
			found[storage.RecordID(id)] = version
		}
		return rows.Err()
	})
	return found, err
}

// watcher polls for those who wait. Its poller lives as long as somebody does.
type watcher struct {
	read func(ids [][]byte) (map[storage.RecordID]int64, error)
	work *sync.WaitGroup // of the poller

	mu      sync.Mutex
	records map[storage.RecordID]*watched
	kick    chan struct{} // holds one: there is a record to poll sooner; nil without a poller
}

// watched is a record that somebody waits for.
type watched struct {
	waiting map[chan struct{}]int64 // to be closed when the version is another
	pause   time.Duration
	due     time.Time
}

// join returns a channel that is closed once the record's version is another, and
// what to call at the end.
func (w *watcher) join(id storage.RecordID, version int64) (changed <-chan struct{}, leave func()) {
	c := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.records == nil {
		w.records = map[storage.RecordID]*watched{}
	}
	r := w.records[id]
	if r == nil {
		r = &watched{waiting: map[chan struct{}]int64{}, pause: firstPoll}
		r.due = time.Now().Add(jittered(r.pause))
		w.records[id] = r
	}
	r.waiting[c] = version
	if w.kick == nil {
		kick := make(chan struct{}, 1)
		w.kick = kick
		w.work.Go(func() { w.poll(kick) })
	}
	w.wakeLocked()
	return c, func() { w.leave(id, c) }
}

func (w *watcher) leave(id storage.RecordID, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.records[id]
	if r == nil {
		return
	}
	delete(r.waiting, c)
	if len(r.waiting) == 0 {
		delete(w.records, id)
		w.wakeLocked()
	}
}

func (w *watcher) wakeLocked() {
	select {
	case w.kick <- struct{}{}:
	default: // it is awake, or there is none
	}
}

// poll reads what is due until nobody waits.
func (w *watcher) poll(kick <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		ids, pause, some := w.due(time.Now())
		if !some {
			return
		}
		if len(ids) > 0 {
			found, err := w.read(ids)
			w.polled(ids, found, err)
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-kick:
		}
	}
}

// due returns the records to read now, or how long there is nothing to read. When
// nobody waits any longer the poller is done.
func (w *watcher) due(now time.Time) (ids [][]byte, pause time.Duration, some bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.records) == 0 {
		w.kick = nil
		return nil, 0, false
	}
	pause = slowestPoll
	for id, r := range w.records {
		left := r.due.Sub(now)
		if left > 0 {
			pause = min(pause, left)
		} else if len(ids) < maxPolled {
			ids = append(ids, id[:])
		}
	}
	return ids, pause, true
}

// polled wakes those whose record changed. A read that failed is made again: those
// who wait have their own end.
func (w *watcher) polled(ids [][]byte, found map[storage.RecordID]int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range ids {
		id := storage.RecordID(b)
		r := w.records[id]
		if r == nil {
			continue
		}
		r.pause = min(2*r.pause, slowestPoll)
		r.due = time.Now().Add(jittered(r.pause))
		if err != nil {
			continue
		}
		for c, version := range r.waiting {
			if version != found[id] {
				close(c)
				delete(r.waiting, c)
			}
		}
		if len(r.waiting) == 0 {
			delete(w.records, id)
		}
	}
}

// jittered is between half of d and d.
func jittered(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2) + 1 //nolint:gosec // jitter is no secret
}
