package guard

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	minRetryAfter = 20 * time.Millisecond
	maxAskWait    = 30 * time.Second // dedupd's own limit of a wait
	downRetry     = time.Second      // hint while dedupd cannot be reached
	awayPause     = time.Second      // between log lines that it cannot

	traceHeader = "traceparent" // the W3C's name of a trace context
)

var (
	errUnreadable = errors.New("dedupd's answer cannot be read; it may be of a newer version")
	// errReserveTime is the cause of a Reserve's context that ended by its own time,
	// not by its caller.
	errReserveTime = errors.New("the time to reserve is over")
)

// reserve asks for the key until it is granted with enough lease to run, or
// answered otherwise. Exactly one of the three results is set.
func (w *work) reserve(caller context.Context) (*hold, *dedupv1.Completed, error) {
	w.e.completer.flush(caller, w.recordID)
	waitUntil := time.Now().Add(w.wait(caller))
	ctx, cancel := context.WithDeadlineCause(caller, waitUntil.Add(reserveTime), errReserveTime)
	defer cancel()
	for range regrants {
		h, stored, err := w.ask(ctx, newAttemptID(), waitUntil)
		if caller.Err() != nil && h == nil && stored == nil {
			return nil, nil, callerGone(caller)
		}
		if err != nil || stored != nil {
			return w.ownOutcome(stored, err)
		}
		if h == nil {
			continue // the attempt id was spent on the way: a late copy of ours
		}
		if h.fits(ctx) {
			return h, nil, nil
		}
		h.giveBack(ctx)
		// Where clocks may differ much the margin can eat up a short lease.
		w.call.Lease = max(w.call.Lease, min(MaxLease, 5*h.skew))
	}
	w.e.log.LogAttrs(caller, slog.LevelWarn, "every grant came with too little lease left to run; ask for a longer lease or look at dedupd's latency",
		slog.String("operation", w.call.Operation), slog.String("record", ShortRecordID(w.recordID)))
	return nil, nil, w.refuse(dedupv1.Reason_REASON_STORE_UNAVAILABLE, downRetry, nil)
}

// ownOutcome looks into the process's own completer before a call is refused
// because nobody knows the outcome: if it is ours, and the first caller has it,
// repeats get it too.
func (w *work) ownOutcome(stored *dedupv1.Completed, err error) (*hold, *dedupv1.Completed, error) {
	var refusal *RefusalError
	if !errors.As(err, &refusal) || !w.call.ownAnswerStands() ||
		refusal.Reason != dedupv1.Reason_REASON_OUTCOME_UNKNOWN {
		return nil, stored, err
	}
	if o := w.e.completer.outcomeOf(w.recordID, w.call.Fingerprints); o != nil {
		return nil, &dedupv1.Completed{Outcome: o}, nil
	}
	return nil, nil, err
}

// wait is how long this call may wait for somebody else's run: it is answered
// before the caller's deadline, never after it.
func (w *work) wait(caller context.Context) time.Duration {
	wait := w.call.Wait
	if deadline, ok := caller.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-replyMargin)
	}
	return max(0, wait)
}

// ask sends one Reserve, under one attempt id, until its answer is read.
func (w *work) ask(ctx context.Context, attemptID []byte, waitUntil time.Time) (*hold, *dedupv1.Completed, error) {
	most := max(1, reserveTries+1-w.call.Attempt)
	unread, busy := 0, false
	for {
		wait := min(max(0, time.Until(waitUntil)), maxAskWait)
		passed, err := w.e.gate.pass(ctx)
		if err != nil {
			w.disown(ctx, attemptID, unread)
			return nil, nil, w.unreached(w.held(err), busy)
		}
		try, cancel := trying(ctx, tryTime+wait)
		try = w.traced(try)
		sent := time.Now()
		resp, err := w.e.dedup.Reserve(try, w.reserveRequest(attemptID, wait))
		cancel()
		passed(err)
		if err == nil && !w.replays(resp) {
			err = w.disclaim(ctx, attemptID, resp)
			return nil, nil, err
		}
		if err == nil {
			switch a := resp.GetAnswer().(type) {
			case *dedupv1.ReserveResponse_Granted:
				if h := w.granted(a.Granted, attemptID, sent); h != nil {
					return h, nil, nil
				}
			case *dedupv1.ReserveResponse_Completed:
				return nil, a.Completed, nil
			case *dedupv1.ReserveResponse_InProgress:
				busy = true
				retry := max(a.InProgress.GetRetryAfter().AsDuration(), minRetryAfter)
				if time.Until(waitUntil) > retry && tries.Pause(ctx, retry) {
					continue
				}
				w.disown(ctx, attemptID, unread)
				refusal := w.refuse(dedupv1.Reason_REASON_IN_PROGRESS, retry, nil)
				refusal.Age = a.InProgress.GetAge().AsDuration()
				return nil, nil, refusal
			}
			err = errUnreadable
		} else if answered(err) {
			w.disown(ctx, attemptID, unread)
			return nil, nil, w.unreached(w.refused(ctx, err), busy)
		}
		unread++
		if unread == most || !w.e.pause(ctx, unread-1) {
			w.disown(ctx, attemptID, unread)
			return nil, nil, w.unreached(w.refused(ctx, err), busy)
		}
	}
}

// unreached notes that a refusal says nothing of the key: nobody was busy with
// it, and this process has nothing to tell of it either.
func (w *work) unreached(err error, busy bool) error {
	var refusal *RefusalError
	if errors.As(err, &refusal) && refusal.Reason == dedupv1.Reason_REASON_STORE_UNAVAILABLE {
		known := busy || w.e.knows(w.recordID)
		refusal.Unreached = !known
		refusal.Unknown = refusal.Unknown || known // what goes on, or has gone on, may have applied something
	}
	return err
}

func (w *work) reserveRequest(attemptID []byte, wait time.Duration) *dedupv1.ReserveRequest {
	return &dedupv1.ReserveRequest{
		Identity: w.identity, Fingerprints: w.call.Fingerprints, AttemptId: attemptID,
		Lease: durationpb.New(w.call.Lease), Wait: durationpb.New(wait),
		OnUnknown: w.call.onUnknown(), Basis: w.call.Basis, Replay: w.call.Replay,
	}
}

// refused turns an error of dedupd into the refusal that the caller gets; nil
// for a spent attempt id, which is asked for anew. A caller that left says nothing
// of dedupd: ctx is the caller's, or detached from it.
func (w *work) refused(ctx context.Context, err error) error {
	reason, retryAfter := reasonOf(err)
	switch {
	case reason == dedupv1.Reason_REASON_STALE_HOLDER:
		return nil
	case reason != dedupv1.Reason_REASON_UNSPECIFIED && reason != dedupv1.Reason_REASON_STORE_UNAVAILABLE,
		dedupdSaid(err) && answered(err):
		return w.refuse(reason, retryAfter, err)
	}
	if callerLeft(ctx, err) {
		return callerGone(ctx)
	}
	if calls, due := w.e.away.Due(awayPause); due {
		w.e.log.LogAttrs(ctx, slog.LevelWarn, "dedupd cannot be reached; the call is refused, nothing was run",
			slog.String("operation", w.call.Operation), slog.String("record", ShortRecordID(w.recordID)),
			slog.String("code", status.Code(err).String()), slog.Int("calls", calls))
	}
	return w.refuse(dedupv1.Reason_REASON_STORE_UNAVAILABLE, max(retryAfter, downRetry), err)
}

// callerLeft reports that a call to dedupd ended with ctx because its caller left
// or had no more time.
func callerLeft(ctx context.Context, err error) bool {
	code := status.Code(err)
	return (code == codes.Canceled || code == codes.DeadlineExceeded) &&
		ctx.Err() != nil && !errors.Is(context.Cause(ctx), errReserveTime)
}

// dedupdSaid reports a refusal of dedupd, be its reason known to this build or
// not.
func dedupdSaid(err error) bool {
	_, ok := policy.RefusalOf(err)
	return ok
}

// disown gives back, in the background, what an attempt id may have been
// granted without our having read it: else a grant that nobody knows of would
// block the key.
func (w *work) disown(ctx context.Context, attemptID []byte, unread int) {
	if unread == 0 {
		return
	}
	if w.call.Replay != nil {
		w.e.prober.chase(ctx, w, attemptID) // whose record it is was in the answer that was not read
		return
	}
	req := &dedupv1.ReleaseRequest{
		Identity: w.identity, AttemptId: attemptID, Effect: dedupv1.Effect_EFFECT_NONE,
		Note: "the grant was never read",
	}
	w.e.completer.add(ctx, &letter{recordID: string(w.recordID), operation: w.call.Operation, release: req})
}

// traced adds the call's trace context to what dedupd is sent.
func (w *work) traced(ctx context.Context) context.Context {
	if w.call.Traceparent == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, traceHeader, w.call.Traceparent)
}
