package embedded

import (
	"context"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// keptBuffer is the largest buffer that is kept for the next record.
const keptBuffer = 64 << 10

func (s *Store) buffer() *[]byte {
	b, ok := s.buffers.Get().(*[]byte)
	if !ok {
		return new([]byte)
	}
	return b
}

func (s *Store) giveBuffer(b *[]byte) {
	if cap(*b) <= keptBuffer {
		s.buffers.Put(b)
	}
}

// commit makes the batch durable, which was judged at now. It writes nothing
// for a caller that has given up; later than that it sees the write through.
func (s *Store) commit(ctx context.Context, b *pebble.Batch, now storage.Instant) error {
	if err := s.enter(ctx, b, now); err != nil {
		return err
	}
	err := b.SyncWait()
	if failed := s.failed.load(); failed != nil {
		return s.unavailable(failed)
	}
	if err != nil {
		s.failed.set(err)
		return s.unavailable(err)
	}
	return nil
}

// enter puts the batch into Pebble's log and memtable, unsynced. One batch at a
// time, so that the stored time enters the log before any record it is for.
func (s *Store) enter(ctx context.Context, b *pebble.Batch, now storage.Instant) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if err := s.failed.load(); err != nil {
		return s.unavailable(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if now >= s.stored.Add(clockStep) {
		if err := s.storeClock(b, now); err != nil {
			return err
		}
	}
	if err := s.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		s.failed.set(err)
		return s.unavailable(err)
	}
	return nil
}

func (s *Store) storeClock(b *pebble.Batch, now storage.Instant) error {
	var value [8]byte
	binary.BigEndian.PutUint64(value[:], uint64(now)) //nolint:gosec // instants are never negative
	if err := b.Set([]byte{prefixClock}, value[:], nil); err != nil {
		return err
	}
	s.stored = now
	return nil
}
