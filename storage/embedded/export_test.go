package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// CheckIndexes compares the index entries with the records and the dead letters,
// both ways, the pins with the entries that hold each record, and the count of
// open ones with those there are.
func (s *Store) CheckIndexes() error {
	c := indexCheck{s: s, has: map[string]bool{}, want: map[string]bool{}, pins: map[storage.RecordID]int32{}, open: map[string]int{}}
	iter, err := s.db.NewIter(nil)
	if err != nil {
		return err
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		err = errors.Join(err, c.see(string(iter.Key()), iter.Value()))
	}
	for k := range c.has {
		if !c.want[k] {
			err = errors.Join(err, fmt.Errorf("index entry %x has nothing to stand for", k))
		}
		delete(c.want, k)
	}
	for k := range c.want {
		err = errors.Join(err, fmt.Errorf("index entry %x is missing", k))
	}
	for id, n := range c.pins {
		if n != 0 {
			err = errors.Join(err, fmt.Errorf("record %s has %d pins that are no entries", id.Short(), n))
		}
	}
	if !maps.Equal(c.open, s.parked.in) && len(c.open)+len(s.parked.in) > 0 {
		err = errors.Join(err, fmt.Errorf("open entries are counted as %v, and are %v", s.parked.in, c.open))
	}
	return errors.Join(err, iter.Close())
}

// indexCheck is what CheckIndexes has seen.
type indexCheck struct {
	s         *Store
	has, want map[string]bool
	pins      map[storage.RecordID]int32 // of records, less those of entries
	open      map[string]int
}

func (c *indexCheck) see(key string, value []byte) error {
	switch key[0] {
	case prefixRecord:
		rec, err := c.s.codec.decode(value)
		if err != nil {
			return err
		}
		id := lastRecordID([]byte(key))
		if rec.ID() != id {
			return fmt.Errorf("record %s says that it is %s", id.Short(), rec.ID().Short())
		}
		c.pins[id] += rec.Pins
		c.record(id, rec)
	case prefixEntry:
		e, err := c.s.codec.decodeEntry(lastID([]byte(key)), value)
		if err != nil {
			return err
		}
		c.entry(e)
	case prefixClock:
	default:
		c.has[key] = true
	}
	return nil
}

func (c *indexCheck) record(id storage.RecordID, r *storage.Record) {
	if unfinished(r) {
		k := newIDKey(prefixUnfinished, id)
		c.want[string(k[:])] = true
	}
	if end := endOf(r); end != 0 {
		k := newEndKey(end, id)
		c.want[string(k[:])] = true
	}
}

func (c *indexCheck) entry(e *storage.DeadLetter) {
	of := newEntryOfKey(e.Record, e.ID)
	c.want[string(of[:])] = true
	if e.Pinned {
		c.pins[e.Record]--
	}
	if e.HasRequest {
		k := newEntryKey(prefixBody, e.ID)
		c.want[string(k[:])] = true
	}
	if e.Open() {
		k := newEntryKey(prefixOpen, e.ID)
		c.want[string(k[:])] = true
		c.want[string(openInKey(e.Identity.Namespace, e.ID))] = true
		c.open[e.Identity.Namespace]++
	}
	if e.DropAt != 0 {
		k := newEntryEndKey(e.DropAt, e.ID)
		c.want[string(k[:])] = true
	}
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
