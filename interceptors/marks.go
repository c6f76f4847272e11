package interceptors

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/ending"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ErrOutcomeUnknown is matched by errors after which nobody knows whether the
// call's effect happened. Asking again with the same key is always safe.
var ErrOutcomeUnknown = guard.ErrOutcomeUnknown

// ErrLeaseLost is the cause (context.Cause) of a handler's context that ended
// because its lease could not be extended: whatever the handler does from here
// on may be done a second time by somebody else.
var ErrLeaseLost = guard.ErrLeaseLost

// markedError is an error of which a handler says more than its code.
type markedError struct {
	error
	mark ending.Mark
}

func (e *markedError) Unwrap() error { return e.error }

// GRPCStatus keeps code, message and details as they are without the mark.
func (e *markedError) GRPCStatus() *status.Status { return policy.StatusOf(e.error) }

func (e *markedError) Is(target error) bool {
	return e.mark == ending.Unknown && target == ErrOutcomeUnknown
}

func marked(err error, m ending.Mark) error {
	if err == nil {
		return nil
	}
	return &markedError{error: err, mark: m}
}

// NotApplied marks a handler's error: nothing was applied, effects of calls
// further down included, and nothing of this run can still be. The key is free
// again, whatever the code. Code, message and details stay; wrapping with %w is
// fine. Of several marks the outermost counts. A nil err stays nil.
func NotApplied(err error) error { return marked(err, ending.NotApplied) }

// OutcomeUnknown marks a handler's error: its effect may have been applied,
// whatever the code says.
func OutcomeUnknown(err error) error { return marked(err, ending.Unknown) }

// Final marks a handler's error as the call's answer for good: it is stored for
// the full retention and every repeat gets it.
func Final(err error) error { return marked(err, ending.Final) }

func markOf(err error) ending.Mark {
	if m, ok := errors.AsType[*markedError](err); ok {
		return m.mark
	}
	return ending.None
}

// FenceFrom returns the fence of the grant that a keyed handler runs under. Hand
// it to resources that refuse fences below the highest they have seen; compare
// by order only. ok is false outside a keyed handler.
func FenceFrom(ctx context.Context) (fence int64, ok bool) { return guard.FenceFrom(ctx) }

// CallerDeadline returns the deadline that the caller of a keyed handler set.
// The handler's own context does not end with it: a caller that leaves changes
// nothing, its retry waits and gets the answer. ok is false where the caller set
// none, and outside a keyed handler: there the context itself has it.
func CallerDeadline(ctx context.Context) (deadline time.Time, ok bool) {
	return guard.CallerDeadline(ctx)
}

// MarkEffect says that an effect which the interceptors cannot see (SQL, an SDK)
// is about to be applied: from here on an error of the handler leaves the
// outcome unknown, unless it is marked NotApplied or Final. Call it before the
// first such effect. Safe for concurrent use; outside a keyed handler it does
// nothing.
func MarkEffect(ctx context.Context) { guard.MarkEffect(ctx) }
