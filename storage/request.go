package storage

import (
	"crypto/sha256"
	"fmt"
	"time"
)

// Request is one of the calls that Apply and ApplyCase judge: Reserve, BeginRun,
// Complete, Extend, Release, Lookup, Resolve, Redact, Forget, and Park, Claim,
// Settle, Requeue, Discard.
type Request interface {
	judge(t *turn) (*Record, Answer)
}

// Terms are the namespace's settings that the server sends along.
type Terms struct {
	Retention time.Duration // of a settled record; zero means DefaultRetention
	Tombstone time.Duration // refused with KEY_EXPIRED after it; zero means none
	EntryCap  int           // open entries of a namespace; zero means DefaultEntryCap
	EntryHold time.Duration // a closed entry is kept; zero means DefaultEntryHold
}

// OnUnknown says what a Reserve wants when an earlier run's outcome is unknown.
type OnUnknown uint8

// The choices; zero is Refuse.
const (
	OnUnknownRefuse OnUnknown = iota
	OnUnknownReconcile
	OnUnknownRerun
)

// Basis is why no earlier grant can still act after a look at the effect.
type Basis uint8

// The bases; zero is none.
const (
	BasisBounded Basis = iota + 1 // no effect of a grant lands after its lease
	BasisFenced                   // the resource refuses fences below the highest seen
	BasisInbox                    // effect, record id and fingerprint commit together
)

// Reserve asks for a grant.
type Reserve struct {
	Identity    Identity
	Fingerprint Fingerprint
	Attempt     AttemptID
	Lease       time.Duration // zero means DefaultLease
	OnUnknown   OnUnknown
	Basis       Basis        // with OnUnknownReconcile
	Claim       *ReplayClaim // of a replay: Identity's caller is then the entry's
	Trace       []byte       // Record.Trace of the run that a grant starts
	Terms       Terms        // read with Claim only
}

// BeginRun turns a live RECONCILE grant into a running one.
type BeginRun struct {
	Attempt AttemptID
	Fence   Fence
}

// Complete stores the outcome.
type Complete struct {
	Identity  Identity // read only where a conflict is parked and there is no record
	Attempt   AttemptID
	Fence     Fence
	Outcome   *Outcome
	Retention time.Duration // lengthens the namespace's, never shortens it
	Terms     Terms
}

// Extend asks for more time.
type Extend struct {
	Attempt AttemptID
	Fence   Fence
	Lease   time.Duration // from now; zero means DefaultLease
}

// Release ends a run without a stored success. Fence zero comes from a caller
// that never read its grant.
type Release struct {
	Identity Identity
	Attempt  AttemptID
	Fence    Fence
	Effect   Effect
	Error    *Outcome // kept for Hold, where nothing is left unknown
	Hold     time.Duration
	Note     string
	Terms    Terms
}

// Lookup tells the state, and the outcome to an equal fingerprint.
type Lookup struct {
	Fingerprint Fingerprint // empty: no outcome is told
}

// Resolve carries an operator's verdict.
type Resolve struct {
	Version   int64    // VersionAt of the record that the operator looked at
	Completed bool     // else released
	Outcome   *Outcome // of Completed; nil: repeats get OUTCOME_NOT_STORED
	Note      string
	Terms     Terms
}

// Verdict is what Apply answers.
type Verdict uint8

// The verdicts. All after VerdictInProgress are refusals, which write nothing.
const (
	VerdictOK             Verdict = iota + 1
	VerdictGranted                // Reserve: the key is the caller's
	VerdictCompleted              // Reserve: the work is done, or a kept error
	VerdictInProgress             // somebody else holds the key
	VerdictOutcomeUnknown         // nobody knows, and the caller may not find out
	VerdictKeyReused              // another request was made under the key
	VerdictKeyExpired             // past the retention
	VerdictStaleHolder            // the record is no longer the caller's
	VerdictNotReconciled          // BeginRun comes first
	VerdictRecordChanged          // Resolve: not the version that was looked at
	VerdictNotFound               // no such entry, or no such record
	VerdictEntryChanged           // the entry is not in a state, or under a claim, that allows it
	VerdictClaimInvalid           // Reserve: the claim does not hold for this record
	VerdictFull                   // Park: the namespace is at its cap
)

// String returns the verdict's name in lower snake.
func (v Verdict) String() string {
	names := [...]string{
		VerdictOK: "ok", VerdictGranted: "granted", VerdictCompleted: "completed",
		VerdictInProgress: "in_progress", VerdictOutcomeUnknown: "outcome_unknown",
		VerdictKeyReused: "key_reused", VerdictKeyExpired: "key_expired",
		VerdictStaleHolder: "stale_holder", VerdictNotReconciled: "not_reconciled",
		VerdictRecordChanged: "record_changed", VerdictNotFound: "not_found",
		VerdictEntryChanged: "entry_changed", VerdictClaimInvalid: "claim_invalid", VerdictFull: "full",
	}
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Answer is what a call gets. Record is the record as it stands after the call,
// never to be written to; nil where there is none.
type Answer struct {
	Verdict Verdict
	State   State // after the call
	Record  *Record
	// Now is the store's clock when Apply judged, and once more after the write
	// where there was one: what is left of a lease is counted from it.
	Now Instant

	// Outcome may be told to this caller.
	Outcome *Outcome
	// Kept: Outcome is an error held for a short time, not a final outcome.
	Kept bool
	// RetryAfter is a hint; zero where waiting does not help.
	RetryAfter time.Duration
	// Late: a Complete arrived for a record that had been released meanwhile.
	Late bool
	// Conflict: a refused Complete that may be the trace of a double effect. It is
	// parked in the same step.
	Conflict *Conflict
	// Entry is the entry that the call was about, as it stands after it; for
	// Reserve and Complete an open one of the record, if any: the oldest.
	Entry *DeadLetter
	// Parked: Entry is new, or its Count was raised.
	Parked bool
}

// Conflict describes a refused Complete: somebody may have to undo an effect.
type Conflict struct {
	RefusedFence Fence
	RecordFence  Fence // zero where there is no record
	Success      bool  // the refused outcome was a success
	RefusedHash  [sha256.Size]byte
	RecordHash   [sha256.Size]byte // zero where no outcome is stored
	At           Instant
}

// LeaseLeft is what is left of the record's lease, never negative.
func (a Answer) LeaseLeft() time.Duration {
	if a.Record == nil {
		return 0
	}
	return max(0, a.Record.LeaseEnd.Sub(a.Now))
}
