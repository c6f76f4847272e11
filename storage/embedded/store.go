package embedded

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// Reserve implements storage.Records.
func (s *Store) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	if q.Claim != nil {
		return s.applyEntry(ctx, q.Claim.Entry, q) // the record is the entry's
	}
	return s.apply(ctx, q.Identity.RecordID(), q)
}

// BeginRun implements storage.Records.
func (s *Store) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return s.apply(ctx, id, q)
}

// Complete implements storage.Records.
func (s *Store) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return s.apply(ctx, id, q)
}

// Extend implements storage.Records.
func (s *Store) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return s.apply(ctx, id, q)
}

// Release implements storage.Records.
func (s *Store) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return s.apply(ctx, q.Identity.RecordID(), q)
}

// Lookup implements storage.Records.
func (s *Store) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return s.apply(ctx, id, q)
}

// Resolve implements storage.Records.
func (s *Store) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return s.apply(ctx, id, q)
}

// Check implements storage.Maintenance.
func (s *Store) Check(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	_, closer, err := s.db.Get([]byte{prefixClock})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return s.unavailable(err)
	}
	return closer.Close()
}

// Skew implements storage.Maintenance: there is one clock.
func (s *Store) Skew() time.Duration { return 0 }

// begin admits a call, which ends with s.life.RUnlock.
func (s *Store) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.life.RLock()
	if err := s.state(); err != nil {
		s.life.RUnlock()
		return err
	}
	return nil
}

// state reports why the store cannot serve.
func (s *Store) state() error {
	if s.closed {
		return storage.ErrClosed
	}
	if err := s.failed.load(); err != nil {
		return s.unavailable(err)
	}
	return nil
}

// apply judges one request, atomically for its record.
func (s *Store) apply(ctx context.Context, id storage.RecordID, q storage.Request) (storage.Answer, error) {
	if err := s.begin(ctx); err != nil {
		return storage.Answer{}, err
	}
	defer s.life.RUnlock()
	return s.judge(ctx, id, q, nil)
}

// judge judges one request under the record's lock. The entry that it names is
// read where it names one.
func (s *Store) judge(ctx context.Context, id storage.RecordID, q storage.Request, named *storage.EntryID) (storage.Answer, error) {
	if err := s.keys.lock(ctx, id); err != nil {
		return storage.Answer{}, err
	}
	defer s.keys.unlock(id)
	j := judgement{s: s, id: id, named: named}
	if err := j.read(q); err != nil {
		return storage.Answer{}, err
	}
	if err := s.state(); err != nil { // a write of this record may have failed before the lock was ours
		return storage.Answer{}, err
	}
	return j.decide(ctx, q)
}
