package embedded

import (
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// sweepBatch is how many records one batch deletes at most.
const sweepBatch = 256

// Sweep implements storage.Maintenance. It deletes in batches of at most 256
// records and leaves records that somebody is working on for the next time.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	total := 0
	var after endKey
	after[0] = prefixEnd
	for total < limit {
		n, last, err := s.sweepOnce(ctx, after, min(sweepBatch, limit-total))
		total += n
		if err != nil || last == after {
			return total, err
		}
		after = last
	}
	return total, nil
}

// sweepOnce deletes up to limit of the records whose end comes after the entry
// given and has passed; it returns the last entry that it looked at.
func (s *Store) sweepOnce(ctx context.Context, after endKey, limit int) (n int, last endKey, err error) {
	ends, err := s.ended(ctx, after, limit)
	if err != nil || len(ends) == 0 {
		return 0, after, err
	}
	b := s.db.NewBatch()
	for _, e := range ends {
		id := e.id()
		if !s.keys.tryLock(id) {
			continue
		}
		defer s.keys.unlock(id)
		deleted, err := s.sweepRecord(b, id)
		if err != nil {
			return 0, after, err
		}
		if deleted {
			n++
		}
	}
	if n > 0 {
		if err := s.commit(ctx, b, s.clock.now()); err != nil {
			return 0, after, err
		}
	}
	return n, ends[len(ends)-1], b.Close()
}

// sweepRecord deletes the record if its time is over, judged anew now that it is
// locked.
func (s *Store) sweepRecord(b *pebble.Batch, id storage.RecordID) (bool, error) {
	rec, err := s.read(id)
	if err != nil || rec == nil || rec.DropAt == 0 || s.clock.now() < rec.DropAt {
		return false, err
	}
	if err := drop(b, id, rec); err != nil {
		return false, s.unavailable(err)
	}
	return true, nil
}

// ended returns the first entries after the one given whose end has passed.
func (s *Store) ended(ctx context.Context, after endKey, limit int) ([]endKey, error) {
	upper := newEndKey(s.clock.now()+1, storage.RecordID{})
	iter, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{
		LowerBound: append(after[:len(after):len(after)], 0), UpperBound: upper[:],
	})
	if err != nil {
		return nil, s.unavailable(err)
	}
	ends := make([]endKey, 0, limit)
	for valid := iter.First(); valid && len(ends) < limit; valid = iter.Next() {
		var e endKey
		if copy(e[:], iter.Key()) == len(e) {
			ends = append(ends, e)
		}
	}
	if err := errors.Join(iter.Error(), iter.Close()); err != nil {
		return nil, s.unavailable(err)
	}
	return ends, nil
}
