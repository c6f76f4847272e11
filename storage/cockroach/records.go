package cockroach

import (
	"context"

	"github.com/dedupd/dedupd/storage"
)

// BeginRun turns a live RECONCILE grant into a running one.
func (s *Store) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return s.judged(ctx, id, q)
}

// Resolve carries an operator's verdict.
func (s *Store) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return s.judged(ctx, id, q)
}

// Redact erases what a record and its entries tell of a person.
func (s *Store) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return s.judged(ctx, id, q)
}

// Forget deletes a record and its entries.
func (s *Store) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return s.judged(ctx, id, q)
}

// judged answers a call that begins in a transaction.
func (s *Store) judged(ctx context.Context, id storage.RecordID, q storage.Request) (storage.Answer, error) {
	return do(ctx, s, func(ctx, caller context.Context) (storage.Answer, error) { return s.judge(ctx, caller, id, q) })
}

// Lookup reads a record, without a lock.
func (s *Store) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return do(ctx, s, func(ctx, caller context.Context) (storage.Answer, error) {
		found, now, err := s.readIDs(ctx, caller, [][]byte{id[:]})
		if err != nil {
			return storage.Answer{}, err
		}
		_, ans := storage.Apply(found[id], q, now, s.Skew())
		return ans, nil
	})
}
