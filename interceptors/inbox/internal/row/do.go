package row

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
)

// Defaults and bounds of Do.
const (
	DefaultMaxTime = 10 * time.Second
	DefaultTries   = 5

	commitTime = 10 * time.Second // for a commit or a rollback, whatever the caller does
	firstWait  = 10 * time.Millisecond
	maxWait    = time.Second
)

// Settings of Do.
type Settings struct {
	MaxTime   time.Duration
	Tries     int
	Isolation sql.IsolationLevel
	Unkeyed   bool
}

// Option changes Settings.
type Option func(*Settings)

func settingsOf(opts []Option) (Settings, error) {
	s := Settings{MaxTime: DefaultMaxTime, Tries: DefaultTries}
	for _, o := range opts {
		o(&s)
	}
	if s.MaxTime < time.Millisecond || s.Tries < 1 {
		return s, errors.New("inbox: give a transaction a maximum time of 1ms or more and at least one try")
	}
	return s, nil
}

// Do runs fn in a transaction that holds the record of ctx, its mark first and its
// answer last, until one commits; or returns the answer that is there. fn may run
// many times, of which one commits.
func Do[R proto.Message, T Tx](ctx context.Context, begin func(context.Context, sql.IsolationLevel) (T, error), fn func(context.Context, T) (R, error), opts []Option) (R, error) {
	var none R
	s, err := settingsOf(opts)
	if err != nil {
		return none, err
	}
	r, err := recordOf(ctx)
	keyed := err == nil
	if !keyed && !s.Unkeyed {
		return none, err
	}
	inDoubt := false // a commit was sent, and nobody said what became of it
	for n := 1; ; n++ {
		t := try[R, T]{record: r, keyed: keyed, Settings: s, begin: begin, fn: fn}
		resp, err := t.run(ctx)
		inDoubt = t.inDoubt || inDoubt && !t.settled
		switch {
		case err == nil:
			return resp, nil
		case n < s.Tries && t.again && (keyed || !t.inDoubt) && pause(ctx, n):
			continue // the mark of the next try reads what became of this one
		case inDoubt:
			return none, doubtful(ctx, err)
		case leaseLost(ctx):
			// Whatever stopped this run, the caller is not to take it for the last word:
			// somebody else may have the record by now.
			return none, refuse(ctx, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, settleRetry, err)
		case t.again && contended(err):
			return none, &statusError{error: fmt.Errorf("inbox: others were at the same rows %d times, nothing was applied: %w", n, err), code: codes.Aborted}
		case t.again:
			return none, &statusError{error: fmt.Errorf("inbox: the database cannot be reached, nothing was applied: %w", err), code: codes.Unavailable}
		}
		return none, err
	}
}

// leaseLost reports that the run has stood still, or been cut off, past its lease.
func leaseLost(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), guard.ErrLeaseLost)
}

// doubtful is the error of a commit that nobody can say anything of.
func doubtful(ctx context.Context, err error) error {
	err = fmt.Errorf("inbox: the commit was sent, and its answer never came: %w", err)
	if r := guard.RefuseRun(ctx, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, settleRetry, err); r != nil {
		return r
	}
	return &unknownError{err}
}

// try is one transaction.
type try[R proto.Message, T Tx] struct {
	Settings
	record
	keyed bool
	begin func(context.Context, sql.IsolationLevel) (T, error)
	fn    func(context.Context, T) (R, error)

	again   bool // another try may pass
	settled bool // what became of earlier tries is known
	inDoubt bool
}

func (t *try[R, T]) run(caller context.Context) (resp R, err error) {
	ctx, cancel := context.WithTimeoutCause(caller, t.MaxTime, ErrTooLong)
	defer cancel()
	tx, err := t.begin(ctx, t.Isolation)
	if err != nil {
		t.again = away(err) || contended(err)
		return resp, t.cut(ctx, fmt.Errorf("inbox: no transaction can be begun: %w", err))
	}
	ended := false
	defer func() {
		if !ended { // an error, a panic, or a goroutine that ends
			rollback(caller, tx)
		}
	}()
	first, resp, err := t.work(ctx, tx)
	if err == nil && first == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		t.again = away(err) || contended(err)
		return resp, t.cut(ctx, err)
	}
	if first != nil {
		return As[R](first) // nothing was written; the rollback gives the connection back
	}
	ended = true
	return resp, t.commit(caller, tx)
}

// work is what happens in the transaction: first is the answer that was there.
func (t *try[R, T]) work(ctx context.Context, tx T) (first *Answer, resp R, err error) {
	// A process that stands still in here must not keep the row from others for good.
	if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL idle_in_transaction_session_timeout = %d", t.MaxTime.Milliseconds())); err != nil {
		return nil, resp, err
	}
	if t.keyed {
		if first, err = Mark(ctx, tx); first != nil || err != nil {
			return first, resp, err
		}
		t.settled = true // it waited for whatever was in flight on the row
	}
	if resp, err = t.fn(ctx, tx); err != nil || !t.keyed {
		return nil, resp, err
	}
	return nil, resp, t.done(ctx, tx, resp)
}

// commit ends the transaction, however the caller ends meanwhile: a commit that is
// cut off is of unknown outcome.
func (t *try[R, T]) commit(caller context.Context, tx T) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), commitTime)
	defer cancel()
	err := tx.Commit(ctx)
	switch {
	case err == nil:
		guard.MarkEffect(caller)
		return nil
	case refusedCommit(err):
		t.again = contended(err)
		return fmt.Errorf("inbox: the database refused the commit: %w", err)
	}
	guard.Mark(caller, guard.LeftUnknown)
	t.again, t.inDoubt = true, true
	return fmt.Errorf("inbox: the commit was cut off: %w", err)
}

// cut makes the error of a transaction that had no more time say so.
func (t *try[R, T]) cut(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrTooLong) {
		t.again = false
		return &statusError{error: ErrTooLong, code: codes.FailedPrecondition}
	}
	return err
}

func rollback(caller context.Context, tx Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), commitTime)
	defer cancel()
	_ = tx.Rollback(ctx) // it fails where the session is gone, and its transaction with it
}

// pause waits before try n+1, with full jitter; false when ctx ended first.
func pause(ctx context.Context, n int) bool {
	return tries.Pause(ctx, rand.N(min(firstWait<<(n-1), maxWait))+1) //nolint:gosec // jitter is no secret
}
