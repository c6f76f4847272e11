package storage

import (
	"fmt"
	"slices"
	"time"
)

// Limits and defaults of times and outcomes. Zero in a request means the
// default, never "none".
const (
	DefaultLease = 30 * time.Second
	MinLease     = time.Second
	MaxLease     = 15 * time.Minute
	// MaxHandedLease bounds what Extend may ask for: a grant that another process
	// finishes may last that long.
	MaxHandedLease = 24 * time.Hour

	DefaultRetention = 7 * 24 * time.Hour
	MinRetention     = time.Minute
	MaxRetention     = 400 * 24 * time.Hour
	DefaultTombstone = 30 * 24 * time.Hour
	MaxTombstone     = 400 * 24 * time.Hour

	DefaultMaxOutcome = 1 << 20
	CeilMaxOutcome    = 4 << 20

	MaxHold = 15 * time.Minute
	MaxWait = 30 * time.Second
	MaxNote = 1024
)

// Bounds of what a record remembers, and of the answers' hints.
const (
	maxEnded      = 8               // attempt ids of ended grants
	maxSuperseded = 4               // fingerprints that a later grant replaced
	markTime      = 2 * time.Minute // life of a spent mark
	maxRetryAfter = time.Second     // cap of the retry hint
	settleTime    = 30 * time.Second
)

// Instant is a point in time by the store's clock, in microseconds since the
// Unix epoch; zero means "none".
type Instant int64

// InstantOf converts t, cutting to microseconds.
func InstantOf(t time.Time) Instant { return Instant(t.UnixMicro()) }

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d/time.Microsecond) }

// Sub returns the time from o to i.
func (i Instant) Sub(o Instant) time.Duration { return time.Duration(i-o) * time.Microsecond }

// Time returns i for people.
func (i Instant) Time() time.Time { return time.UnixMicro(int64(i)).UTC() }

// Fence grows with every grant of a key, also over the deletion of its record.
type Fence int64

// AttemptID names one try: 16 random bytes, made in memory.
type AttemptID [16]byte

// State of a record. Absent and Expired are computed from the times of a
// record; only a spent mark is stored as Absent, and Expired never is.
type State uint8

// The states.
const (
	StateAbsent    State = iota + 1 // no record, or one whose time is over
	StateReserved                   // granted, lease running
	StateReleased                   // ended, may be run again
	StateUnknown                    // the effect may or may not have happened
	StateCompleted                  // the outcome is stored
	StateExpired                    // past its retention, within the tombstone time
)

// String returns the state's name in lower snake.
func (s State) String() string {
	switch s {
	case StateAbsent:
		return "absent"
	case StateReserved:
		return "reserved"
	case StateReleased:
		return "released"
	case StateUnknown:
		return "unknown"
	case StateCompleted:
		return "completed"
	case StateExpired:
		return "expired"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Mode of a grant.
type Mode uint8

// The modes.
const (
	ModeRun       Mode = iota + 1 // run the handler
	ModeReconcile                 // find out first what an earlier run did
)

// Effect is what a run that ended without success left behind.
type Effect uint8

// The effects.
const (
	EffectNone       Effect = iota + 1 // nothing was applied
	EffectRepeatable                   // only under child keys: the same request may run again
	EffectUnknown                      // it may or may not have happened
)

// Record is what is stored for one identity. Only Apply makes new ones; a store
// keeps and returns them whole.
type Record struct {
	Identity Identity
	State    State // as stored; StateAt judges it
	// Version grows with every write of the record, also over its deletion; it
	// names exactly what was read. VersionAt is the one to tell.
	Version int64

	// The current or last grant.
	Fence     Fence
	Attempt   AttemptID
	Mode      Mode
	Lease     time.Duration // length asked for last
	LeaseEnd  Instant
	GrantedAt Instant
	// The last grant that ran or may run the handler, kept over any number of
	// RECONCILE grants.
	RunFence   Fence
	RunAttempt AttemptID
	RunEnd     Instant // end of its lease

	Grants    int64   // in this life of the record; not those released before they ran
	PrevGrant Instant // time of the grant before the current one
	CreatedAt Instant

	// Open: the last run was granted from UNKNOWN by RERUN, so an earlier run may
	// have applied the effect, and an error of this one settles nothing.
	Open bool
	// Bound: something may have been applied under child keys, so that only the
	// same request may run again.
	Bound bool

	Fingerprint Fingerprint
	Superseded  []Fingerprint // replaced by a later grant, newest last
	Ended       []AttemptID   // never granted again, newest last

	ReleasedAs  Effect   // how the last Release was sent
	Outcome     *Outcome // of COMPLETED; of RELEASED the kept error
	HoldEnd     Instant  // end of the kept error
	CompletedAt Instant
	ExpiresAt   Instant // from here on EXPIRED
	DropAt      Instant // from here on absent; zero: the record has no end

	// ResolvedFrom is the version that an operator's verdict was made from; zero
	// where no operator settled the record.
	ResolvedFrom int64
	Note         string

	// Pins are the open dead letters that hold the record: with any, it does not
	// expire. A record that was absent when it was pinned is a stub: stored as
	// Absent, judged as absent by every call.
	Pins int32
	// Reopened is the final error that a replay opened again; it comes back where
	// that run turns out to have applied nothing.
	Reopened *Outcome
	// Redacted: what told of a person is erased, caller and key too. RedactedID is
	// then the id, which the identity no longer yields; else zero. ID tells both.
	Redacted   bool
	RedactedID RecordID
	// Trace is the W3C trace context of the last run, to link a replay to: trace
	// id, span id and flags, 25 bytes, or empty.
	Trace []byte
}

// ID is the record's id.
func (r *Record) ID() RecordID {
	if r.Redacted {
		return r.RedactedID
	}
	return r.Identity.RecordID()
}

// StateAt judges r, which may be nil, by the store's clock. A lease counts as
// lapsed skew after its end. A record with Pins does not expire.
func (r *Record) StateAt(now Instant, skew time.Duration) State {
	switch {
	case r == nil || r.OverAt(now):
		return StateAbsent
	case r.Pins == 0 && r.ExpiresAt != 0 && now >= r.ExpiresAt:
		return StateExpired
	case r.State == StateReserved && r.leaseOver(now, skew):
		return StateUnknown
	}
	return r.State
}

// OverAt reports whether the record's time is over, so that a store may delete it.
func (r *Record) OverAt(now Instant) bool { return r.Pins == 0 && r.DropAt != 0 && now >= r.DropAt }

// VersionAt is the version to tell an operator who looks at r, which may be
// nil, now, and whom Resolve holds to it. It is zero, the version of no record,
// as long as the effect of a grant may still land: a look before that is no
// ground for a verdict after it.
func (r *Record) VersionAt(now Instant, skew time.Duration) int64 {
	if r == nil || r.effectsLeft(now, skew) > 0 {
		return 0
	}
	return r.Version
}

// ByOperator reports whether an operator settled the record.
func (r *Record) ByOperator() bool { return r.ResolvedFrom != 0 }

func (r *Record) leaseOver(now Instant, skew time.Duration) bool {
	return now >= r.LeaseEnd.Add(skew)
}

// effectsLeft is how long effects of the grants so far may still land: to the
// end of the current lease and of the last running one, which outlives it where
// a reconciler was granted before that end. Negative once that is over.
func (r *Record) effectsLeft(now Instant, skew time.Duration) time.Duration {
	return max(r.LeaseEnd, r.RunEnd).Add(skew).Sub(now)
}

func (r *Record) hasEnded(a AttemptID) bool { return slices.Contains(r.Ended, a) }

// startRun makes the current grant the last running one.
func (r *Record) startRun() { r.RunFence, r.RunAttempt, r.RunEnd = r.Fence, r.Attempt, r.LeaseEnd }

// endAttempt remembers an attempt id that is never to be granted again.
func (r *Record) endAttempt(a AttemptID) {
	if !r.hasEnded(a) {
		r.Ended = pushLast(r.Ended, a, maxEnded)
	}
}

// unsettle clears what a settled record carried.
func (r *Record) unsettle() {
	r.Outcome, r.ReleasedAs, r.Note = nil, 0, ""
	r.HoldEnd, r.CompletedAt, r.ExpiresAt, r.DropAt = 0, 0, 0, 0
	r.ResolvedFrom = 0
}

// release ends the grant in state s.
func (r *Record) release(s State, as Effect, note string) {
	r.unsettle()
	r.State, r.ReleasedAs, r.Note = s, as, note
	r.endAttempt(r.Attempt)
}

// settle completes the record. What guards a later grant is dropped with it:
// every Reserve but a replay's is answered from the outcome from here on.
func (r *Record) settle(now Instant, o *Outcome, retention, tombstone time.Duration) {
	r.unsettle()
	r.State, r.Outcome, r.Reopened = StateCompleted, o, nil
	r.Bound, r.Open, r.Superseded = false, false, nil
	if o.Success() {
		r.Ended = nil // an error may be opened again by a replay, and old attempts stay spent
	}
	r.CompletedAt = now
	r.ExpiresAt = now.Add(retention)
	r.DropAt = r.ExpiresAt.Add(tombstone)
}

// clone copies r so that Apply never writes to what it was given. Slices are
// only ever replaced (pushLast), so they are shared.
func (r *Record) clone() *Record {
	c := *r
	return &c
}

// pushLast returns a new slice with v at its end and at most limit elements.
func pushLast[T any](s []T, v T, limit int) []T {
	from := max(0, len(s)+1-limit)
	out := make([]T, 0, len(s)+1-from)
	out = append(out, s[from:]...)
	return append(out, v)
}
