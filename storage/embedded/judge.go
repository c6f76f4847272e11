package embedded

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/dedupd/dedupd/storage"
)

// judgement is one step on one record and its entries, under the record's lock.
type judgement struct {
	s       *Store
	id      storage.RecordID
	named   *storage.EntryID // the entry that the request is about, if it names one
	old     storage.Case
	taken   string // the namespace where a place below the cap is taken; "" none
	entries bool   // old.Entries were read
}

// read reads the record, and its entries where the request is about them or they
// hold the record: nearly all calls read the record alone.
func (j *judgement) read(q storage.Request) (err error) {
	if j.old.Record, err = j.s.read(j.id); err != nil {
		return err
	}
	aboutEntries := j.named != nil
	switch q.(type) {
	case storage.Park, storage.Redact, storage.Forget:
		aboutEntries = true
	}
	if aboutEntries || j.old.Record != nil && j.old.Record.Pins > 0 {
		return j.readEntries()
	}
	return nil
}

func (j *judgement) readEntries() (err error) {
	j.entries = true
	j.old.Entries, err = j.s.entriesOf(j.id, func(e *storage.DeadLetter) bool {
		return e.Open() || j.named != nil && e.ID == *j.named
	})
	return err
}

// decide applies the rules and makes what they write durable.
func (j *judgement) decide(ctx context.Context, q storage.Request) (storage.Answer, error) {
	if p, ok := q.(storage.Park); ok {
		p.Full = !j.take(p)
		defer j.giveBack()
		q = p
	}
	now := j.s.clock.now()
	change, ans := storage.ApplyCase(j.old, q, now, 0)
	if ans.Conflict != nil && !j.entries {
		if err := j.readEntries(); err != nil {
			return storage.Answer{}, err
		}
		change, ans = storage.ApplyCase(j.old, q, now, 0)
	}
	if change.Record == nil && len(change.Entries) == 0 && !change.Forget && !change.Redact {
		return j.tell(q, ans)
	}
	if err := j.write(ctx, change, q, now); err != nil {
		return storage.Answer{}, err
	}
	ans.Now = j.s.clock.now()
	return j.tell(q, ans)
}

// tell adds the request of an entry that was claimed; no other call tells it.
func (j *judgement) tell(q storage.Request, ans storage.Answer) (storage.Answer, error) {
	if _, ok := q.(storage.Claim); !ok || ans.Verdict != storage.VerdictOK {
		return ans, nil
	}
	var err error
	if ans.Entry, err = j.s.withRequest(ans.Entry); err != nil {
		return storage.Answer{}, err
	}
	return ans, nil
}

// write makes the change durable, and then counts its entries.
func (j *judgement) write(ctx context.Context, change storage.Change, q storage.Request, now storage.Instant) error {
	b := j.s.db.NewBatch()
	opened, err := j.put(b, change, q)
	if err != nil {
		return j.s.unavailable(err)
	}
	if err := j.s.commit(ctx, b, now); err != nil {
		return err
	}
	j.count(opened)
	return b.Close()
}

func (j *judgement) put(b *pebble.Batch, change storage.Change, q storage.Request) (tally, error) {
	if change.Forget {
		return j.forget(b)
	}
	if err := j.s.put(b, j.id, j.old.Record, change.Record); err != nil {
		return tally{}, err
	}
	var t tally
	p, _ := q.(storage.Park)
	for _, e := range change.Entries {
		old := j.oldEntry(e.ID)
		if err := j.s.putEntry(b, old, e, p.Entry.HasRequest); err != nil {
			return tally{}, err
		}
		t.add(old, e)
	}
	if change.Redact {
		return t, j.redactClosed(b)
	}
	return t, nil
}

func (j *judgement) oldEntry(id storage.EntryID) *storage.DeadLetter {
	for _, e := range j.old.Entries {
		if e.ID == id {
			return e
		}
	}
	return nil
}

// forget deletes the record and all of its entries.
func (j *judgement) forget(b *pebble.Batch) (t tally, err error) {
	if err := drop(b, j.id, j.old.Record); err != nil {
		return t, err
	}
	all, err := j.s.entriesOf(j.id, func(*storage.DeadLetter) bool { return true })
	if err != nil {
		return t, err
	}
	for _, e := range all {
		if err := dropEntry(b, e); err != nil {
			return t, err
		}
		t.add(e, nil)
	}
	return t, nil
}

// redactClosed redacts the entries that the rules do not see.
func (j *judgement) redactClosed(b *pebble.Batch) error {
	closed, err := j.s.entriesOf(j.id, func(e *storage.DeadLetter) bool { return !e.Open() })
	if err != nil {
		return err
	}
	for _, e := range closed {
		if err := j.s.putEntry(b, e, e.Redacted(), false); err != nil {
			return err
		}
	}
	return nil
}
