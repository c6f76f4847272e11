package embedded

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// CheckIndexes compares the index entries with the records, both ways.
func (s *Store) CheckIndexes() error {
	entries := map[string]bool{}
	iter, err := s.db.NewIter(nil)
	if err != nil {
		return err
	}
	want := map[string]bool{}
	for valid := iter.First(); valid; valid = iter.Next() {
		key := string(iter.Key())
		switch key[0] {
		case prefixUnfinished, prefixEnd:
			entries[key] = true
		case prefixRecord:
			rec, err := s.codec.decode(iter.Value())
			if err != nil {
				return errors.Join(err, iter.Close())
			}
			for _, k := range entriesOf(rec) {
				want[k] = true
			}
		}
	}
	for k := range entries {
		if !want[k] {
			err = errors.Join(err, fmt.Errorf("entry %x has no record", k))
		}
		delete(want, k)
	}
	for k := range want {
		err = errors.Join(err, fmt.Errorf("entry %x is missing", k))
	}
	return errors.Join(err, iter.Close())
}

func entriesOf(r *storage.Record) (keys []string) {
	id := r.Identity.RecordID()
	if unfinished(r) {
		k := newIDKey(prefixUnfinished, id)
		keys = append(keys, string(k[:]))
	}
	if r.DropAt != 0 {
		k := newEndKey(r.DropAt, id)
		keys = append(keys, string(k[:]))
	}
	return keys
}

// Metrics are Pebble's own.
func (s *Store) Metrics() *pebble.Metrics { return s.db.Metrics() }

// Compact flushes and compacts all that is stored.
func (s *Store) Compact(ctx context.Context) error {
	if err := s.db.Flush(); err != nil {
		return err
	}
	return s.db.Compact(ctx, []byte{0}, []byte{0xff}, false)
}
