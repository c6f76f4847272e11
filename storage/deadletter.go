package storage

import (
	"fmt"
	"time"
)

// Limits and defaults of dead letters.
const (
	DefaultEntryCap  = 100_000             // open entries of one namespace
	DefaultEntryHold = 30 * 24 * time.Hour // a closed entry is kept, for people to look at
	DefaultClaim     = time.Minute
	MinClaim         = time.Second
	MaxClaim         = 15 * time.Minute
	MaxEntryRequest  = 4 << 20 // bytes of a request; a larger one is left out
	MaxEntryAttempts = 16      // attempts that an entry tells, the last ones
)

// EntryID names a dead letter. Its first eight bytes are the store's clock in
// microseconds, big endian, so that ids are in the order of parking.
type EntryID [16]byte

// ClaimToken is 16 random bytes, made in memory by the replayer: who knows it
// holds the claim.
type ClaimToken [16]byte

// EntryKind says why an entry was parked.
type EntryKind uint8

// The kinds. One record has at most one open entry of each.
const (
	EntryExhausted    EntryKind = iota + 1 // a request ran out of attempts
	EntryUnreconciled                      // nobody could find out what a run did
	EntryOverdue                           // unfinished one retention time after its last grant
	EntryConflict                          // a refused Complete: the trace of a double effect
)

// String returns the kind's name in lower snake.
func (k EntryKind) String() string {
	switch k {
	case EntryExhausted:
		return "exhausted"
	case EntryUnreconciled:
		return "unreconciled"
	case EntryOverdue:
		return "overdue"
	case EntryConflict:
		return "conflict"
	}
	return fmt.Sprintf("entry_kind(%d)", uint8(k))
}

// EntryState of a dead letter. A lapsed claim needs nobody to be right: whoever
// reads a REPLAYING entry judges it by the store's clock (StateAt).
type EntryState uint8

// The states. PARKED and REPLAYING are open: they pin the record.
const (
	EntryParked EntryState = iota + 1
	EntryReplaying
	EntryResolved
	EntryDiscarded
)

// String returns the state's name in lower snake.
func (s EntryState) String() string {
	switch s {
	case EntryParked:
		return "parked"
	case EntryReplaying:
		return "replaying"
	case EntryResolved:
		return "resolved"
	case EntryDiscarded:
		return "discarded"
	}
	return fmt.Sprintf("entry_state(%d)", uint8(s))
}

// EntryResult says how the last replay ended, or what closed the entry.
type EntryResult uint8

// The results; zero is none yet.
const (
	ResultReplayed    EntryResult = iota + 1 // a replay ran the handler, with success
	ResultAlreadyDone                        // a replay found the work done
	ResultSuperseded                         // the caller's own retry, or an operator's verdict, settled it
	ResultFailed                             // a replay ended with an error: parked again
	ResultGivenBack                          // claimed, not tried: parked again, not counted
)

// EntryAttempt is one try that an entry remembers.
type EntryAttempt struct {
	At   Instant // by the client's clock: for people only
	Code int32
}

// DeadLetter is a request or a record that needs somebody. Only ApplyCase makes
// new ones; a store keeps and returns them whole.
type DeadLetter struct {
	ID       EntryID
	Kind     EntryKind
	State    EntryState // as stored; StateAt judges it
	Record   RecordID
	Identity Identity
	Pinned   bool // counts in its record's Pins

	// What to send again, and where it was sent. Without a request the entry
	// cannot be replayed.
	Target      string // as the client dialled it: for people, never dialled by dedupd
	Method      string // full gRPC method name, or the adapter's own
	HasRequest  bool
	TypeURL     string
	Request     []byte
	RequestSize int64 // also of a request that was left out
	Metadata    []MetadataEntry
	Fingerprint Fingerprint

	Code      int32
	Status    []byte // google.rpc.Status of the failure that it was last parked for
	Signature string // its message with numbers and ids masked: what groups entries
	Attempts  []EntryAttempt

	ParkID       AttemptID // of the last Park: a repeat changes nothing
	Count        int64     // Parks
	ParkedAt     Instant   // the first
	LastParkedAt Instant
	Parent       EntryID // edited from; zero: none

	Claim      ClaimToken
	ClaimEnd   Instant
	ClaimFence Fence   // the last grant that a Reserve with the claim made; zero: none
	ByOperator bool    // of the claim, or asked for by Requeue: may open a final error
	Requested  bool    // Requeue asked for a replay
	NotBefore  Instant // no claim by filter until then
	Replays    int64   // claims that were not given back
	// ReplayStatus is the google.rpc.Status of the last replay that failed. It
	// stands beside Status: whoever replays by mistake must not move the entry
	// out of its group.
	ReplayStatus []byte
	Result       EntryResult
	Note         string
	ClosedAt     Instant
	DropAt       Instant // of a closed entry; zero: none

	Conflict *Conflict // of EntryConflict
}

// StateAt judges e by the store's clock: a lapsed claim is no claim.
func (e *DeadLetter) StateAt(now Instant) EntryState {
	if e.State == EntryReplaying && now >= e.ClaimEnd {
		return EntryParked
	}
	return e.State
}

// Open reports whether somebody still has to act on e.
func (e *DeadLetter) Open() bool { return e.State == EntryParked || e.State == EntryReplaying }
