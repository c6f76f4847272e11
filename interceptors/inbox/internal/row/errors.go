package row

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// What an inbox refuses. A transaction that meets one is to be rolled back.
var (
	// ErrNoRecord says that the context is not that of a keyed call.
	ErrNoRecord = errors.New("inbox: this context is not that of a keyed call; pass the handler's own, or name the record with inbox.WithLocal")
	// ErrStaleHolder says that a later grant has the record: this one may no longer
	// apply anything.
	ErrStaleHolder = errors.New("inbox: a later holder has taken the record over; roll back")
	// ErrKeyReused says that the key did its work for another request.
	ErrKeyReused = errors.New("inbox: the key was used for another request; choose a new key for a new request")
	// ErrNotDone says that the row was marked before, by a transaction that was
	// committed without Done, or twice in this one.
	ErrNotDone = errors.New("inbox: the record is marked already: mark it once per run, and write its answer with Done before the commit")
	// ErrNotMarked says that Done found no mark of this run in its transaction.
	ErrNotMarked = errors.New("inbox: the record is not marked by this run; call Mark first, in the same transaction")
	// ErrNotStored says that the work was done, and its answer was too large to keep.
	ErrNotStored = errors.New("inbox: the work was done, its answer was too large to keep")
)

const settleRetry = time.Second

// refuse makes err the refusal of ctx's run, for its door to tell the caller.
func refuse(ctx context.Context, reason dedupv1.Reason, retry time.Duration, err error) error {
	if r := guard.RefuseRun(ctx, reason, retry, err); r != nil {
		return r
	}
	return err
}

func stale(ctx context.Context) error {
	return refuse(ctx, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, settleRetry, ErrStaleHolder)
}

func reused(ctx context.Context) error {
	return refuse(ctx, dedupv1.Reason_REASON_KEY_REUSED, 0, ErrKeyReused)
}

// statusError gives an error the code that its meaning has for a gRPC caller.
type statusError struct {
	error
	code codes.Code
}

func (e *statusError) Unwrap() error { return e.error }

func (e *statusError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }

// ErrTooLong says that a transaction took longer than its maximum and was rolled
// back. It is permanent (FAILED_PRECONDITION): nothing was applied.
var ErrTooLong = errors.New("inbox: the transaction took longer than its maximum and was rolled back; keep other calls out of it, or raise MaxTime")

// unknownError is a commit that nobody answered for, where no run can be refused.
type unknownError struct{ error }

func (e *unknownError) Unwrap() error { return e.error }

func (e *unknownError) Is(target error) bool { return target == guard.ErrOutcomeUnknown }
