package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// Keys begin with a byte that says what they hold. A record's key ends in its
// id, which is a hash: writes spread evenly and keys stay short.
const (
	prefixClock      = 'c' // the stored time, see clockStep
	prefixRecord     = 'r' // id → record (codec.go)
	prefixUnfinished = 'u' // id of a record stored as RESERVED or UNKNOWN → nothing
	prefixEnd        = 'x' // DropAt, big endian, and id → nothing
	prefixMemo       = 'm' // name → memo

	prefixEntry    = 'd' // entry id → dead letter, without its request (deadletter_codec.go)
	prefixBody     = 'b' // entry id → its request
	prefixEntryOf  = 'e' // record id and entry id → nothing
	prefixOpen     = 'o' // entry id of an open one → nothing
	prefixOpenIn   = 'n' // namespace, zero and entry id of an open one → nothing
	prefixEntryEnd = 'y' // DropAt, big endian, and entry id of a closed one → nothing
)

const idLen = len(storage.RecordID{})

// idKey is the key of a record or of its entry among the unfinished.
type idKey [1 + idLen]byte

func newIDKey(prefix byte, id storage.RecordID) (k idKey) {
	k[0] = prefix
	copy(k[1:], id[:])
	return k
}

func (k *idKey) id() (id storage.RecordID) {
	copy(id[:], k[1:])
	return id
}

// endKey is the key of a record's entry in the order of ends.
type endKey [1 + 8 + idLen]byte

func newEndKey(end storage.Instant, id storage.RecordID) (k endKey) {
	k[0] = prefixEnd
	binary.BigEndian.PutUint64(k[1:], uint64(end)) //nolint:gosec // instants are never negative
	copy(k[9:], id[:])
	return k
}

// lastRecordID is the record id that a key ends with.
func lastRecordID(key []byte) (id storage.RecordID) {
	copy(id[:], key[max(0, len(key)-idLen):])
	return id
}

// read returns the stored record, or nil.
func (s *Store) read(id storage.RecordID) (*storage.Record, error) {
	key := newIDKey(prefixRecord, id)
	value, closer, err := s.db.Get(key[:])
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil //nolint:nilnil // no record is an answer
	}
	if err != nil {
		return nil, s.unavailable(fmt.Errorf("reading record %s: %w", id.Short(), err))
	}
	rec, err := s.codec.decode(value)
	if err == nil {
		err = closer.Close()
	}
	if err != nil {
		return nil, s.unavailable(fmt.Errorf("decoding record %s: %w", id.Short(), err))
	}
	return rec, nil
}

// put writes next in place of old, which may be nil, with its index entries. An
// entry is set once and deleted once, so that it may vanish as soon as both
// meet in a compaction.
func (s *Store) put(b *pebble.Batch, id storage.RecordID, old, next *storage.Record) error {
	if next == nil {
		return nil
	}
	key := newIDKey(prefixRecord, id)
	buf := s.buffer()
	defer s.giveBuffer(buf)
	*buf = s.codec.encode((*buf)[:0], next)
	if err := b.Set(key[:], *buf, nil); err != nil {
		return err
	}
	if was, is := unfinished(old), unfinished(next); was != is {
		key[0] = prefixUnfinished
		if err := setOrDelete(b, key[:], is); err != nil {
			return err
		}
	}
	if from, to := endOf(old), endOf(next); from != to {
		if err := moveEnd(b, id, from, to); err != nil {
			return err
		}
	}
	return nil
}

// drop deletes a record, which may be nil, with its index entries.
func drop(b *pebble.Batch, id storage.RecordID, rec *storage.Record) error {
	if rec == nil {
		return nil
	}
	key := newIDKey(prefixRecord, id)
	if err := b.Delete(key[:], nil); err != nil {
		return err
	}
	if unfinished(rec) {
		key[0] = prefixUnfinished
		if err := b.SingleDelete(key[:], nil); err != nil {
			return err
		}
	}
	return moveEnd(b, id, endOf(rec), 0)
}

func moveEnd(b *pebble.Batch, id storage.RecordID, from, to storage.Instant) error {
	if from != 0 {
		key := newEndKey(from, id)
		if err := b.SingleDelete(key[:], nil); err != nil {
			return err
		}
	}
	if to == 0 {
		return nil
	}
	key := newEndKey(to, id)
	return b.Set(key[:], nil, nil)
}

func setOrDelete(b *pebble.Batch, key []byte, set bool) error {
	if set {
		return b.Set(key, nil, nil)
	}
	return b.SingleDelete(key, nil)
}

func unfinished(r *storage.Record) bool {
	return r != nil && (r.State == storage.StateReserved || r.State == storage.StateUnknown)
}

// endOf is when the record may be swept; zero where it has no end, or dead
// letters hold it.
func endOf(r *storage.Record) storage.Instant {
	if r == nil || r.Pins > 0 {
		return 0
	}
	return r.DropAt
}
