package embedded

import (
	"context"

	"github.com/dedupd/dedupd/storage"
)

// Park implements storage.DeadLetters.
func (s *Store) Park(ctx context.Context, q storage.Park) (storage.Answer, error) {
	return s.apply(ctx, q.RecordID(), q)
}

// Claim implements storage.DeadLetters.
func (s *Store) Claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	return s.applyEntry(ctx, q.Entry, q)
}

// Settle implements storage.DeadLetters.
func (s *Store) Settle(ctx context.Context, q storage.Settle) (storage.Answer, error) {
	return s.applyEntry(ctx, q.Entry, q)
}

// Requeue implements storage.DeadLetters.
func (s *Store) Requeue(ctx context.Context, q storage.Requeue) (storage.Answer, error) {
	return s.applyEntry(ctx, q.Entry, q)
}

// Discard implements storage.DeadLetters.
func (s *Store) Discard(ctx context.Context, q storage.Discard) (storage.Answer, error) {
	return s.applyEntry(ctx, q.Entry, q)
}

// Redact implements storage.Records.
func (s *Store) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return s.apply(ctx, id, q)
}

// Forget implements storage.Records.
func (s *Store) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return s.apply(ctx, id, q)
}

// applyEntry judges a request about one entry, atomically for its record.
func (s *Store) applyEntry(ctx context.Context, id storage.EntryID, q storage.Request) (storage.Answer, error) {
	if err := s.begin(ctx); err != nil {
		return storage.Answer{}, err
	}
	defer s.life.RUnlock()
	e, err := s.readEntry(id)
	if err != nil {
		return storage.Answer{}, err
	}
	if e == nil {
		_, ans := storage.ApplyCase(storage.Case{}, q, s.clock.now(), 0)
		return ans, nil
	}
	return s.judge(ctx, e.Record, q, &id)
}

// Entry implements storage.DeadLetters.
func (s *Store) Entry(ctx context.Context, id storage.EntryID) (storage.Answer, error) {
	if err := s.begin(ctx); err != nil {
		return storage.Answer{}, err
	}
	defer s.life.RUnlock()
	found, err := s.readEntry(id)
	if err != nil {
		return storage.Answer{}, err
	}
	if found == nil {
		return storage.Answer{Verdict: storage.VerdictNotFound, State: storage.StateAbsent, Now: s.clock.now()}, nil
	}
	if err := s.keys.lock(ctx, found.Record); err != nil {
		return storage.Answer{}, err
	}
	defer s.keys.unlock(found.Record)
	return s.tellEntry(id, found.Record)
}

// tellEntry reads an entry whole, under its record's lock.
func (s *Store) tellEntry(id storage.EntryID, of storage.RecordID) (storage.Answer, error) {
	e, err := s.readEntry(id)
	if err == nil && e != nil {
		e, err = s.withRequest(e)
	}
	if err != nil {
		return storage.Answer{}, err
	}
	rec, err := s.read(of)
	if err != nil {
		return storage.Answer{}, err
	}
	if err := s.state(); err != nil {
		return storage.Answer{}, err
	}
	_, ans := storage.Apply(rec, storage.Lookup{}, s.clock.now(), 0)
	ans.Entry = e
	if e == nil {
		ans.Verdict = storage.VerdictNotFound
	}
	return ans, nil
}
