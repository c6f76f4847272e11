package server

import (
	"bytes"
	"context"
	"log/slog"
	"slices"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// erasePage is how many records or dead letters one Redact or Forget looks at.
const erasePage = 200

// A token says which of the two lists goes on, and after which id: dead letters
// first, whose records may be long gone, then records.
const (
	eraseEntries byte = 1 + iota
	eraseRecords
)

// erased is what one call did, or with dry_run would do.
type erased struct {
	records, deadLetters, live int64
	next                       []byte
}

// eraser erases one record and its dead letters, or only counts.
type eraser struct {
	*core
	act    string
	dryRun bool
	// done reports whether a record that a list tells needs nothing any more.
	done  func(*storage.Record) bool
	erase func(ctx context.Context, id storage.RecordID) (storage.Answer, error)
}

func (s *adminService) Redact(ctx context.Context, req *dedupv1.RedactRequest) (*dedupv1.RedactResponse, error) {
	e := &eraser{
		core: s.core, act: "redact", dryRun: req.GetDryRun(),
		done: func(rec *storage.Record) bool { return rec.Redacted },
		erase: func(ctx context.Context, id storage.RecordID) (storage.Answer, error) {
			return s.store.Redact(ctx, id, storage.Redact{Note: req.GetNote()})
		},
	}
	did, err := e.run(ctx, req)
	if err != nil {
		return nil, err
	}
	return &dedupv1.RedactResponse{
		Records: did.records, DeadLetters: did.deadLetters, Live: did.live, NextPageToken: did.next,
	}, nil
}

func (s *adminService) Forget(ctx context.Context, req *dedupv1.ForgetRequest) (*dedupv1.ForgetResponse, error) {
	e := &eraser{
		core: s.core, act: "forget", dryRun: req.GetDryRun(),
		done: func(*storage.Record) bool { return false },
		erase: func(ctx context.Context, id storage.RecordID) (storage.Answer, error) {
			ans, err := s.store.Forget(ctx, id, storage.Forget{Note: req.GetNote()})
			s.changed(id, ans, err)
			return ans, err
		},
	}
	did, err := e.run(ctx, req)
	if err != nil {
		return nil, err
	}
	return &dedupv1.ForgetResponse{
		Records: did.records, DeadLetters: did.deadLetters, Live: did.live, NextPageToken: did.next,
	}, nil
}

// run does one part of the work. It is audited as a whole, by its selector and
// numbers: never by whose data it was.
func (e *eraser) run(ctx context.Context, req interface {
	GetSelector() *dedupv1.RecordSelector
	GetPageToken() []byte
	GetNote() string
},
) (did erased, err error) {
	var what []slog.Attr
	defer func() {
		answer := "ok"
		if err != nil {
			answer = "error" // some of it may have happened; a repeat tells
		}
		what = append(what, slog.Int64("records", did.records), slog.Int64("dead_letters", did.deadLetters),
			slog.Int64("live", did.live), slog.Bool("dry_run", e.dryRun), slog.Bool("more", len(did.next) > 0))
		e.audit(ctx, e.act, req.GetNote(), answer, what...)
	}()
	switch by := req.GetSelector().GetChoice().(type) {
	case *dedupv1.RecordSelector_Caller:
		what = append(what, slog.String("selector", "caller"), slog.String("namespace", by.Caller.GetNamespace()))
		err = e.many(ctx, &did, by.Caller.GetNamespace(), by.Caller.GetCaller(), req.GetPageToken())
		return did, err
	case *dedupv1.RecordSelector_Namespace:
		what = append(what, slog.String("selector", "namespace"), slog.String("namespace", by.Namespace))
		err = e.many(ctx, &did, by.Namespace, nil, req.GetPageToken())
		return did, err
	}
	if len(req.GetPageToken()) > 0 {
		return did, invalid("page_token", "one record is erased in one call; leave page_token out")
	}
	id, err := recordOf(req.GetSelector())
	if err != nil {
		return did, err
	}
	what = append(what, slog.String("selector", "record"), slog.String("record", id.Short()))
	f, err := e.look(ctx, id)
	if err != nil {
		return did, err
	}
	live, err := e.one(ctx, &did, f)
	if live {
		did.live++
	}
	return did, err
}

// found is what is stored of one record.
type found struct {
	id      storage.RecordID
	row     *storage.Record // nil: none
	letters []*storage.DeadLetter
	now     storage.Instant
}

func (e *eraser) look(ctx context.Context, id storage.RecordID) (found, error) {
	f := found{id: id}
	var err error
	if f.row, f.now, err = e.row(ctx, id); err != nil {
		return f, err
	}
	f.letters, err = e.lettersOf(ctx, id)
	return f, err
}

// one erases a record and its dead letters, unless an effect of it may still land.
func (e *eraser) one(ctx context.Context, did *erased, f found) (live bool, err error) {
	if e.dryRun {
		live = !f.row.ErasableAt(f.now, e.skew)
	} else {
		ans, err := e.erase(ctx, f.id)
		if err != nil {
			return false, err
		}
		switch ans.Verdict { //nolint:exhaustive // an erasure has no other answers
		case storage.VerdictOK, storage.VerdictNotFound:
		case storage.VerdictInProgress:
			live = true
		default:
			return false, refusalOf(ans)
		}
	}
	if live {
		return true, nil
	}
	did.deadLetters += int64(len(f.letters))
	if f.row != nil && !e.done(f.row) {
		did.records++
	}
	return false, nil
}

// row is what is stored under id, whether or not a look-up would tell of it: a stub,
// a mark, or a record whose time is over; nil where there is nothing.
func (e *eraser) row(ctx context.Context, id storage.RecordID) (*storage.Record, storage.Instant, error) {
	before := id // the id before it
	for i := len(before) - 1; i >= 0; i-- {
		if before[i]--; before[i] != 0xff {
			break
		}
	}
	page, err := e.store.List(ctx, storage.List{After: before, Limit: 1, States: everyState()})
	if err != nil || len(page.Records) == 0 || page.Records[0].ID() != id {
		return nil, page.Now, err
	}
	return page.Records[0], page.Now, nil
}

// lettersOf are the dead letters of a record that are to be erased.
func (e *eraser) lettersOf(ctx context.Context, id storage.RecordID) ([]*storage.DeadLetter, error) {
	var all []*storage.DeadLetter
	q := storage.ListEntries{Record: id, States: allEntryStates(), Limit: erasePage}
	for {
		page, err := e.store.Entries(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(page.Entries, e.erasedAlready)...)
		if page.Next == (storage.EntryID{}) {
			return all, nil
		}
		q.After = page.Next
	}
}

// erasedAlready reports whether nothing of a dead letter is left to redact.
func (e *eraser) erasedAlready(entry *storage.DeadLetter) bool {
	return e.act == "redact" && entry.Identity.Key == ""
}

// of reports whether a page of what a caller, or else a namespace, has shows id.
func of(id storage.Identity, namespace string, caller []byte) bool {
	return id.Namespace == namespace && (len(caller) == 0 || id.Caller == string(caller))
}

// everyState has the absent one too: a mark, or a row that is not swept yet, tells
// of a person.
func everyState() []storage.State {
	return []storage.State{
		storage.StateAbsent, storage.StateReserved, storage.StateReleased,
		storage.StateUnknown, storage.StateCompleted, storage.StateExpired,
	}
}

// many erases a page of what a caller or a namespace has: of dead letters, or
// once there are none left of records. A record on a live lease is counted with
// the records.
func (e *eraser) many(ctx context.Context, did *erased, namespace string, caller, token []byte) error {
	phase, after := eraseEntries, storage.RecordID{}
	switch {
	case len(token) == 0:
	case token[0] == eraseEntries && len(token) == 1+len(storage.EntryID{}),
		token[0] == eraseRecords && len(token) == 1+len(after):
		phase = token[0]
		copy(after[:], token[1:])
	default:
		return invalid("page_token", "page_token is not one that an answer has given")
	}
	if phase == eraseRecords {
		return e.records(ctx, did, namespace, caller, after)
	}
	return e.entries(ctx, did, namespace, caller, storage.EntryID(after[:len(storage.EntryID{})]))
}

func (e *eraser) entries(ctx context.Context, did *erased, namespace string, caller []byte, after storage.EntryID) error {
	page, err := e.store.Entries(ctx, storage.ListEntries{
		Namespace: namespace, Caller: caller, States: allEntryStates(), After: after, Limit: erasePage,
	})
	if err != nil {
		return err
	}
	seen := map[storage.RecordID]bool{}
	for _, entry := range page.Entries {
		if seen[entry.Record] || e.erasedAlready(entry) {
			continue
		}
		seen[entry.Record] = true
		f, err := e.look(ctx, entry.Record)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(f.letters, func(l *storage.DeadLetter) bool {
			return bytes.Compare(l.ID[:], after[:]) <= 0 && of(l.Identity, namespace, caller)
		}) {
			continue // an earlier page has dealt with it
		}
		var part erased
		if _, err := e.one(ctx, &part, f); err != nil {
			return err
		}
		did.deadLetters += part.deadLetters
		if !e.dryRun || f.row != nil && !of(f.row.Identity, namespace, caller) { // else the list of records counts it
			did.records += part.records
		}
	}
	did.next = append([]byte{eraseEntries}, page.Next[:]...)
	if page.Next == (storage.EntryID{}) {
		did.next = append([]byte{eraseRecords}, make([]byte, len(storage.RecordID{}))...)
	}
	return nil
}

func (e *eraser) records(ctx context.Context, did *erased, namespace string, caller []byte, after storage.RecordID) error {
	page, err := e.store.List(ctx, storage.List{
		Namespace: namespace, Caller: caller, After: after, Limit: erasePage,
		States: everyState(),
	})
	if err != nil {
		return err
	}
	for _, rec := range page.Records {
		if e.done(rec) {
			continue
		}
		if !rec.ErasableAt(page.Now, e.skew) {
			did.live++
			continue
		}
		if !e.dryRun {
			ans, err := e.erase(ctx, rec.ID())
			switch {
			case err != nil:
				return err
			case ans.Verdict == storage.VerdictInProgress:
				did.live++
				continue
			case ans.Verdict != storage.VerdictOK && ans.Verdict != storage.VerdictNotFound:
				return refusalOf(ans)
			}
		}
		did.records++
	}
	if page.Next != (storage.RecordID{}) {
		did.next = append([]byte{eraseRecords}, page.Next[:]...)
	}
	return nil
}
