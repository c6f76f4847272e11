package storage

import (
	"time"
)

// mutations are the rules of transition.go, each broken in one way.
func mutations() map[string]rules {
	return map[string]rules{
		"no fence and no holder check": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			return rec, holding(q, rec.Attempt, rec.Fence)
		}),
		"no fence check": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			return rec, noFenceCheck(rec, q)
		}),
		"no fence check, ended attempts forgotten": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			rec.Ended = nil
			return rec, noFenceCheck(rec, q)
		}),
		"ended attempts forgotten": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			rec.Ended = nil
			return rec, q
		}),
		"no attempt ids": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			return rec, noAttemptIDs(rec, q)
		}),
		"fence restarts after absence": func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
			next, ans := Apply(rec, q, now, skew)
			if ans.Verdict == VerdictGranted && next != nil && rec.StateAt(now, skew) == StateAbsent {
				next.Fence, next.RunFence = 1, 1
			}
			return next, ans
		},
		"fence frozen": granted(func(rec, next *Record) {
			if rec != nil && rec.Fence != 0 {
				next.Fence = rec.Fence
			}
		}),
		"Complete after another grant": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if _, ok := q.(Complete); ok {
				return rec, holding(q, rec.Attempt, rec.Fence)
			}
			return rec, q
		}),
		"lapsed as absent": before(func(rec *Record, now Instant, q Request) (*Record, Request) {
			if _, ok := q.(Reserve); ok && rec.State == StateReserved && rec.StateAt(now, 0) == StateUnknown {
				return nil, q
			}
			return rec, q
		}),
		"Release ignores attempt and fence": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if _, ok := q.(Release); ok {
				return rec, holding(q, rec.Attempt, rec.Fence)
			}
			return rec, q
		}),
		"mode not stored": func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
			next, ans := Apply(rec, q, now, skew)
			if next != nil && ans.Verdict == VerdictGranted {
				told := *next
				ans.Record = &told
				next.Mode = ModeRun
			}
			return next, ans
		},
		"Complete creates": func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
			c, ok := q.(Complete)
			if !ok || rec.StateAt(now, skew) != StateAbsent {
				return Apply(rec, q, now, skew)
			}
			made, _ := Apply(rec, Reserve{Identity: identity, Fingerprint: fpOne, Attempt: c.Attempt}, now, skew)
			c.Fence = made.Fence
			return Apply(made, c, now, skew)
		},
		"Complete overwrites": before(func(rec *Record, now Instant, q Request) (*Record, Request) {
			if _, ok := q.(Complete); ok && rec.StateAt(now, 0) == StateCompleted {
				rec.State = StateReserved
			}
			return rec, q
		}),
		"fingerprints unchecked": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if r, ok := q.(Reserve); ok {
				if len(rec.Fingerprint) > 0 {
					r.Fingerprint = rec.Fingerprint
				}
				rec.Superseded = nil
				return rec, r
			}
			return rec, q
		}),
		"expired as absent": before(func(rec *Record, now Instant, q Request) (*Record, Request) {
			if rec.StateAt(now, 0) == StateExpired {
				return nil, q
			}
			return rec, q
		}),
		"unknown runs whatever the policy": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if r, ok := q.(Reserve); ok {
				r.OnUnknown = OnUnknownRerun
				return rec, r
			}
			return rec, q
		}),
		"no lapse": func(rec *Record, q Request, now Instant, _ time.Duration) (*Record, Answer) {
			return Apply(rec, q, now, 1<<40)
		},
		"attempt id used by another process": func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
			_, f := holder(q)
			q = holding(q, attempt(1), f)
			if r, ok := q.(Reserve); ok {
				r.Attempt = attempt(1)
				q = r
			}
			return Apply(rec, q, now, skew)
		},
		"unfinished records age out": after(func(_, next *Record, _ Request) {
			if next.State == StateReserved || next.State == StateUnknown {
				next.DropAt = next.GrantedAt.Add(searchRetention)
			}
		}),
		"BeginRun shuts nobody out": after(func(rec, next *Record, q Request) {
			if _, ok := q.(BeginRun); ok {
				next.RunFence, next.RunAttempt = rec.RunFence, rec.RunAttempt
			}
		}),
		"bound cleared by a release": after(func(rec, next *Record, q Request) {
			if _, ok := q.(Release); ok && rec != nil && rec.Bound {
				next.Bound = false
			}
		}),
		"bound cleared by a verdict": after(func(_, next *Record, q Request) {
			if _, ok := q.(Resolve); ok {
				next.Bound = false
			}
		}),
		"bound ends absent": after(func(_, next *Record, _ Request) {
			if next.Bound && next.DropAt != 0 {
				next.DropAt = next.ExpiresAt
			}
		}),
		"bound not learnt from an open run": after(func(rec, next *Record, q Request) {
			if _, ok := q.(Release); ok && next.Open && !rec.Bound {
				next.Bound = false
			}
		}),
		"open not kept":             granted(func(_, next *Record) { next.Open = false }),
		"open lost to a reconciler": granted(func(_, next *Record) { next.Open = next.Open && next.Mode == ModeRun }),
		"an open run's error settles": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if _, ok := q.(Complete); ok {
				rec.Open = false
			}
			return rec, q
		}),
		"Release(UNKNOWN) shortens the lease": func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
			next, ans := Apply(rec, q, now, skew)
			if _, ok := q.(Release); ok && next != nil && next.State == StateUnknown {
				next.LeaseEnd, next.RunEnd = now, now
			}
			return next, ans
		},
		"the waiver given to all": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if r, ok := q.(Reserve); ok && r.OnUnknown == OnUnknownReconcile {
				r.Basis = BasisFenced
				return rec, r
			}
			return rec, q
		}),
		"Resolve without version": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if r, ok := q.(Resolve); ok {
				r.Version = rec.Version
				return rec, r
			}
			return rec, q
		}),
		"Resolve while effects may land": before(func(rec *Record, now Instant, q Request) (*Record, Request) {
			if _, ok := q.(Resolve); ok {
				rec.LeaseEnd, rec.RunEnd = min(rec.LeaseEnd, now), min(rec.RunEnd, now)
			}
			return rec, q
		}),
		"superseded fingerprints forgotten": after(func(_, next *Record, _ Request) { next.Superseded = nil }),
		"Lookup without fingerprint": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if r, ok := q.(Lookup); ok {
				r.Fingerprint = rec.Fingerprint
				return rec, r
			}
			return rec, q
		}),
		"Release and Extend act on settled records": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			switch q.(type) {
			case Release, Extend:
				if rec.State != StateCompleted && rec.State != StateAbsent {
					rec.State = StateReserved
				}
			}
			return rec, q
		}),
		"Release(NONE) from a reconciler": before(func(rec *Record, _ Instant, q Request) (*Record, Request) {
			if _, ok := q.(Release); ok {
				rec.Mode = ModeRun
			}
			return rec, q
		}),
		"a repeat of a lapsed grant judged as unknown": before(func(rec *Record, now Instant, q Request) (*Record, Request) {
			if _, ok := q.(Reserve); ok && rec.StateAt(now, 0) == StateUnknown {
				rec.State = StateUnknown
			}
			return rec, q
		}),
		"no spent mark": func(rec *Record, q Request, now Instant, skew time.Duration) (*Record, Answer) {
			next, ans := Apply(rec, q, now, skew)
			if next != nil && next.State == StateAbsent {
				return nil, Answer{Verdict: VerdictOK, State: StateAbsent}
			}
			return next, ans
		},
		"the running holder not kept": granted(func(rec, next *Record) {
			if next.Mode == ModeReconcile {
				next.RunFence, next.RunAttempt = 0, AttemptID{}
			}
		}),
		"Extend after a lapse": before(func(rec *Record, now Instant, q Request) (*Record, Request) {
			if _, ok := q.(Extend); ok && rec.State == StateReserved {
				rec.LeaseEnd = max(rec.LeaseEnd, now.Add(time.Second))
			}
			return rec, q
		}),
		"BeginRun after a lapse": before(func(rec *Record, now Instant, q Request) (*Record, Request) {
			if _, ok := q.(BeginRun); ok && rec.State == StateReserved {
				rec.LeaseEnd = max(rec.LeaseEnd, now.Add(time.Second))
			}
			return rec, q
		}),
	}
}
