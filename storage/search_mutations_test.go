package storage

import (
	"encoding/binary"
	"time"
)

// before breaks a rule by changing what Apply is given; rec is a copy, never nil.
func before(change func(rec *Record, now Instant, q Request) (*Record, Request)) rules {
	return func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
		if rec == nil {
			return Apply(rec, q, now, skew)
		}
		given, q := change(rec.clone(), now, q)
		next, ans := Apply(given, q, now, skew)
		if next == nil && given != nil {
			ans.Record.restore(rec)
		}
		return next, ans
	}
}

// restore gives an answer that wrote nothing the record as it is stored.
func (r *Record) restore(stored *Record) {
	if r != nil {
		*r = *stored
	}
}

// after breaks a rule by changing what Apply wrote; next is Apply's own.
func after(change func(rec, next *Record, q Request)) rules {
	return func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
		next, ans := Apply(rec, q, now, skew)
		if next != nil {
			change(rec, next, q)
		}
		return next, ans
	}
}

// granted changes what a Reserve wrote.
func granted(change func(rec, next *Record)) rules {
	return after(func(rec, next *Record, q Request) {
		if _, ok := q.(Reserve); ok {
			change(rec, next)
		}
	})
}

// holding turns q into the call of holder (a, f).
func holding(q Request, a AttemptID, f Fence) Request {
	switch q := q.(type) {
	case Complete:
		q.Attempt, q.Fence = a, f
		return q
	case Extend:
		q.Attempt, q.Fence = a, f
		return q
	case BeginRun:
		q.Attempt, q.Fence = a, f
		return q
	case Release:
		if q.Fence != 0 {
			q.Attempt, q.Fence = a, f
		}
		return q
	}
	return q
}

// holder tells whose call q is.
func holder(q Request) (AttemptID, Fence) {
	switch q := q.(type) {
	case Complete:
		return q.Attempt, q.Fence
	case Extend:
		return q.Attempt, q.Fence
	case BeginRun:
		return q.Attempt, q.Fence
	case Release:
		return q.Attempt, q.Fence
	case Reserve:
		return q.Attempt, 0
	}
	return AttemptID{}, 0
}

func noFenceCheck(rec *Record, q Request) Request {
	switch a, f := holder(q); {
	case f != 0 && a == rec.Attempt:
		return holding(q, a, rec.Fence)
	case f != 0 && a == rec.RunAttempt:
		return holding(q, a, rec.RunFence)
	}
	return q
}

func noAttemptIDs(rec *Record, q Request) Request {
	if r, ok := q.(Reserve); ok {
		r.Attempt = AttemptID{200}
		binary.BigEndian.PutUint64(r.Attempt[1:], uint64(rec.Version))
		return r
	}
	switch _, f := holder(q); f {
	case 0:
	case rec.Fence:
		return holding(q, rec.Attempt, f)
	case rec.RunFence:
		return holding(q, rec.RunAttempt, f)
	}
	return q
}
