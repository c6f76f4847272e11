package interceptors

import (
	"context"
	"encoding/hex"
	"errors"

	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// CallError is the error of a client call that was given up, where there is more
// to say than the last server's error says: the outcome is unknown, the call was
// parked as a dead letter, or the caller's context ended during a wait. errors.Is
// finds ErrOutcomeUnknown, context.Canceled and context.DeadlineExceeded in it;
// Unwrap has the last server's error too.
type CallError struct {
	// Attempts is how often the call was sent.
	Attempts int
	// RecordID names dedupd's record, in hexadecimal, as the server told it; empty
	// where no answer came. For `dedupd keys get`, and for support.
	RecordID string
	// Entry is the id, in hexadecimal, of the dead letter that the call became; empty
	// where it did not, or while it is Spooled. For `dedupd dlq show`.
	Entry string
	// Spooled: the dead letter waits on this machine until dedupd takes it.
	Spooled bool

	status  *status.Status
	last    error // the last server's error; nil before the first answer
	ctxErr  error // why the caller's context ended; nil if it did not
	unknown bool
}

// Error tells the status that the caller sees.
func (e *CallError) Error() string { return e.status.Err().Error() }

// GRPCStatus is the last server's status; where the caller's context ended
// first, CANCELLED or DEADLINE_EXCEEDED.
func (e *CallError) GRPCStatus() *status.Status { return e.status }

// Unwrap returns the last server's error and the context's error, as far as
// there are any.
func (e *CallError) Unwrap() []error {
	var errs []error
	for _, err := range [...]error{e.last, e.ctxErr} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Is matches ErrOutcomeUnknown where nobody knows whether the effect happened.
func (e *CallError) Is(target error) bool { return e.unknown && target == ErrOutcomeUnknown }

// RecordIDOf returns the id, in hexadecimal, of dedupd's record that err's call
// was about, and whether it is known.
func RecordIDOf(err error) (string, bool) {
	if e, ok := errors.AsType[*CallError](err); ok && e.RecordID != "" {
		return e.RecordID, true
	}
	return "", false
}

// unknown reports whether an effect of the tries may have happened.
func (c *clientCall) unknown() bool {
	return c.effect == policy.EffectUnknown && c.policy.level != readOnly
}

// end makes the error that the caller gets.
func (c *clientCall) end(ctx context.Context, last error, kept guard.Parked) error {
	unknown := c.unknown()
	e := &CallError{
		Attempts: c.attempts, RecordID: c.recordID, Entry: hex.EncodeToString(kept.Entry), Spooled: kept.Spooled,
		status: policy.StatusOf(last), last: last, ctxErr: ctx.Err(), unknown: unknown,
	}
	if e.ctxErr != nil && (last == nil || status.FromContextError(e.ctxErr).Code() != e.status.Code()) {
		e.status = status.FromContextError(e.ctxErr)
		if last != nil {
			e.status = status.New(e.status.Code(), e.status.Message()+"; the last error was: "+policy.StatusOf(last).Message())
		}
	}
	if !unknown && e.ctxErr == nil && e.Entry == "" && !e.Spooled {
		return last
	}
	return e
}
