package storage

import (
	"slices"
	"time"
)

// Redact and Forget erase. Where there is neither a record nor an open entry the
// verdict is NotFound, and closed entries are erased all the same.

// judge answers Redact.
func (Redact) judge(t *turn) (*Record, Answer) {
	ans := t.mayErase()
	if ans.Verdict == VerdictInProgress {
		return nil, ans
	}
	t.redact = true
	for _, e := range t.entries {
		t.changed = append(t.changed, e.Redacted())
	}
	if t.row == nil || t.row.redacted() {
		return nil, ans
	}
	return t.row.redact(), ans
}

// judge answers Forget.
func (Forget) judge(t *turn) (*Record, Answer) {
	ans := t.mayErase()
	if ans.Verdict == VerdictInProgress {
		return nil, ans
	}
	t.forget = true
	return nil, ans
}

// mayErase refuses while an effect may still land: what must be known to keep it
// single would be gone.
func (t *turn) mayErase() Answer {
	if !t.rec.ErasableAt(t.now, t.skew) {
		_, ans := t.inProgress(t.effectsLeft())
		return ans
	}
	if t.rec == nil && !t.stub() && !slices.ContainsFunc(t.entries, (*DeadLetter).Open) {
		return Answer{Verdict: VerdictNotFound}
	}
	return Answer{Verdict: VerdictOK}
}

// ErasableAt reports whether no effect of r may land any more, so that Redact and
// Forget would erase it.
func (r *Record) ErasableAt(now Instant, skew time.Duration) bool {
	unfinished := r != nil && (r.State == StateReserved || r.State == StateUnknown)
	return !unfinished || r.effectsLeft(now, skew) <= 0
}

// redacted reports whether nothing of r is left to redact.
func (r *Record) redacted() bool {
	return r.Redacted && r.Note == "" && (r.Outcome == nil || r.Outcome.Erased) && (r.Reopened == nil || r.Reopened.Erased)
}

// redact returns r without what tells of a person. A kept error is dropped: it
// would be told.
func (r *Record) redact() *Record {
	c := r.clone()
	c.Redacted, c.RedactedID = true, r.ID()
	c.Identity.Caller, c.Identity.Key, c.Note = "", "", ""
	c.Outcome, c.Reopened = r.Outcome.erased(), r.Reopened.erased()
	if c.State == StateReleased {
		c.Outcome, c.HoldEnd = nil, 0
	}
	return c
}

// Redacted returns e without what tells of a person; it cannot be replayed any
// more.
func (e *DeadLetter) Redacted() *DeadLetter {
	c := *e
	c.Identity.Caller, c.Identity.Key = "", ""
	c.HasRequest, c.TypeURL, c.Request, c.Metadata = false, "", nil, nil
	c.Status, c.ReplayStatus, c.Signature, c.Note = nil, nil, "", ""
	return &c
}
