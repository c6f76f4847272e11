package storage

import (
	"cmp"
	"slices"
	"time"
)

// turn is one judgement.
type turn struct {
	now   Instant
	skew  time.Duration
	row   *Record // what is stored, be it a mark or past its time
	rec   *Record // the same, nil where it counts as absent
	state State
	letters
}

func newTurn(c Case, now Instant, skew time.Duration) *turn {
	t := &turn{now: now, skew: skew, row: c.Record, state: c.Record.StateAt(now, skew), letters: letters{entries: c.Entries}}
	if t.state != StateAbsent {
		t.rec = c.Record
	}
	return t
}

// finish gives what is to be written its version, and the answer what each has.
func (t *turn) finish(next *Record, ans Answer) Answer {
	ans.Now = t.now
	ans.Record = t.rec
	if next != nil {
		next.Version = int64(t.now)
		if t.row != nil {
			next.Version = max(t.row.Version+1, next.Version)
		}
		ans.Record = next
		if next.StateAt(t.now, t.skew) == StateAbsent {
			ans.Record = nil // a mark is no record, nor is a stub
		}
	}
	ans.State = ans.Record.StateAt(t.now, t.skew)
	return ans
}

// reused reports whether the record belongs to another request.
func (t *turn) reused(f Fingerprint) bool {
	switch t.state {
	case StateAbsent:
		return false
	case StateReleased:
		for _, old := range t.rec.Superseded {
			if old.Same(f) {
				return true
			}
		}
		return t.rec.Bound && !t.rec.Fingerprint.Same(f)
	case StateReserved, StateUnknown, StateCompleted, StateExpired:
	}
	return !t.rec.Fingerprint.Same(f)
}

// holds reports whether the caller's is the current or last grant.
func (t *turn) holds(a AttemptID, f Fence) bool {
	return t.rec != nil && t.rec.Attempt == a && t.rec.Fence == f
}

// ran reports whether the caller's is the last grant that ran.
func (t *turn) ran(a AttemptID, f Fence) bool {
	return t.rec != nil && t.rec.RunAttempt == a && t.rec.RunFence == f
}

// current reports whether a names a grant that has not ended, live or lapsed.
func (t *turn) current(a AttemptID) bool {
	return t.rec != nil && t.rec.State == StateReserved && t.rec.Attempt == a
}

// spent reports whether a, which is not current, was granted once or was given
// back unread.
func (t *turn) spent(a AttemptID) bool {
	if t.rec != nil {
		return t.rec.Attempt == a || t.rec.RunAttempt == a || t.rec.hasEnded(a)
	}
	return slices.Contains(t.spentMarks(), a)
}

// spentMarks are the attempt ids of a mark that is still kept.
func (t *turn) spentMarks() []AttemptID {
	if t.row == nil || t.row.State != StateAbsent || t.now >= t.row.DropAt {
		return nil
	}
	return t.row.Ended
}

// kept reports whether a kept error answers this request.
func (t *turn) kept(f Fingerprint) bool {
	return t.state == StateReleased && t.rec.Outcome != nil && t.now < t.rec.HoldEnd && t.rec.Fingerprint.Same(f)
}

func (t *turn) effectsLeft() time.Duration { return t.rec.effectsLeft(t.now, t.skew) }

func (t *turn) inProgress(retry time.Duration) (*Record, Answer) {
	return nil, Answer{Verdict: VerdictInProgress, RetryAfter: max(retry, time.Millisecond)}
}

func (t *turn) retention(terms Terms) time.Duration { return cmp.Or(terms.Retention, DefaultRetention) }
