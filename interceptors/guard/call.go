package guard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

// Defaults and bounds of a Call.
const (
	// DefaultLease is the lease asked for when Call.Lease is zero.
	DefaultLease = 30 * time.Second
	// MinLease and MaxLease bound Call.Lease.
	MinLease = time.Second
	// MaxLease is the longest lease that dedupd grants.
	MaxLease = 15 * time.Minute
	// MaxHandedLease is the longest lease of a grant that was handed over.
	MaxHandedLease = 24 * time.Hour
	// DefaultHandedLease is the lease that Handoff asks for when it is told none.
	DefaultHandedLease = time.Hour
	// DefaultMaxRun is how long a run may take when Call.MaxRun is zero.
	DefaultMaxRun = 5 * time.Minute
	// DefaultWait is how long a call waits for somebody else's run when Call.Wait
	// is zero.
	DefaultWait = 10 * time.Second
	// MaxOperation is the greatest length of an operation's name, in bytes.
	MaxOperation = 255
	// MaxRetention is the longest retention that a call may ask for.
	MaxRetention = 400 * 24 * time.Hour
)

// CheckLimits says which of a policy's settings dedupd would refuse; nil where it
// would take them all. A lease or retention of zero means its default.
func CheckLimits(operation string, lease, retention time.Duration) error {
	switch {
	case len(operation) > MaxOperation:
		return fmt.Errorf("operation is %d bytes, at most %d are allowed", len(operation), MaxOperation)
	case lease != 0 && (lease < MinLease || lease > MaxLease):
		return fmt.Errorf("lease is %v, 1s to 15m are allowed", lease)
	case retention < 0 || retention > MaxRetention:
		return fmt.Errorf("retention is %v, up to 400 days are allowed", retention)
	}
	return nil
}

// Call is one keyed piece of work. The identity's limits are dedupd's to check.
type Call struct {
	// Operation, Caller and Key make up the record's identity, together with the
	// engine's namespace. Caller comes from authentication and may be empty.
	Operation string
	Caller    []byte
	Key       []byte
	// Fingerprints tell this request from another one under the same key: one for
	// each version of the hash rule that the caller knows, at least one.
	Fingerprints []*dedupv1.Fingerprint

	// Lease is asked for at a time; it is extended while the work runs. Zero means
	// DefaultLease; MinLease to MaxLease.
	Lease time.Duration
	// MaxRun ends the run's context. Zero means DefaultMaxRun.
	MaxRun time.Duration
	// Wait is how long to wait for somebody else's run, cut to 200 ms before the
	// caller's deadline. Zero means DefaultWait.
	Wait time.Duration
	// RefuseAtOnce answers IN_PROGRESS without waiting.
	RefuseAtOnce bool
	// Retention lengthens the namespace's retention of the outcome, up to
	// MaxRetention; zero leaves it.
	Retention time.Duration

	// Reconciler finds out what a run that ended in the dark did. Nil: refuse
	// with OUTCOME_UNKNOWN, or run again if RerunSafe.
	Reconciler Reconciler
	// Basis is why no earlier holder can act after Reconciler has looked. It is
	// set with Reconciler, and only with it; there is no default.
	Basis dedupv1.Basis
	// RerunSafe says that running the work again is harmless, also while an
	// earlier run goes on.
	RerunSafe bool
	// SharedWithRerun says that another policy for this operation may run it
	// again or reconcile it. It only matters when dedupd cannot be reached after a
	// run: the run's own answer is then withheld, as a later run might answer
	// differently.
	SharedWithRerun bool

	// CallerCancels ends the run's context with the caller's cancel and deadline.
	// A caller that leaves then leaves an unknown outcome behind, unless the work
	// knows better.
	CallerCancels bool

	// Replay is the claim of a dead letter that this call replays: the record is
	// then the entry's, whoever the caller is. dedupd refuses with KEY_INVALID
	// unless the claim is live.
	Replay *dedupv1.ReplayClaim
	// Parked returns what is kept of the call where nobody can reconcile it: method
	// and request, at least. Nil: an entry without a request, which cannot be
	// replayed. Only with Config.Parker.
	Parked func() *dedupv1.ParkRequest
	// Traceparent is the trace context of the call, as in a traceparent header, for
	// later answers to link to; empty: none.
	Traceparent string

	// Attempt is the client's count of its attempts, from 1; zero means 1. Later
	// attempts ask dedupd less often, so that retries of two layers add up and do
	// not multiply: 3, 2, then 1 Reserve per attempt.
	Attempt int
}

func (c *Call) withDefaults() {
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.MaxRun == 0 {
		c.MaxRun = DefaultMaxRun
	}
	if c.Wait == 0 {
		c.Wait = DefaultWait
	}
	if c.RefuseAtOnce {
		c.Wait = 0
	}
	c.Attempt = max(c.Attempt, 1)
}

func (c *Call) validate() error {
	switch {
	case c.Operation == "":
		return errors.New("guard: name the operation")
	case len(c.Fingerprints) == 0:
		return errors.New("guard: give at least one fingerprint of the request")
	case c.MaxRun < 0 || c.Wait < 0:
		return errors.New("guard: times must not be negative")
	case (c.Reconciler == nil) != (c.Basis == dedupv1.Basis_BASIS_UNSPECIFIED):
		return errors.New("guard: a reconciler names what it rests on: BOUNDED, FENCED or INBOX")
	}
	if err := CheckLimits("", c.Lease, c.Retention); err != nil { // the identity is dedupd's to check
		return fmt.Errorf("guard: %w", err)
	}
	return nil
}

// onUnknown is what the call wants when an earlier outcome is unknown.
func (c *Call) onUnknown() dedupv1.OnUnknown {
	switch {
	case c.Reconciler != nil:
		return dedupv1.OnUnknown_ON_UNKNOWN_RECONCILE
	case c.RerunSafe:
		return dedupv1.OnUnknown_ON_UNKNOWN_RERUN
	}
	return dedupv1.OnUnknown_ON_UNKNOWN_REFUSE
}

// ownAnswerStands reports whether the run's own answer may be given although
// dedupd has not acknowledged it: only where no later run can answer otherwise.
func (c *Call) ownAnswerStands() bool {
	return c.onUnknown() == dedupv1.OnUnknown_ON_UNKNOWN_REFUSE && !c.SharedWithRerun
}

// Attempt is what a run or a reconciler is told of its grant.
type Attempt struct {
	// RecordID is the record's id, 32 bytes.
	RecordID []byte
	// Fence grows with every grant of the key. Hand it to resources that refuse
	// lower ones; compare by order only.
	Fence int64
	// EarlierGrants is how many grants of this record came before. One with which
	// a reconciler looked and settled nothing does not count.
	EarlierGrants int64
	// LastRunEnded is how long ago the last running lease ended, as of the grant;
	// zero for a first run.
	LastRunEnded time.Duration
	// MaxOutcomeBytes is the largest response that dedupd keeps.
	MaxOutcomeBytes int64
	// Fingerprints are those of the request.
	Fingerprints []*dedupv1.Fingerprint
}

// Run does the work and says how it ended. Its context carries the caller's
// values, but neither its cancel nor its deadline, unless Call.CallerCancels.
type Run func(ctx context.Context, a Attempt) Ending

// Ending is how a run ended.
type Ending struct {
	// Outcome completes the record: every repeat gets it. Nil: the run is released
	// with the fields below.
	Outcome *dedupv1.Outcome
	// Effect is what a released run left behind; unset means UNKNOWN.
	Effect dedupv1.Effect
	// Kept is a permanent error that repeats of the same request get for Hold.
	// Not with Effect UNKNOWN.
	Kept *dedupv1.Outcome
	// Hold is how long Kept is given: up to 15 minutes.
	Hold time.Duration
	// Note says why, for people: never a key or a request.
	Note string
}

// Result says where the answer is.
type Result struct {
	// Stored is the answer, from the record. Nil: the run's own answer stands.
	Stored *dedupv1.Completed
	// Applied marks a Stored answer that this call's reconciler has just made: it
	// is not a replay.
	Applied bool
	// RecordID is the record's id, 32 bytes.
	RecordID []byte
	// Ends tells how long the record lasts; nil where it is not completed.
	Ends *dedupv1.Ends
	// Traceparent is the trace context of the run that a Stored answer goes back
	// to; empty where that is not known.
	Traceparent string
	// Left is what the record's runs have left behind, where the run's own answer
	// stands and was not stored: this run, and those before it.
	Left dedupv1.Effect
	// HandedOver: the run's own answer says that the work goes on elsewhere
	// (Handoff). It is not stored: repeats get IN_PROGRESS, then what the work's
	// new holder completes it with.
	HandedOver bool
}

// RecordID returns the id, 32 bytes, of the record that id names: SHA-256 over the
// identity's parts, each prefixed by its length as four bytes, big endian.
func RecordID(id *dedupv1.Identity) []byte {
	sum := sha256.Sum256(keying.LengthPrefixed(id.GetNamespace(), id.GetOperation(), string(id.GetCaller()), string(id.GetKey())))
	return sum[:]
}

// ShortRecordID returns what errors, logs and spans may show of a record's id: its
// first 12 hexadecimal digits, or as many as there are.
func ShortRecordID(recordID []byte) string {
	return hex.EncodeToString(recordID[:min(6, len(recordID))])
}
