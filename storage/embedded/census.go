package embedded

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// Census implements storage.DeadLetters. It reads every unfinished record and
// every open dead letter.
func (s *Store) Census(ctx context.Context) (storage.Census, error) {
	if err := s.begin(ctx); err != nil {
		return storage.Census{}, err
	}
	defer s.life.RUnlock()
	c := storage.Census{Now: s.clock.now()}
	var err error
	if c.Unfinished, err = s.countUnfinished(ctx, c.Now); err != nil {
		return storage.Census{}, err
	}
	if c.Entries, err = s.countEntries(ctx); err != nil {
		return storage.Census{}, err
	}
	return c, nil
}

func (s *Store) countUnfinished(ctx context.Context, now storage.Instant) ([]storage.UnfinishedCount, error) {
	iter, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{prefixUnfinished}, UpperBound: []byte{prefixUnfinished + 1}})
	if err != nil {
		return nil, s.unavailable(err)
	}
	counts := map[storage.UnfinishedCount]*storage.UnfinishedCount{} // by what they have in common
	for valid := iter.First(); valid && err == nil; valid = iter.Next() {
		var key idKey
		copy(key[:], iter.Key())
		var rec *storage.Record
		if rec, err = s.read(key.id()); rec == nil {
			continue // settled meanwhile, or a fault
		}
		n := groupOf(counts, storage.UnfinishedCount{
			Namespace: rec.Identity.Namespace, Operation: rec.Identity.Operation, State: rec.StateAt(now, 0),
		})
		n.Records++
		n.Oldest = older(n.Oldest, rec.GrantedAt)
		err = cmp.Or(err, ctx.Err())
	}
	if fault := errors.Join(iter.Error(), iter.Close()); err == nil && fault != nil {
		err = s.unavailable(fault)
	}
	all := make([]storage.UnfinishedCount, 0, len(counts))
	for _, n := range counts {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b storage.UnfinishedCount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.State, b.State))
	})
	return all, err
}

func (s *Store) countEntries(ctx context.Context) ([]storage.EntryCount, error) {
	counts := map[storage.EntryCount]*storage.EntryCount{} // by what they have in common
	err := s.scanEntries(ctx, openEntries(), func(e *storage.DeadLetter, _ int) bool {
		if e.Open() { // else it was closed meanwhile
			n := groupOf(counts, storage.EntryCount{Namespace: e.Identity.Namespace, Kind: e.Kind})
			n.Entries++
			n.Oldest = older(n.Oldest, e.ParkedAt)
		}
		return true
	})
	all := make([]storage.EntryCount, 0, len(counts))
	for _, n := range counts {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b storage.EntryCount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind))
	})
	return all, err
}

// groupOf returns the group of those that have this in common, which begins with
// nothing else.
func groupOf[G comparable](groups map[G]*G, common G) *G {
	if groups[common] == nil {
		groups[common] = &common
	}
	return groups[common]
}

// older is the earlier of two instants, the first of which may be none.
func older(a, b storage.Instant) storage.Instant { return min(cmp.Or(a, b), b) }

// openEntries chooses what somebody still has to act on.
func openEntries() storage.ListEntries {
	return storage.ListEntries{States: []storage.EntryState{storage.EntryParked, storage.EntryReplaying}}
}
