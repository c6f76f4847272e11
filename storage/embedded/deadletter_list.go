package embedded

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// Entries implements storage.DeadLetters. What a page shows is on disk.
func (s *Store) Entries(ctx context.Context, q storage.ListEntries) (storage.EntryPage, error) {
	if err := s.begin(ctx); err != nil {
		return storage.EntryPage{}, err
	}
	defer s.life.RUnlock()
	page := storage.EntryPage{Now: s.clock.now()}
	rows, size := 0, 0
	var last storage.EntryID
	err := s.scanEntries(ctx, q, func(e *storage.DeadLetter, stored int) bool {
		if len(page.Entries) >= q.Limit || rows >= pageRows || size >= pageBytes {
			page.Next = last
			return false
		}
		last = e.ID
		rows++
		size += stored
		if q.Wants(e, page.Now) {
			page.Entries = append(page.Entries, e)
		}
		return true
	})
	if err != nil {
		return storage.EntryPage{}, err
	}
	if err := s.barrier(ctx, page.Now); err != nil {
		return storage.EntryPage{}, err
	}
	return page, nil
}

// Groups implements storage.DeadLetters.
func (s *Store) Groups(ctx context.Context, q storage.ListEntries) ([]storage.EntryGroup, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	q.After, q.Newest = storage.EntryID{}, false
	now := s.clock.now()
	groups := map[storage.EntryGroup]*storage.EntryGroup{} // by what they have in common
	err := s.scanEntries(ctx, q, func(e *storage.DeadLetter, _ int) bool {
		if q.Wants(e, now) {
			addToGroup(groups, e)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	all := make([]storage.EntryGroup, 0, len(groups))
	for _, g := range groups {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b storage.EntryGroup) int {
		return cmp.Or(cmp.Compare(b.Entries, a.Entries), cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Operation, b.Operation),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Signature, b.Signature))
	})
	return all[:min(len(all), q.Limit)], nil
}

func addToGroup(groups map[storage.EntryGroup]*storage.EntryGroup, e *storage.DeadLetter) {
	g := groupOf(groups, storage.EntryGroup{
		Namespace: e.Identity.Namespace, Operation: e.Identity.Operation, Kind: e.Kind, Code: e.Code, Signature: e.Signature,
	})
	g.Entries++
	g.Count += e.Count
	g.Oldest = older(g.Oldest, e.ParkedAt)
	if e.ParkedAt >= g.Newest {
		g.Newest, g.Sample = e.ParkedAt, e.ID
	}
}

// scanEntries calls see with every entry that q may choose, in q's order, with
// the bytes that it is stored in, until see returns false. It reads no more
// entries than the best index for q has.
func (s *Store) scanEntries(ctx context.Context, q storage.ListEntries, see func(*storage.DeadLetter, int) bool) error {
	lower := entryIndex(q)
	bounds := &pebble.IterOptions{LowerBound: lower, UpperBound: after(lower)}
	switch from := slices.Concat(lower, q.After[:]); {
	case q.After == storage.EntryID{}:
	case q.Newest:
		bounds.UpperBound = from
	default:
		bounds.LowerBound = slices.Concat(from, []byte{0})
	}
	iter, err := s.db.NewIterWithContext(ctx, bounds)
	if err != nil {
		return s.unavailable(err)
	}
	err = s.walkEntries(ctx, iter, q.Newest, see)
	if fault := errors.Join(iter.Error(), iter.Close()); err == nil && fault != nil {
		err = s.unavailable(fault)
	}
	return err
}

func (s *Store) walkEntries(ctx context.Context, iter *pebble.Iterator, newest bool, see func(*storage.DeadLetter, int) bool) error {
	first, next := iter.First, iter.Next
	if newest {
		first, next = iter.Last, iter.Prev
	}
	for valid := first(); valid; valid = next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, size, err := s.entryAt(iter)
		if err != nil {
			return err
		}
		if e != nil && !see(e, size) {
			return nil
		}
	}
	return nil
}

// entryAt returns the entry of the row, nil where it was dropped since the
// iterator was made.
func (s *Store) entryAt(iter *pebble.Iterator) (*storage.DeadLetter, int, error) {
	id := lastID(iter.Key())
	if iter.Key()[0] != prefixEntry {
		e, err := s.readEntry(id)
		return e, 0, err
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return nil, 0, s.unavailable(err)
	}
	e, err := s.codec.decodeEntry(id, value)
	if err != nil {
		return nil, 0, s.unavailable(err)
	}
	return e, len(value), nil
}

// entryIndex is the prefix of the shortest row of keys that holds all that q
// chooses; each key ends in an entry's id.
func entryIndex(q storage.ListEntries) []byte {
	switch {
	case q.Record != (storage.RecordID{}):
		key := newEntryOfKey(q.Record, storage.EntryID{})
		return key[:1+idLen]
	case q.OpenOnly() && q.Namespace != "":
		return openInPrefix(q.Namespace)
	case q.OpenOnly():
		return []byte{prefixOpen}
	}
	return []byte{prefixEntry}
}

// after is the first key after all that begin with the prefix.
func after(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
