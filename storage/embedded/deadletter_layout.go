package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

const entryIDLen = len(storage.EntryID{})

// entryKey is the key of a dead letter, of its request, or of its entry among
// the open ones.
type entryKey [1 + entryIDLen]byte

func newEntryKey(prefix byte, id storage.EntryID) (k entryKey) {
	k[0] = prefix
	copy(k[1:], id[:])
	return k
}

// entryOfKey tells which entries a record has, closed ones too.
type entryOfKey [1 + idLen + entryIDLen]byte

func newEntryOfKey(of storage.RecordID, id storage.EntryID) (k entryOfKey) {
	k[0] = prefixEntryOf
	copy(k[1:], of[:])
	copy(k[1+idLen:], id[:])
	return k
}

// openInKey is the key of an open entry in its namespace; a namespace holds no
// zero byte.
func openInKey(namespace string, id storage.EntryID) []byte {
	return append(openInPrefix(namespace), id[:]...)
}

func openInPrefix(namespace string) []byte {
	k := make([]byte, 0, 2+len(namespace)+entryIDLen)
	k = append(k, prefixOpenIn)
	k = append(k, namespace...)
	return append(k, 0)
}

// entryEndKey is the key of a closed entry in the order of ends.
type entryEndKey [1 + 8 + entryIDLen]byte

func newEntryEndKey(end storage.Instant, id storage.EntryID) (k entryEndKey) {
	k[0] = prefixEntryEnd
	binary.BigEndian.PutUint64(k[1:], uint64(end)) //nolint:gosec // instants are never negative
	copy(k[9:], id[:])
	return k
}

// lastID is the entry id that a key ends with.
func lastID(key []byte) (id storage.EntryID) {
	copy(id[:], key[max(0, len(key)-entryIDLen):])
	return id
}

// readEntry returns the stored entry without its request, or nil.
func (s *Store) readEntry(id storage.EntryID) (*storage.DeadLetter, error) {
	key := newEntryKey(prefixEntry, id)
	value, closer, err := s.db.Get(key[:])
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil //nolint:nilnil // no entry is an answer
	}
	if err != nil {
		return nil, s.unavailable(fmt.Errorf("reading a dead letter: %w", err))
	}
	e, err := s.codec.decodeEntry(id, value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return nil, s.unavailable(fmt.Errorf("decoding a dead letter: %w", err))
	}
	return e, nil
}

// withRequest returns e with its request.
func (s *Store) withRequest(e *storage.DeadLetter) (*storage.DeadLetter, error) {
	if !e.HasRequest {
		return e, nil
	}
	key := newEntryKey(prefixBody, e.ID)
	value, closer, err := s.db.Get(key[:])
	if errors.Is(err, pebble.ErrNotFound) {
		return e, nil // an empty one
	}
	if err != nil {
		return nil, s.unavailable(fmt.Errorf("reading a dead letter's request: %w", err))
	}
	c := *e
	c.Request, err = s.codec.decodeBody(value)
	if err = errors.Join(err, closer.Close()); err != nil {
		return nil, s.unavailable(fmt.Errorf("decoding a dead letter's request: %w", err))
	}
	return &c, nil
}

// entriesOf returns the record's entries that are wanted, oldest first, without
// their requests.
func (s *Store) entriesOf(of storage.RecordID, wanted func(*storage.DeadLetter) bool) (all []*storage.DeadLetter, err error) {
	lower, upper := newEntryOfKey(of, storage.EntryID{}), newEntryOfKey(of, lastEntryID())
	iter, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower[:], UpperBound: upper[:]})
	if err != nil {
		return nil, s.unavailable(err)
	}
	var ids []storage.EntryID
	for valid := iter.First(); valid; valid = iter.Next() {
		ids = append(ids, lastID(iter.Key()))
	}
	if err := errors.Join(iter.Error(), iter.Close()); err != nil {
		return nil, s.unavailable(err)
	}
	for _, id := range ids {
		e, err := s.readEntry(id)
		if err != nil {
			return nil, err
		}
		if e != nil && wanted(e) {
			all = append(all, e)
		}
	}
	return all, nil
}

// lastEntryID is above every id: it is an instant that no clock reaches.
func lastEntryID() (id storage.EntryID) {
	for i := range id {
		id[i] = 0xff
	}
	return id
}

// putEntry writes next in place of old, which may be nil, with its index entries
// and, if it was told with this step, its request.
func (s *Store) putEntry(b *pebble.Batch, old, next *storage.DeadLetter, told bool) error {
	key := newEntryKey(prefixEntry, next.ID)
	buf := s.buffer()
	defer s.giveBuffer(buf)
	*buf = s.codec.encodeEntry((*buf)[:0], next)
	if err := b.Set(key[:], *buf, nil); err != nil {
		return err
	}
	if err := s.putBody(b, old, next, told); err != nil {
		return err
	}
	if old == nil {
		of := newEntryOfKey(next.Record, next.ID)
		if err := b.Set(of[:], nil, nil); err != nil {
			return err
		}
	}
	if was, is := old != nil && old.Open(), next.Open(); was != is {
		if err := setOpen(b, next, is); err != nil {
			return err
		}
	}
	if next.DropAt == 0 || old != nil && old.DropAt == next.DropAt {
		return nil
	}
	end := newEntryEndKey(next.DropAt, next.ID)
	return b.Set(end[:], nil, nil)
}

func (s *Store) putBody(b *pebble.Batch, old, next *storage.DeadLetter, told bool) error {
	key := newEntryKey(prefixBody, next.ID)
	switch {
	case told && len(next.Request) > 0:
		return b.Set(key[:], s.codec.encodeBody(nil, next.Request), nil)
	case told, old != nil && old.HasRequest && !next.HasRequest:
		return b.Delete(key[:], nil)
	}
	return nil
}

func setOpen(b *pebble.Batch, e *storage.DeadLetter, open bool) error {
	key := newEntryKey(prefixOpen, e.ID)
	if err := setOrDelete(b, key[:], open); err != nil {
		return err
	}
	return setOrDelete(b, openInKey(e.Identity.Namespace, e.ID), open)
}

// dropEntry deletes an entry with all that belongs to it.
func dropEntry(b *pebble.Batch, e *storage.DeadLetter) error {
	for _, prefix := range [...]byte{prefixEntry, prefixBody} {
		key := newEntryKey(prefix, e.ID)
		if err := b.Delete(key[:], nil); err != nil {
			return err
		}
	}
	of := newEntryOfKey(e.Record, e.ID)
	if err := b.SingleDelete(of[:], nil); err != nil {
		return err
	}
	if e.Open() {
		if err := setOpen(b, e, false); err != nil {
			return err
		}
	}
	if e.DropAt == 0 {
		return nil
	}
	end := newEntryEndKey(e.DropAt, e.ID)
	return b.SingleDelete(end[:], nil)
}
