package storage

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// ApplyCase judges one request against one record and its open entries, as Apply
// does against the record alone, and says all that is to be written, in one
// step. What a call does to entries follows from what it does to the record.
func ApplyCase(c Case, req Request, now Instant, skew time.Duration) (Change, Answer) {
	t := newTurn(c, now, skew)
	next, ans := req.judge(t)
	t.follow(req, next, &ans)
	if t.pins != 0 {
		next = t.pin(next)
	}
	ans = t.finish(next, ans)
	if t.forget || ans.Verdict == VerdictClaimInvalid { // who has no claim is told nothing of the record
		ans.Record, ans.State = nil, StateAbsent
	}
	return Change{Record: next, Forget: t.forget, Entries: t.changed, Redact: t.redact}, ans
}

// letters is the part of a turn that is about the record's entries.
type letters struct {
	entries  []*DeadLetter // as read
	replayed *DeadLetter   // the one that a Reserve replays under its claim
	changed  []*DeadLetter // to be written
	pins     int32         // gained, or lost
	forget   bool
	redact   bool
}

// entry finds an entry by its id, as read.
func (l *letters) entry(id EntryID) *DeadLetter {
	for _, e := range l.entries {
		if e.ID == id {
			return e
		}
	}
	return nil
}

// openOf finds the open entry of a kind.
func (l *letters) openOf(k EntryKind) *DeadLetter {
	for _, e := range l.entries {
		if e.Kind == k && e.Open() {
			return e
		}
	}
	return nil
}

// oldest is the first entry that is still open and pins the record.
func (l *letters) oldest() *DeadLetter {
	for _, e := range l.entries {
		if e = l.latest(e); e.Open() && e.Pinned {
			return e
		}
	}
	return nil
}

// latest is e as it is to be written.
func (l *letters) latest(e *DeadLetter) *DeadLetter {
	for _, c := range l.changed {
		if c.ID == e.ID {
			return c
		}
	}
	return e
}

// pin gives the record its new number of pins. An absent one becomes a stub.
// Time stood still for a pinned record: once the last entry is closed, its
// tombstone time begins no earlier than now.
func (t *turn) pin(next *Record) *Record {
	switch {
	case next != nil:
	case t.row != nil && !t.row.OverAt(t.now):
		next = t.row.clone()
	default:
		next = &Record{Identity: t.changed[0].Identity, State: StateAbsent, CreatedAt: t.now}
		if t.row != nil {
			next.Fence = t.row.Fence
		}
	}
	next.Pins += t.pins
	if next.Pins > 0 {
		return next
	}
	if next.State == StateAbsent {
		next.DropAt = max(next.DropAt, t.now)
	} else if next.DropAt != 0 {
		tombstone := next.DropAt - next.ExpiresAt
		next.ExpiresAt = max(next.ExpiresAt, t.now)
		next.DropAt = next.ExpiresAt + tombstone
	}
	return next
}

// RecordID is the id of the record that the entry is parked for.
func (q Park) RecordID() RecordID {
	if q.Entry.Identity == (Identity{}) {
		return q.Entry.Record
	}
	return q.Entry.Identity.RecordID()
}

// judge answers Park.
func (q Park) judge(t *turn) (*Record, Answer) {
	e := q.Entry
	if e.Identity == (Identity{}) {
		if t.rec == nil && !t.stub() {
			return refuse(VerdictNotFound)
		}
		e.Identity = t.row.Identity
	}
	e.Record = q.RecordID()
	return nil, t.park(&e, q.Full)
}

// stub reports whether the record is absent and pinned all the same.
func (t *turn) stub() bool { return t.rec == nil && t.row != nil && t.row.Pins > 0 }

// park makes an entry of n, or lets the open one of its kind take it in. What
// dedupd itself has to tell is parked beyond the cap.
func (t *turn) park(n *DeadLetter, full bool) Answer {
	old := t.openOf(n.Kind)
	switch {
	case old != nil && old.parkedBy(n):
		return Answer{Verdict: VerdictOK, Entry: old}
	case old == nil && full && n.Kind != EntryConflict && n.Kind != EntryOverdue:
		return Answer{Verdict: VerdictFull}
	}
	e := &DeadLetter{ID: t.entryID(n), Kind: n.Kind, State: EntryParked, Record: n.Record, ParkedAt: t.now}
	if old != nil {
		c := *old
		e = &c
	}
	e.takeIn(n)
	e.Count++
	e.LastParkedAt = t.now
	if !e.Pinned && t.state != StateExpired { // a pin would bring an expired outcome back
		e.Pinned = true
		t.pins++
	}
	t.changed = append(t.changed, e)
	return Answer{Verdict: VerdictOK, Entry: e, Parked: true}
}

// entryID names a new entry, the same whoever judges.
func (t *turn) entryID(n *DeadLetter) (id EntryID) {
	b := append(n.Record[:], byte(n.Kind)) //nolint:gocritic // an array's whole slice is full: append copies
	b = append(b, n.ParkID[:]...)
	if t.row != nil {
		b = binary.BigEndian.AppendUint64(b, uint64(t.row.Version)) //nolint:gosec // any bits do
	}
	sum := sha256.Sum256(b)
	binary.BigEndian.PutUint64(id[:], uint64(t.now)) //nolint:gosec // instants are never negative
	copy(id[8:], sum[:])
	return id
}

// parkedBy reports whether n is a repeat of what e took in last.
func (e *DeadLetter) parkedBy(n *DeadLetter) bool {
	return e.ParkID == n.ParkID && (n.Conflict == nil || e.Conflict != nil && e.Conflict.RefusedHash == n.Conflict.RefusedHash)
}

// takeIn takes over what a Park tells. A request stays where the newer Park has
// none, and the conflict of a success where the newer one's is an error: that
// is the one whose effect somebody may have to undo.
func (e *DeadLetter) takeIn(n *DeadLetter) {
	e.Identity, e.Target, e.Method = n.Identity, n.Target, n.Method
	if n.HasRequest || !e.HasRequest {
		e.HasRequest, e.TypeURL, e.Request, e.RequestSize = n.HasRequest, n.TypeURL, n.Request, n.RequestSize
		e.Metadata, e.Fingerprint = n.Metadata, n.Fingerprint
	}
	e.Code, e.Status, e.Signature = n.Code, n.Status, n.Signature
	e.ParkID, e.Note = n.ParkID, n.Note
	e.Parent = cmp.Or(n.Parent, e.Parent)
	if n.Conflict == nil {
		e.Attempts = n.Attempts[max(0, len(n.Attempts)-MaxEntryAttempts):]
		return
	}
	for _, a := range n.Attempts {
		e.Attempts = pushLast(e.Attempts, a, MaxEntryAttempts)
	}
	if e.Conflict == nil || n.Conflict.Success || !e.Conflict.Success {
		e.Conflict = n.Conflict
	}
}

// parkConflict keeps a refused Complete that may be the trace of a double
// effect.
func (t *turn) parkConflict(q Complete, ans *Answer) {
	e := DeadLetter{
		Kind: EntryConflict, Identity: q.Identity, ParkID: q.Attempt, Conflict: ans.Conflict,
		Code: q.Outcome.Code, Status: q.Outcome.Status, Attempts: []EntryAttempt{{At: t.now, Code: q.Outcome.Code}},
	}
	switch {
	case t.rec != nil || t.stub():
		e.Identity, e.Record = t.row.Identity, t.row.ID()
	case q.Identity == (Identity{}):
		return
	default:
		e.Record = q.Identity.RecordID()
	}
	parked := t.park(&e, false)
	ans.Entry, ans.Parked = parked.Entry, parked.Parked
}

// judge answers Claim.
func (q Claim) judge(t *turn) (*Record, Answer) {
	e := t.entry(q.Entry)
	switch {
	case e == nil:
		return refuse(VerdictNotFound)
	case e.Open() && e.Claim == q.Token:
		if e.StateAt(t.now) == EntryReplaying {
			return nil, Answer{Verdict: VerdictOK, Entry: e} // a repeat
		}
		return e.refuse() // a token is for one claim
	case e.StateAt(t.now) != EntryParked, !e.HasRequest && !q.Operator:
		return e.refuse()
	}
	if e.HasRequest {
		switch {
		case t.state == StateReserved:
			next, ans := t.inProgress(min(t.rec.LeaseEnd.Add(t.skew).Sub(t.now), maxRetryAfter))
			ans.Entry = e
			return next, ans
		case !q.Force && (t.state == StateExpired || t.state == StateAbsent && t.outdated(e, q.Terms)):
			return nil, Answer{Verdict: VerdictKeyExpired, Entry: e}
		}
	}
	c := *e
	c.State, c.Claim, c.ClaimEnd, c.ClaimFence = EntryReplaying, q.Token, t.now.Add(cmp.Or(q.Lease, DefaultClaim)), 0
	c.ByOperator = q.Operator || c.Requested
	c.Replays++
	return nil, t.write(&c)
}

// outdated reports whether the call that e keeps was last tried longer ago than
// records are kept: an absent record then says nothing about it.
func (t *turn) outdated(e *DeadLetter, terms Terms) bool {
	return t.now >= e.LastParkedAt.Add(t.retention(terms))
}

func (e *DeadLetter) refuse() (*Record, Answer) {
	return nil, Answer{Verdict: VerdictEntryChanged, Entry: e}
}

func (t *turn) write(e *DeadLetter) Answer {
	t.changed = append(t.changed, e)
	return Answer{Verdict: VerdictOK, Entry: e}
}

// judge answers Settle. The claim may have lapsed, as long as nobody claimed the
// entry since. What closed the entry meanwhile stands.
func (q Settle) judge(t *turn) (*Record, Answer) {
	e := t.entry(q.Entry)
	switch {
	case e == nil:
		return refuse(VerdictNotFound)
	case e.Claim != q.Token:
		return e.refuse()
	case e.State == EntryResolved, e.State == EntryParked && e.Result == q.Result:
		return nil, Answer{Verdict: VerdictOK, Entry: e}
	case e.State != EntryReplaying:
		return e.refuse()
	}
	c := *e
	c.Result = q.Result
	switch q.Result {
	case ResultFailed:
		c.ReplayStatus = q.Status
		c.Requested = false // it was tried as asked
		c.giveUp(t.now.Add(q.NotBefore))
	case ResultGivenBack:
		c.Replays--
		c.giveUp(t.now.Add(q.NotBefore))
	case ResultReplayed, ResultAlreadyDone, ResultSuperseded:
		if c.Kind == EntryConflict && !c.ByOperator {
			return e.refuse() // a person must look
		}
		t.closeEntry(&c, EntryResolved, q.Terms)
	}
	return nil, t.write(&c)
}

// giveUp ends a claim without closing the entry.
func (e *DeadLetter) giveUp(notBefore Instant) {
	e.State, e.ClaimEnd, e.ByOperator, e.NotBefore = EntryParked, 0, e.Requested, notBefore
}

// judge answers Requeue.
func (q Requeue) judge(t *turn) (*Record, Answer) {
	e := t.entry(q.Entry)
	switch {
	case e == nil:
		return refuse(VerdictNotFound)
	case e.StateAt(t.now) != EntryParked, !e.HasRequest:
		return e.refuse()
	case e.State == EntryParked && e.Requested && e.NotBefore == 0 && e.Note == q.Note:
		return nil, Answer{Verdict: VerdictOK, Entry: e}
	}
	c := *e
	c.Requested, c.Note = true, q.Note
	c.giveUp(0)
	return nil, t.write(&c)
}

// judge answers Discard.
func (q Discard) judge(t *turn) (*Record, Answer) {
	e := t.entry(q.Entry)
	switch {
	case e == nil:
		return refuse(VerdictNotFound)
	case e.State == EntryDiscarded:
		return nil, Answer{Verdict: VerdictOK, Entry: e}
	case e.StateAt(t.now) != EntryParked:
		return e.refuse()
	}
	c := *e
	c.Note = q.Note
	t.closeEntry(&c, EntryDiscarded, q.Terms)
	return nil, t.write(&c)
}

// closeEntry closes e, which is to be written.
func (t *turn) closeEntry(e *DeadLetter, s EntryState, terms Terms) {
	e.State, e.ClosedAt = s, t.now
	e.DropAt = t.now.Add(cmp.Or(terms.EntryHold, DefaultEntryHold))
	if e.Pinned {
		e.Pinned = false
		t.pins--
	}
}
