package embedded

import (
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// A page reads no more than this many rows, and no more bytes than this beyond
// its first record.
const (
	pageRows  = 10_000
	pageBytes = 4 << 20
)

// List implements storage.Records. What a page shows is on disk.
func (s *Store) List(ctx context.Context, q storage.List) (storage.Page, error) {
	if err := s.begin(ctx); err != nil {
		return storage.Page{}, err
	}
	defer s.life.RUnlock()
	l := lister{s: s, q: q, prefix: prefixRecord, page: storage.Page{Now: s.clock.now()}}
	if q.UnfinishedOnly() {
		l.prefix = prefixUnfinished
	}
	if err := l.run(ctx); err != nil {
		return storage.Page{}, err
	}
	if err := s.barrier(ctx, l.page.Now); err != nil {
		return storage.Page{}, err
	}
	return l.page, nil
}

// barrier waits until all that was applied so far is on disk.
func (s *Store) barrier(ctx context.Context, now storage.Instant) error {
	b := s.db.NewBatch()
	if err := b.LogData([]byte{prefixClock}, nil); err != nil {
		return s.unavailable(err)
	}
	if err := s.commit(ctx, b, now); err != nil {
		return err
	}
	return b.Close()
}

// lister reads one page.
type lister struct {
	s      *Store
	q      storage.List
	prefix byte
	page   storage.Page
	rows   int
	bytes  int
}

func (l *lister) run(ctx context.Context) error {
	from := newIDKey(l.prefix, l.q.After)
	lower := from[:]
	if l.q.After != (storage.RecordID{}) {
		lower = append(lower, 0) // the next possible key
	}
	iter, err := l.s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: []byte{l.prefix + 1}})
	if err != nil {
		return l.s.unavailable(err)
	}
	err = l.fill(ctx, iter)
	if fault := errors.Join(iter.Error(), iter.Close()); err == nil && fault != nil {
		err = l.s.unavailable(fault)
	}
	return err
}

func (l *lister) fill(ctx context.Context, iter *pebble.Iterator) error {
	var last idKey
	for valid := iter.First(); valid; valid = iter.Next() {
		if len(l.page.Records) >= l.q.Limit || l.rows >= pageRows || l.bytes >= pageBytes {
			l.page.Next = last.id()
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if copy(last[:], iter.Key()) != len(last) {
			return l.s.unavailable(errCorrupt)
		}
		l.rows++
		rec, err := l.record(iter, last.id())
		if err != nil {
			return err
		}
		if rec != nil && l.q.Wants(rec, l.page.Now, 0) {
			l.page.Records = append(l.page.Records, rec)
		}
	}
	return nil
}

// record returns the record of the row, nil where it was settled or dropped
// since the iterator was made.
func (l *lister) record(iter *pebble.Iterator, id storage.RecordID) (*storage.Record, error) {
	if l.prefix == prefixUnfinished {
		return l.s.read(id)
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return nil, l.s.unavailable(err)
	}
	l.bytes += len(value)
	rec, err := l.s.codec.decode(value)
	if err != nil {
		return nil, l.s.unavailable(err)
	}
	return rec, nil
}
