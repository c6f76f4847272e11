package guard

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

var (
	// ErrOutcomeUnknown is matched by errors after which nobody knows whether the
	// effect happened. Asking again with the same key is always safe.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrLeaseLost is the cause of a run's context that ended because its lease
	// could not be extended or was taken over.
	ErrLeaseLost = errors.New("lease lost")
	// ErrMaxRun is the cause of a run's context that ended by Call.MaxRun.
	ErrMaxRun = errors.New("maximum run time is over")
	// ErrClosed is returned by calls to a closed engine, and the cause of a run's
	// context that ended because the engine was closed.
	ErrClosed = errors.New("engine is closed")
)

// RefusalError is why the work was not run, or why its answer is not given.
type RefusalError struct {
	// Reason is the word of the protocol.
	Reason dedupv1.Reason
	// Operation and RecordID name the record.
	Operation string
	RecordID  []byte
	// RetryAfter is when asking again may help; zero: waiting does not help.
	RetryAfter time.Duration
	// Age is how long ago the run began that has the key, with IN_PROGRESS where
	// dedupd told it; else zero.
	Age time.Duration
	// Unreached: dedupd said nothing at all of the key, and neither does this
	// process know of a run under it. A policy that fails open may run the work
	// now, unprotected.
	Unreached bool
	// Unknown: the effect may have happened. errors.Is(err, ErrOutcomeUnknown).
	Unknown bool
	// Entry is the id, in hexadecimal, of the dead letter that waits for somebody
	// to settle it; empty where there is none.
	Entry string
	// Err is the cause: dedupd's own refusal where there was one, a gRPC status
	// error; may be nil.
	Err error
}

// Error says what was refused, in one sentence without key or request. Where the
// outcome is unknown it ends with the first digits of the record's id, for
// `dedupd keys get --id`.
func (r *RefusalError) Error() string {
	text, ok := refusalTexts()[r.Reason]
	switch {
	case errors.Is(r.Err, errNoReplays):
		return errNoReplays.Error()
	case !ok:
		return "refused by dedupd"
	case !r.Unknown:
		return text
	case r.Reason != dedupv1.Reason_REASON_OUTCOME_UNKNOWN:
		text += "; the outcome is unknown, ask again with the same key"
	}
	return text + " (record " + ShortRecordID(r.RecordID) + ")"
}

func refusalTexts() map[dedupv1.Reason]string {
	return map[dedupv1.Reason]string{
		dedupv1.Reason_REASON_IN_PROGRESS:       "another call holds the key; ask again later",
		dedupv1.Reason_REASON_OUTCOME_UNKNOWN:   "nobody knows whether the effect happened; ask again with the same key",
		dedupv1.Reason_REASON_KEY_REUSED:        "the key was used for another request; choose a new key for a new request",
		dedupv1.Reason_REASON_KEY_EXPIRED:       "the key's answer is past its retention; look at what repeats it so late",
		dedupv1.Reason_REASON_KEY_INVALID:       "the key breaks a limit",
		dedupv1.Reason_REASON_INPUT_INVALID:     "dedupd refused the input",
		dedupv1.Reason_REASON_STALE_HOLDER:      "the record is no longer this call's",
		dedupv1.Reason_REASON_STORE_UNAVAILABLE: "dedupd cannot be reached; ask again later",
	}
}

// Unwrap returns the cause.
func (r *RefusalError) Unwrap() error { return r.Err }

// Effect is what a door tells its caller beside a reason that alone does not say
// what the call left behind; policy.EffectAsTable beside every other reason.
func (r *RefusalError) Effect() policy.Effect {
	switch {
	case r.Reason != dedupv1.Reason_REASON_STORE_UNAVAILABLE:
		return policy.EffectAsTable
	case r.Unknown:
		return policy.EffectUnknown
	}
	return policy.EffectNone
}

// Is matches ErrOutcomeUnknown where the effect may have happened.
func (r *RefusalError) Is(target error) bool { return r.Unknown && target == ErrOutcomeUnknown }

// refuse makes a refusal of the hold's or call's record.
func (w *work) refuse(reason dedupv1.Reason, retryAfter time.Duration, cause error) *RefusalError {
	return &RefusalError{
		Reason: reason, Operation: w.call.Operation, RecordID: w.recordID,
		RetryAfter: retryAfter, Err: cause,
		Unknown: reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN, Entry: entryIn(cause),
	}
}

// entryIn returns the dead letter that dedupd's refusal names.
func entryIn(err error) string {
	said, _ := policy.RefusalOf(err)
	return said.Entry
}

// reasonOf reads dedupd's reason and hint from an error; the reason is
// unspecified where the error is not dedupd's.
func reasonOf(err error) (reason dedupv1.Reason, retryAfter time.Duration) {
	reason, _ = policy.ReasonOf(err)
	retryAfter, _ = policy.RetryAfter(err)
	return reason, retryAfter
}

// answered reports whether err is an answer of dedupd, or of something on the
// way that turned the call away; everything else may or may not have been done.
func answered(err error) bool {
	code := status.Code(err)
	if refusal, ok := policy.RefusalOf(err); ok {
		return refusal.Reason != dedupv1.Reason_REASON_STORE_UNAVAILABLE && code != codes.Unavailable
	}
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	case codes.ResourceExhausted:
		return tooLarge(err)
	case codes.OK, codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Aborted,
		codes.Internal, codes.Unavailable, codes.DataLoss:
	}
	return false
}

// tooLarge reports gRPC's own refusal of a message by its size, which only its
// wording tells from an overload.
func tooLarge(err error) bool {
	st := status.Convert(err)
	return st.Code() == codes.ResourceExhausted && strings.Contains(st.Message(), "larger than max")
}

// callerGone is the error of a call whose caller left before anything ran.
func callerGone(ctx context.Context) error {
	return status.FromContextError(ctx.Err()).Err()
}
