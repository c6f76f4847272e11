package storage

import (
	"cmp"
	"time"
)

// Apply judges one request against one record, which may be nil, at one time of
// the store's clock. It returns the record to write, or nil where nothing is to
// be written, and the answer. It has no I/O, no clock and no randomness, and
// never changes what it is given; a store reads, applies and writes, atomically
// per record. skew is how far the store's clocks may differ. It is ApplyCase
// without entries: a conflict is told and not parked.
func Apply(rec *Record, req Request, now Instant, skew time.Duration) (*Record, Answer) {
	t := newTurn(Case{Record: rec}, now, skew)
	next, ans := req.judge(t)
	return next, t.finish(next, ans)
}

func refuse(v Verdict) (*Record, Answer) { return nil, Answer{Verdict: v} }

func ok(next *Record) (*Record, Answer) { return next, Answer{Verdict: VerdictOK} }

// judge answers Reserve, in the order of judgement.
func (q Reserve) judge(t *turn) (*Record, Answer) {
	if q.Claim != nil && !t.claim(&q) {
		return refuse(VerdictClaimInvalid)
	}
	if t.reused(q.Fingerprint) {
		return refuse(VerdictKeyReused)
	}
	if t.state == StateExpired || t.outlived(q.Terms) {
		return refuse(VerdictKeyExpired)
	}
	if t.state == StateCompleted && !t.reopens(q.Attempt) {
		t.foundDone(q.Terms)
		return nil, Answer{Verdict: VerdictCompleted, Outcome: t.rec.Outcome}
	}
	if t.current(q.Attempt) {
		return nil, Answer{Verdict: VerdictGranted} // a repeat: the same grant, whatever is left of it
	}
	if t.kept(q.Fingerprint) && !t.fresh() {
		return nil, Answer{Verdict: VerdictCompleted, Outcome: t.rec.Outcome, Kept: true}
	}
	if t.spent(q.Attempt) {
		return refuse(VerdictStaleHolder)
	}
	switch t.state {
	case StateAbsent, StateReleased, StateCompleted: // completed: a final error that a replay opens
		return t.grant(q, ModeRun)
	case StateReserved:
		return t.inProgress(min(t.rec.LeaseEnd.Add(t.skew).Sub(t.now), maxRetryAfter))
	case StateUnknown:
		return t.reserveUnknown(q)
	case StateExpired: // answered above
	}
	return refuse(VerdictOutcomeUnknown)
}

// reserveUnknown answers a Reserve of a record whose outcome nobody knows.
func (t *turn) reserveUnknown(q Reserve) (*Record, Answer) {
	if q.OnUnknown == OnUnknownRefuse {
		return nil, Answer{Verdict: VerdictOutcomeUnknown, RetryAfter: t.mayStillSettle()}
	}
	// Release(UNKNOWN) does not shorten the lease: the effect may still be on its
	// way. Where the effect itself refuses older holders there is no such way.
	lateEffectShutOut := q.OnUnknown == OnUnknownReconcile && (q.Basis == BasisFenced || q.Basis == BasisInbox)
	if t.effectsLeft() > 0 && !lateEffectShutOut {
		return t.inProgress(t.effectsLeft())
	}
	if q.OnUnknown == OnUnknownReconcile {
		return t.grant(q, ModeReconcile)
	}
	return t.grant(q, ModeRun)
}

// mayStillSettle is the retry hint of an unknown outcome, zero once it is no
// longer likely to settle by itself.
func (t *turn) mayStillSettle() time.Duration {
	return max(0, min(t.effectsLeft()+max(settleTime, t.rec.Lease), maxRetryAfter))
}

// grant writes a new grant.
func (t *turn) grant(q Reserve, mode Mode) (*Record, Answer) {
	next := &Record{Identity: q.Identity, CreatedAt: t.now, Fingerprint: q.Fingerprint}
	if t.rec != nil {
		next = t.rec.clone()
		next.endAttempt(next.Attempt)
		next.PrevGrant = next.GrantedAt
		if !next.Fingerprint.Same(q.Fingerprint) {
			next.Superseded = pushLast(next.Superseded, next.Fingerprint, maxSuperseded)
			next.Fingerprint = q.Fingerprint
		}
	} else if t.row != nil {
		next.Ended, next.Pins = t.spentMarks(), t.row.Pins
	}
	next.Identity, next.Redacted, next.RedactedID = q.Identity, false, RecordID{} // told anew
	next.Fence = Fence(t.now)
	if t.row != nil {
		next.Fence = max(next.Fence, t.row.Fence+1)
	}
	if t.state == StateCompleted {
		next.Reopened = t.rec.Outcome
	}
	next.State, next.Mode, next.Attempt = StateReserved, mode, q.Attempt
	next.Grants++
	next.GrantedAt = t.now
	next.Lease = cmp.Or(q.Lease, DefaultLease)
	next.LeaseEnd = t.now.Add(next.Lease)
	next.unsettle()
	if mode == ModeRun {
		next.Open = t.state == StateUnknown
		next.Trace = q.Trace
		next.startRun()
	}
	t.grantedTo(next.Fence)
	return next, Answer{Verdict: VerdictGranted}
}

// judge answers BeginRun.
func (q BeginRun) judge(t *turn) (*Record, Answer) {
	if t.state != StateReserved || !t.holds(q.Attempt, q.Fence) {
		return refuse(VerdictStaleHolder)
	}
	if t.rec.Mode == ModeRun {
		return ok(nil)
	}
	next := t.rec.clone()
	next.Mode = ModeRun
	next.Open = false // its holder has found that no earlier run applied the effect
	next.startRun()
	return ok(next)
}

// judge answers Extend.
func (q Extend) judge(t *turn) (*Record, Answer) {
	if t.state != StateReserved || !t.holds(q.Attempt, q.Fence) {
		return refuse(VerdictStaleHolder)
	}
	next := t.rec.clone()
	next.Lease = cmp.Or(q.Lease, DefaultLease)
	end := t.now.Add(next.Lease)
	if end <= next.LeaseEnd {
		return ok(nil) // never shortened: outgoing calls carry deadlines up to its end
	}
	next.LeaseEnd = end
	if next.Mode == ModeRun {
		next.RunEnd = end
	}
	return ok(next)
}

// judge answers Complete.
func (q Complete) judge(t *turn) (*Record, Answer) {
	if t.rec == nil || !t.holds(q.Attempt, q.Fence) && !t.ran(q.Attempt, q.Fence) {
		return t.conflict(q)
	}
	switch t.state {
	case StateReserved, StateUnknown, StateReleased:
		return t.complete(q)
	case StateCompleted:
		if t.rec.Outcome != nil && t.rec.Outcome.Hash() == q.Outcome.Hash() {
			return ok(nil)
		}
	case StateExpired, StateAbsent:
	}
	return t.conflict(q)
}

// complete settles the record, unless the outcome is an error of an open run:
// that settles nothing, an earlier run may have applied the effect.
func (t *turn) complete(q Complete) (*Record, Answer) {
	if t.rec.Open && t.ran(q.Attempt, q.Fence) && !q.Outcome.Success() {
		if t.rec.State != StateReserved || !t.holds(q.Attempt, q.Fence) {
			return ok(nil)
		}
		next := t.rec.clone()
		next.release(StateUnknown, EffectUnknown, "")
		return ok(next)
	}
	next := t.rec.clone()
	next.settle(t.now, q.Outcome, max(q.Retention, t.retention(q.Terms)), q.Terms.Tombstone)
	return next, Answer{Verdict: VerdictOK, Late: t.state == StateReleased}
}

// conflict refuses a Complete. It may be the trace of a double effect when it
// contradicts what the record says, or when a run began after its grant and it
// is not that run's very error. A reconciler that agrees is no conflict.
func (t *turn) conflict(q Complete) (*Record, Answer) {
	c := &Conflict{RefusedFence: q.Fence, Success: q.Outcome.Success(), RefusedHash: q.Outcome.Hash(), At: t.now}
	ans := Answer{Verdict: VerdictStaleHolder, Conflict: c}
	if t.rec == nil {
		return nil, ans
	}
	c.RecordFence = t.rec.Fence
	contradicts, laterRun := false, t.rec.RunFence > q.Fence
	switch t.state {
	case StateCompleted, StateExpired:
		c.RecordHash = t.rec.Outcome.Hash()
		contradicts = c.RecordHash != c.RefusedHash
		laterRun = laterRun && c.Success
	case StateReleased: // ready to be run again
		contradicts = c.Success
	case StateAbsent, StateReserved, StateUnknown:
	}
	if t.rec.Reopened != nil && t.rec.Reopened.Hash() == c.RefusedHash {
		laterRun = false // a repeat of what was stored before a replay opened it
	}
	if !contradicts && !laterRun {
		ans.Conflict = nil
	}
	return nil, ans
}

// judge answers Release.
func (q Release) judge(t *turn) (*Record, Answer) {
	if q.Fence == 0 {
		return t.giveBack(q)
	}
	if !t.holds(q.Attempt, q.Fence) {
		return refuse(VerdictStaleHolder)
	}
	switch t.rec.State {
	case StateReserved:
		if t.rec.Mode == ModeReconcile && q.Effect != EffectUnknown {
			return refuse(VerdictNotReconciled)
		}
		return ok(t.release(q))
	case StateUnknown, StateReleased, StateCompleted: // completed: it put a final error back
		if !t.rec.ByOperator() && t.state != StateExpired && t.rec.ReleasedAs == q.Effect {
			return ok(nil)
		}
	case StateAbsent, StateExpired:
	}
	return refuse(VerdictStaleHolder)
}

// release ends the current grant.
func (t *turn) release(q Release) *Record {
	next := t.rec.clone()
	if next.Mode == ModeReconcile {
		// It has not begun: nothing of it is on its way, only of the last run.
		next.release(StateUnknown, q.Effect, q.Note)
		next.LeaseEnd = next.RunEnd
		next.Grants-- // they are counted to tell how often the work was tried
		return next
	}
	next.Bound = next.Bound || q.Effect == EffectRepeatable
	if next.Open || q.Effect == EffectUnknown {
		next.release(StateUnknown, q.Effect, q.Note)
		return next
	}
	t.setFree(next, q.Effect, q.Note, q.Terms)
	if q.Error != nil && q.Hold > 0 && next.State == StateReleased {
		next.Outcome, next.HoldEnd = q.Error, t.now.Add(q.Hold)
	}
	return next
}

// setFree ends the grant where nothing is left unknown. A final error that a
// replay had opened comes back, unless effects were left under child keys. A
// free record is absent after the retention, a bound one expired for the
// tombstone time.
func (t *turn) setFree(next *Record, as Effect, note string, terms Terms) {
	before := next.Reopened
	next.release(StateReleased, as, note)
	next.Reopened = nil
	if before != nil && !next.Bound {
		next.settle(t.now, before, t.retention(terms), terms.Tombstone)
		next.ReleasedAs, next.Note = as, note
		return
	}
	next.ExpiresAt = t.now.Add(t.retention(terms))
	next.DropAt = next.ExpiresAt
	if next.Bound {
		next.DropAt = next.ExpiresAt.Add(terms.Tombstone)
	}
}

// giveBack answers a Release without a fence: its caller never read a grant, so
// whatever it was granted is given back, and it is never granted later.
func (t *turn) giveBack(q Release) (*Record, Answer) {
	if t.rec == nil {
		if t.spent(q.Attempt) {
			return ok(nil)
		}
		mark := &Record{Identity: q.Identity, State: StateAbsent, CreatedAt: t.now, DropAt: t.now.Add(markTime)}
		if t.row != nil {
			mark.Fence, mark.Pins = t.row.Fence, t.row.Pins
			mark.Ended = t.spentMarks()
		}
		mark.endAttempt(q.Attempt)
		return ok(mark)
	}
	if t.current(q.Attempt) {
		if t.rec.Mode == ModeReconcile {
			q.Effect = EffectUnknown
		}
		return ok(t.release(q))
	}
	if t.state == StateCompleted || t.state == StateExpired || t.spent(q.Attempt) {
		return ok(nil) // cannot be granted as it is
	}
	next := t.rec.clone()
	next.endAttempt(q.Attempt)
	return ok(next)
}

// judge answers Lookup.
func (q Lookup) judge(t *turn) (*Record, Answer) {
	ans := Answer{Verdict: VerdictOK}
	if len(q.Fingerprint) == 0 || t.rec == nil {
		return nil, ans
	}
	if t.reused(q.Fingerprint) {
		return refuse(VerdictKeyReused)
	}
	ans.Kept = t.kept(q.Fingerprint)
	if t.state == StateCompleted || ans.Kept {
		ans.Outcome = t.rec.Outcome
	}
	return nil, ans
}

// judge answers Resolve.
func (q Resolve) judge(t *turn) (*Record, Answer) {
	switch {
	case t.rec == nil:
		return refuse(VerdictRecordChanged)
	case t.rec.ByOperator() && t.rec.ResolvedFrom == q.Version && t.ownVerdict(q):
		return ok(nil)
	case t.rec.State != StateReserved && t.rec.State != StateUnknown:
		return refuse(VerdictRecordChanged)
	case t.effectsLeft() > 0:
		return t.inProgress(t.effectsLeft())
	case t.rec.Version != q.Version:
		return refuse(VerdictRecordChanged)
	}
	next := t.rec.clone()
	next.Open = false // the verdict is on every run so far
	if q.Completed {
		next.settle(t.now, q.Outcome, t.retention(q.Terms), q.Terms.Tombstone)
		next.Note = q.Note
	} else {
		t.setFree(next, EffectNone, q.Note, q.Terms)
	}
	next.ResolvedFrom = q.Version
	return ok(next)
}

func (t *turn) ownVerdict(q Resolve) bool {
	if !q.Completed {
		return t.state == StateReleased || t.state == StateCompleted && t.rec.ReleasedAs == EffectNone
	}
	return t.state == StateCompleted && t.rec.Outcome.Hash() == q.Outcome.Hash()
}
