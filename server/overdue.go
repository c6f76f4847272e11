package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"time"

	"github.com/dedupd/dedupd/storage"
)

// A round looks at overdue records page by page, with the sweeper's pause after
// each.
const (
	overdueEvery = 5 * time.Minute
	overduePage  = 200
)

// overdue parks the records that are unfinished one retention time after their
// last grant, and counts them. They stay as they are: no sweep frees them.
type overdue struct {
	store   stored
	every   time.Duration
	terms   storage.Terms
	census  *census
	metrics *metrics
	log     *slog.Logger
}

// run looks for them until ctx ends.
func (o *overdue) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := o.round(ctx); err != nil && ctx.Err() == nil {
			o.log.LogAttrs(ctx, slog.LevelWarn, "looking for overdue records failed; it goes on later",
				slog.Any("error", err), slog.Duration("pause", o.every))
		}
		timer.Reset(o.every)
	}
}

// round goes through all of them once.
func (o *overdue) round(ctx context.Context) error {
	q := storage.List{
		States:    []storage.State{storage.StateReserved, storage.StateUnknown},
		OlderThan: o.terms.Retention,
		Limit:     overduePage,
	}
	found := map[string]int64{}
	var parked map[storage.AttemptID]bool
	for {
		page, err := o.store.List(ctx, q)
		if err != nil {
			return err
		}
		if parked == nil && len(page.Records) > 0 {
			if parked, err = o.parked(ctx); err != nil {
				return err
			}
		}
		for _, rec := range page.Records {
			found[rec.Identity.Namespace]++
			if parked[overdueID(rec)] {
				continue
			}
			if err := o.park(ctx, rec); err != nil {
				return err
			}
		}
		if q.After = page.Next; page.Next == (storage.RecordID{}) {
			break
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	o.census.setOverdue(found)
	return nil
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(sweepPause):
		return nil
	}
}

// parked are the park ids of what was parked before, closed ones too: a record is
// parked once for its last grant, whichever server comes first, and an entry that
// was discarded does not come back before it is deleted itself.
func (o *overdue) parked(ctx context.Context) (map[storage.AttemptID]bool, error) {
	ids := map[storage.AttemptID]bool{}
	q := storage.ListEntries{Kinds: []storage.EntryKind{storage.EntryOverdue}, States: allEntryStates(), Limit: overduePage}
	for {
		page, err := o.store.Entries(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			ids[e.ParkID] = true
		}
		if q.After = page.Next; page.Next == (storage.EntryID{}) {
			return ids, nil
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

func (o *overdue) park(ctx context.Context, rec *storage.Record) error {
	ans, err := o.store.Park(ctx, storage.Park{
		Entry: storage.DeadLetter{
			Kind: storage.EntryOverdue, Record: rec.ID(), Method: rec.Identity.Operation, ParkID: overdueID(rec),
			Fingerprint: rec.Fingerprint, Note: "unfinished since its last grant, longer than records are kept",
		},
		Terms: o.terms,
	})
	if err != nil {
		return err
	}
	o.metrics.parked(ans)
	return nil
}

// overdueID is the park id of a record's last grant, the same from every server.
func overdueID(rec *storage.Record) storage.AttemptID {
	id := rec.ID()
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(append([]byte("overdue"), id[:]...), uint64(rec.Fence))) //nolint:gosec // the bits of a fence
	return storage.AttemptID(sum[:len(storage.AttemptID{})])
}
