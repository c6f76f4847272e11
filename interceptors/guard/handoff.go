package guard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// handedRetry is the hint for the first caller of work that was handed over: no
// longer than what repeats are told.
const handedRetry = time.Second

var (
	// ErrHandedOver is what a handler may return after Handoff to have its caller
	// told to wait, as every repeat is. Any other error of it means the same then.
	ErrHandedOver = errors.New("the work was handed over to another process")
	// ErrNoGrant is returned by Handoff outside a guarded run.
	ErrNoGrant = errors.New("only a guarded run has a grant to hand over, give the context of one")
	// ErrNotHandedOver is returned by Handoff where dedupd did not acknowledge the
	// longer lease: the run goes on as the grant's holder.
	ErrNotHandedOver = errors.New("the grant could not be handed over, this run still holds it")
)

// Handoff hands the grant of the run of ctx over to work that another process
// finishes: a worker, or the handler of a provider's webhook. It asks for a lease
// of the given length from now, 1 s to MaxHandedLease, zero for
// DefaultHandedLease, and returns the token by which Engine.Resume acts there.
// The token is there only after dedupd has acknowledged the lease.
//
// From then on how this run ends settles nothing, be it an error or a panic:
//   - A success goes out to the first caller as it is, and is not stored: make it
//     say that the work was accepted, not that it was done.
//   - An error, ErrHandedOver for example, is answered IN_PROGRESS.
//   - Repeats get IN_PROGRESS with the grant's age until the work is completed or
//     released, and then the outcome that it was completed with.
//   - Once the lease lapses the outcome is UNKNOWN, as of any lapsed run.
//
// Hand the token on in a way that is not lost, and last: nothing of the run may
// follow it. A run that cannot get rid of it takes it back by Resume and Release.
// A second Handoff of the same run may lengthen the lease and returns the same
// token.
//
// The token holds no secret of dedupd's, but it names caller and key, and whoever
// has it can complete the record: treat it as you treat keys, and do not log it.
// It is at most MaxToken characters, all of them fit for URLs, file names and
// headers.
func Handoff(ctx context.Context, lease time.Duration) (token string, err error) {
	r := runFrom(ctx)
	switch {
	case r == nil || r.hold.mode != dedupv1.Mode_MODE_RUN:
		return "", ErrNoGrant
	case lease != 0 && (lease < MinLease || lease > MaxHandedLease):
		return "", fmt.Errorf("lease is %v, %v to %v are allowed", lease, MinLease, MaxHandedLease)
	case ctx.Err() != nil:
		return "", fmt.Errorf("%w: %w", ErrNotHandedOver, context.Cause(ctx))
	case lease == 0:
		lease = DefaultHandedLease
	}
	h := r.hold
	if token, err = h.token(); err != nil {
		return "", err
	}
	within, cancel := finishing(ctx)
	defer cancel()
	err = h.e.tell(within, func(ctx context.Context) error { return h.extendBy(ctx, lease) })
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotHandedOver, err)
	}
	h.handed.Store(true)
	return token, nil
}

// handedOver says what the first caller gets of a run whose grant is another's.
func (h *hold) handedOver(e Ending) (Result, error) {
	if e.Outcome != nil && len(e.Outcome.GetStatus()) == 0 {
		return Result{HandedOver: true}, nil
	}
	refusal := h.refuse(dedupv1.Reason_REASON_IN_PROGRESS, handedRetry, nil)
	refusal.Age = time.Since(h.since)
	return Result{}, refusal
}

// Handed is a grant that another process handed over. It keeps nothing alive:
// its lease lapses unless it is extended. Its methods are safe for concurrent
// use.
//
// The token is not used up: two processes that resume one token hold the same
// grant. Complete takes the first outcome and refuses another one, but nobody
// keeps two from doing the work twice: where tokens travel on a queue that may
// deliver twice, deduplicate its messages by MessageKey.
type Handed struct {
	hold *hold
}

// Resume takes up a grant that was handed over by Handoff, in this process or
// another of the same namespace. It only reads the token, and asks nobody: the
// methods of what it returns tell whether the grant is still there. It refuses a
// token that is damaged, of a later version, or of another namespace.
func (e *Engine) Resume(token string) (*Handed, error) {
	h, err := e.holdOf(token)
	if err != nil {
		return nil, err
	}
	return &Handed{hold: h}, nil
}

// Operation is what the grant's key is for.
func (g *Handed) Operation() string { return g.hold.call.Operation }

// Attempt is what the run that handed the grant over was told of it.
func (g *Handed) Attempt() Attempt { return g.hold.attempt() }

// MessageKey names this hand-over among all others: a key for what carries the
// token, such as a queue's message.
func (g *Handed) MessageKey() string {
	return "handoff:" + hex.EncodeToString(g.hold.recordID) + ":" + strconv.FormatInt(g.hold.fence, 10)
}

// Extend asks for a lease of the given length from now, 1 s to MaxHandedLease,
// and returns what is left of it; it never shortens one. Every error is a
// *RefusalError: with STALE_HOLDER the record is no longer this grant's, since its
// lease has lapsed, or it was completed or released, so stop; with
// STORE_UNAVAILABLE dedupd could not be asked.
func (g *Handed) Extend(ctx context.Context, lease time.Duration) (left time.Duration, err error) {
	if lease < MinLease || lease > MaxHandedLease {
		return 0, fmt.Errorf("lease is %v, %v to %v are allowed", lease, MinLease, MaxHandedLease)
	}
	h := g.hold
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	err = h.e.tell(ctx, func(ctx context.Context) error { return h.extendBy(ctx, lease) })
	if err != nil {
		return 0, h.handedRefusal(err)
	}
	return max(0, time.Until(h.leaseEnd())), nil
}

// handedRefusal is refused, for who holds a grant already.
func (h *hold) handedRefusal(err error) error {
	reason, retryAfter := reasonOf(err)
	if reason == dedupv1.Reason_REASON_UNSPECIFIED {
		reason, retryAfter = dedupv1.Reason_REASON_STORE_UNAVAILABLE, downRetry
	}
	return h.refuse(reason, retryAfter, err)
}

// Complete stores the outcome, as a run's end does: every repeat gets it from
// here on. It works after a lapse too, as long as nobody was granted since. The
// same outcome again is no error. Where the record holds another answer by now
// that is the Result's Stored, and this outcome did not count; everything else is
// a *RefusalError. What dedupd did not acknowledge goes on in the background.
func (g *Handed) Complete(ctx context.Context, o *dedupv1.Outcome) (Result, error) {
	if o == nil {
		return Result{}, errors.New("guard: give the outcome that the work ended with")
	}
	res, err := g.hold.complete(ctx, o)
	res.RecordID = g.hold.recordID
	return res, err
}

// Release ends the grant without an outcome: e.Effect says what is left behind,
// unset means UNKNOWN; e.Outcome is ignored. A *RefusalError with STALE_HOLDER says
// that the record was settled before, perhaps by an earlier try of this very
// Release. What dedupd did not acknowledge goes on in the background.
func (g *Handed) Release(ctx context.Context, e Ending) error {
	if _, gone := g.hold.release(ctx, e); gone {
		return g.hold.refuse(dedupv1.Reason_REASON_STALE_HOLDER, 0, nil)
	}
	return nil
}
