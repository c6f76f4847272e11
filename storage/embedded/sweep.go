package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// sweepBatch is how many records or dead letters one batch deletes at most.
const sweepBatch = 256

// Sweep implements storage.Maintenance. It deletes in batches of at most 256 and
// leaves records that somebody is working on for the next time.
func (s *Store) Sweep(ctx context.Context, limit int) (int, error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.life.RUnlock()
	total := 0
	for _, of := range [...]sweepable{
		{prefix: prefixEnd, record: func(key []byte) (storage.RecordID, error) { return lastRecordID(key), nil }, drop: s.sweepRecord},
		{prefix: prefixEntryEnd, record: s.recordOfEntry, drop: s.sweepEntry},
	} {
		after := []byte{of.prefix}
		for total < limit {
			n, last, err := s.sweepOnce(ctx, of, after, min(sweepBatch, limit-total))
			total += n
			if err != nil {
				return total, err
			}
			if bytes.Equal(last, after) {
				break
			}
			after = last
		}
	}
	return total, nil
}

// sweepable are keys in the order of ends, and what they stand for.
type sweepable struct {
	prefix byte
	record func(key []byte) (storage.RecordID, error) // whose lock it takes
	drop   func(b *pebble.Batch, key []byte) (bool, error)
}

// sweepOnce deletes up to limit of those whose end comes after the key given and
// has passed; it returns the last key that it looked at.
func (s *Store) sweepOnce(ctx context.Context, of sweepable, after []byte, limit int) (n int, last []byte, err error) {
	ends, err := s.ended(ctx, of.prefix, after, limit)
	if err != nil || len(ends) == 0 {
		return 0, after, err
	}
	b := s.db.NewBatch()
	var locked []storage.RecordID
	defer func() {
		for _, id := range locked {
			s.keys.unlock(id)
		}
	}()
	for _, key := range ends {
		id, err := of.record(key)
		if err != nil {
			return 0, after, err
		}
		if !slices.Contains(locked, id) {
			if !s.keys.tryLock(id) {
				continue
			}
			locked = append(locked, id)
		}
		dropped, err := of.drop(b, key)
		if err != nil {
			return 0, after, err
		}
		if dropped {
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
func (s *Store) sweepRecord(b *pebble.Batch, key []byte) (bool, error) {
	id := lastRecordID(key)
	rec, err := s.read(id)
	if err != nil || rec == nil || !rec.OverAt(s.clock.now()) {
		return false, err
	}
	if err := drop(b, id, rec); err != nil {
		return false, s.unavailable(err)
	}
	return true, nil
}

func (s *Store) recordOfEntry(key []byte) (id storage.RecordID, err error) {
	e, err := s.readEntry(lastID(key))
	if e != nil {
		id = e.Record
	}
	return id, err
}

// sweepEntry deletes the closed dead letter whose hold time is over.
func (s *Store) sweepEntry(b *pebble.Batch, key []byte) (bool, error) {
	e, err := s.readEntry(lastID(key))
	if err != nil || e == nil || e.DropAt == 0 || s.clock.now() < e.DropAt {
		return false, err
	}
	if err := dropEntry(b, e); err != nil {
		return false, s.unavailable(err)
	}
	return true, nil
}

// ended returns the first keys after the one given whose end has passed.
func (s *Store) ended(ctx context.Context, prefix byte, after []byte, limit int) ([][]byte, error) {
	upper := binary.BigEndian.AppendUint64([]byte{prefix}, uint64(s.clock.now()+1)) //nolint:gosec // instants are never negative
	iter, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: append(slices.Clip(after), 0), UpperBound: upper})
	if err != nil {
		return nil, s.unavailable(err)
	}
	ends := make([][]byte, 0, limit)
	for valid := iter.First(); valid && len(ends) < limit; valid = iter.Next() {
		ends = append(ends, slices.Clone(iter.Key()))
	}
	if err := errors.Join(iter.Error(), iter.Close()); err != nil {
		return nil, s.unavailable(err)
	}
	return ends, nil
}
