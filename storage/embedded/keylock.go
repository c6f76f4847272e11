package embedded

import (
	"context"
	"sync"

	"github.com/dedupd/dedupd/storage"
)

// lockShards is a power of two; more shards than callers keep shards idle.
const lockShards = 256

// keyLocks locks single records, first come first served. The zero value is
// ready for use.
type keyLocks [lockShards]lockShard

type lockShard struct {
	mu sync.Mutex
	// held has an entry for each locked record: those that wait for it, in order.
	held map[storage.RecordID][]chan struct{}
}

func (l *keyLocks) shard(id storage.RecordID) *lockShard { return &l[id[0]&(lockShards-1)] }

// lock waits for the record until ctx ends.
func (l *keyLocks) lock(ctx context.Context, id storage.RecordID) error {
	s := l.shard(id)
	s.mu.Lock()
	waiters, held := s.held[id]
	if !held {
		s.holdLocked(id)
		s.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	s.held[id] = append(waiters, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	if !s.leave(id, turn) {
		l.unlock(id) // handed over just now
	}
	return ctx.Err()
}

// tryLock takes the record if nobody has it.
func (l *keyLocks) tryLock(id storage.RecordID) bool {
	s := l.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.held[id]; held {
		return false
	}
	s.holdLocked(id)
	return true
}

// unlock hands the record to the first that waits for it.
func (l *keyLocks) unlock(id storage.RecordID) {
	s := l.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	waiters := s.held[id]
	if len(waiters) == 0 {
		delete(s.held, id)
		return
	}
	close(waiters[0])
	s.held[id] = waiters[1:]
}

func (s *lockShard) holdLocked(id storage.RecordID) {
	if s.held == nil {
		s.held = map[storage.RecordID][]chan struct{}{}
	}
	s.held[id] = nil
}

// leave takes turn out of the line and reports whether it still stood there.
func (s *lockShard) leave(id storage.RecordID, turn chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiters := s.held[id]
	for i, w := range waiters {
		if w == turn {
			s.held[id] = append(waiters[:i:i], waiters[i+1:]...)
			return true
		}
	}
	return false
}
