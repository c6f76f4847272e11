package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

const (
	reconcileTime  = 30 * time.Second // for one look
	reconcileRetry = 2 * time.Second  // hint after a look that settled nothing
)

var errLookTime = errors.New("the reconciler's time is over")

// Reconciler finds out what an earlier run, whose end nobody knows, did. It runs
// under the new grant's lease, on a context like a run's, for at most 30 s. It
// must compare that what it finds is of this very request. Any error, panic or
// timeout counts as StillUnknown, whatever its code.
type Reconciler func(ctx context.Context, a Attempt) (Verdict, error)

// Verdict is what a Reconciler found. The zero value is StillUnknown.
type Verdict struct {
	kind    verdictKind
	outcome *dedupv1.Outcome
	note    string
}

type verdictKind uint8

const (
	stillUnknown verdictKind = iota
	applied
	notApplied
	notSeen
	partial
)

// Applied says that the effect of this request happened, and what its answer
// is: every repeat gets it.
func Applied(o *dedupv1.Outcome) Verdict { return Verdict{kind: applied, outcome: o} }

// NotApplied says that the effect has not happened, effects of calls further
// down included, and can no longer happen: the door is closed behind every
// earlier holder. The work is run.
func NotApplied() Verdict { return Verdict{kind: notApplied} }

// NotSeen says that the effect has not happened as far as a look can tell. It is
// taken on the basis BOUNDED only, and counts as StillUnknown until two leases
// have passed since the last running lease ended, then as NotApplied. It assumes
// that no process resumes after a pause longer than that.
func NotSeen() Verdict { return Verdict{kind: notSeen} }

// Partial says that a part of the effect happened: the record is held until an
// operator resolves it. note says what is missing, for people; never a key or a
// request.
func Partial(note string) Verdict { return Verdict{kind: partial, note: note} }

// StillUnknown says that it could not be found out; repeats ask again.
func StillUnknown() Verdict { return Verdict{} }

// reconcile looks what the last run did. begun reports that the work may run
// now; else the result or the error is the answer.
func (h *hold) reconcile(ctx context.Context) (res Result, begun bool, err error) {
	v := h.look(ctx)
	switch v.kind {
	case applied:
		if v.outcome != nil {
			res, err = h.complete(ctx, v.outcome)
			if err == nil && res.Stored == nil {
				res.Stored, res.Applied = &dedupv1.Completed{Outcome: v.outcome, Ends: res.Ends}, true
			}
			return res, false, err
		}
	case notApplied:
		return h.begin(ctx)
	case notSeen:
		if h.call.Basis == dedupv1.Basis_BASIS_BOUNDED {
			wait := 2*h.call.Lease - h.grant.GetLastRunEndedAge().AsDuration()
			if wait <= 0 && h.grant.GetLastRunEndedAge() != nil {
				return h.begin(ctx)
			}
			return Result{}, false, h.unsettled(ctx, "not seen, and a late effect may still land", max(wait, reconcileRetry))
		}
	case partial:
		count(h.e.observe.Partial, h.call.Operation)
		h.e.log.LogAttrs(ctx, slog.LevelError, "a part of an effect was applied; the record is held until an operator resolves it",
			slog.String("operation", h.call.Operation), slog.String("record", ShortRecordID(h.recordID)))
		err := h.unsettled(ctx, "partial: "+v.note, 0)
		err.Entry = h.park(ctx, "a part of the effect was applied: "+v.note)
		return Result{}, false, err
	case stillUnknown:
	}
	return Result{}, false, h.unsettled(ctx, "the reconciler could not tell", reconcileRetry)
}

// look asks the reconciler.
func (h *hold) look(ctx context.Context) (v Verdict) {
	if h.call.Reconciler == nil {
		return StillUnknown() // granted to reconcile what we never asked for
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reconcileTime, errLookTime)
	defer cancel()
	failed := func(how string) {
		v = StillUnknown()
		h.e.log.LogAttrs(ctx, slog.LevelError, "the reconciler failed; the outcome stays unknown",
			slog.String("operation", h.call.Operation), slog.String("record", ShortRecordID(h.recordID)), slog.String("how", how))
	}
	defer func() {
		if p := recover(); p != nil {
			failed(fmt.Sprintf("panic of type %T", p))
		}
	}()
	v, err := h.call.Reconciler(ctx, h.attempt())
	switch {
	case err != nil:
		failed(status.Code(err).String())
	case errors.Is(context.Cause(ctx), errLookTime):
		failed("its time was over") // whatever it ruled, it may no longer be so
	}
	return v
}

// unsettled gives the grant back with nothing found out. The background
// reconciler goes on asking where asking again may help; the caller is told to
// wait for as long as it does.
func (h *hold) unsettled(ctx context.Context, note string, retry time.Duration) *RefusalError {
	h.release(ctx, Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: cut(note, maxNote)})
	entry := ""
	if retry > 0 && !h.probing {
		var left bool
		if left, entry = h.e.prober.met(ctx, h.work, retry); !left {
			retry = 0
		}
	}
	refusal := h.refuse(dedupv1.Reason_REASON_OUTCOME_UNKNOWN, retry, nil)
	refusal.Entry = entry
	return refusal
}

// begin turns the grant into a running one, which shuts the earlier holder out.
func (h *hold) begin(ctx context.Context) (Result, bool, error) {
	finish, cancel := finishing(ctx)
	defer cancel()
	err := h.e.tell(finish, func(ctx context.Context) error {
		sent := time.Now()
		resp, err := h.e.dedup.BeginRun(ctx, &dedupv1.BeginRunRequest{
			Identity: h.identity, AttemptId: h.attemptID, Fence: h.fence,
		})
		if err == nil {
			h.renew(sent, resp.GetLeaseLeft())
		}
		return err
	})
	reason, _ := reasonOf(err)
	switch {
	case err == nil && time.Now().Before(h.stopBy()) && ctx.Err() == nil:
		h.mode = dedupv1.Mode_MODE_RUN
		if r := runFrom(ctx); r != nil {
			r.restart()
		}
		return Result{}, true, nil
	case err == nil:
		h.mode = dedupv1.Mode_MODE_RUN
		h.giveBack(ctx)
		return Result{}, false, h.refuse(dedupv1.Reason_REASON_IN_PROGRESS, settleRetry, nil)
	case reason == dedupv1.Reason_REASON_STALE_HOLDER:
		res, err := h.superseded(finish)
		return res, false, err
	}
	h.release(ctx, Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: "the run could not begin"})
	return Result{}, false, h.refused(context.WithoutCancel(ctx), err)
}

const maxNote = 1024

func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "")
}
