package dedupdtest

import (
	"context"
	"sync"
	"time"

	"github.com/dedupd/dedupd/storage"
)

// memory is the rules over a map, with a clock that can be put forward.
type memory struct {
	mu      sync.Mutex
	rows    map[storage.RecordID]*storage.Record
	letters map[storage.EntryID]*storage.DeadLetter
	ahead   time.Duration
}

func newMemory() *memory {
	return &memory{rows: map[storage.RecordID]*storage.Record{}, letters: map[storage.EntryID]*storage.DeadLetter{}}
}

var _ storage.Store = (*memory)(nil)

func (s *memory) judge(ctx context.Context, id storage.RecordID, q storage.Request) (storage.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return storage.Answer{}, err
	}
	change, ans := storage.ApplyCase(storage.Case{Record: s.rows[id], Entries: s.lettersLocked(id)}, q, s.nowLocked(), 0)
	s.writeLocked(id, change)
	return ans, nil
}

func (s *memory) nowLocked() storage.Instant { return storage.InstantOf(time.Now().Add(s.ahead)) }

// lapse puts the clock forward until every lease has been over for long enough:
// a second, or as many more leases.
func (s *memory) lapse(leases int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		past := r.LeaseEnd.Add(time.Second + time.Duration(leases)*r.Lease).Sub(s.nowLocked())
		s.ahead += max(0, past)
	}
}

func (s *memory) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	if q.Claim != nil { // of a replay: the record is the entry's, whoever asks
		if e := s.letter(q.Claim.Entry); e != nil {
			return s.judge(ctx, e.Record, q)
		}
	}
	return s.judge(ctx, q.Identity.RecordID(), q)
}

func (s *memory) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return s.judge(ctx, q.Identity.RecordID(), q)
}

func (s *memory) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *memory) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *memory) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *memory) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *memory) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

// Redact erases what a record tells of a person.
func (s *memory) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

// Forget deletes a record.
func (s *memory) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

// List is for operators; a test has none.
func (s *memory) List(context.Context, storage.List) (storage.Page, error) {
	return storage.Page{}, nil
}
func (s *memory) Sweep(context.Context, int) (int, error) { return 0, nil }
func (s *memory) Check(context.Context) error             { return nil }
func (s *memory) Skew() time.Duration                     { return 0 }
func (s *memory) Close() error                            { return nil }
