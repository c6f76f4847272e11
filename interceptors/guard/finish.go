package guard

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// settleRetry is the hint of an unknown outcome that may settle by itself.
const settleRetry = time.Second

// finishing is the context of what ends a run: the caller's values, its own
// time, nobody's cancel.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTime)
}

// complete stores the outcome and says whether the run's own answer stands.
func (h *hold) complete(ctx context.Context, o *dedupv1.Outcome) (Result, error) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	resp, req, err := h.tellComplete(ctx, o)
	reason, _ := reasonOf(err)
	switch {
	case err == nil && resp.GetState() == dedupv1.State_STATE_COMPLETED:
		return Result{Ends: resp.GetEnds()}, nil
	case err == nil:
		// An error of a run that began while an earlier outcome was unknown
		// settles nothing.
		return Result{}, h.refuse(dedupv1.Reason_REASON_OUTCOME_UNKNOWN, settleRetry, nil)
	case reason == dedupv1.Reason_REASON_STALE_HOLDER:
		return h.superseded(ctx)
	}
	count(h.e.observe.Unacknowledged, h.call.Operation)
	h.e.log.LogAttrs(ctx, slog.LevelError, "dedupd did not acknowledge an outcome; trying further in the background",
		slog.String("operation", h.call.Operation), slog.String("record", ShortRecordID(h.recordID)),
		slog.String("code", status.Code(err).String()))
	h.completeLater(ctx, req, o)
	if h.answerStands(o) {
		return Result{}, nil
	}
	refusal := h.refuse(dedupv1.Reason_REASON_STORE_UNAVAILABLE, downRetry, err)
	refusal.Unknown = true
	return Result{}, refusal
}

// tellComplete sends the outcome; where dedupd refuses it for what it holds, it
// sends what is left of it without the answer, so that a repeat is told that the
// work was done. It returns the request to go on with.
func (h *hold) tellComplete(ctx context.Context, o *dedupv1.Outcome) (*dedupv1.CompleteResponse, *dedupv1.CompleteRequest, error) {
	req := &dedupv1.CompleteRequest{Identity: h.identity, AttemptId: h.attemptID, Fence: h.fence, Outcome: o}
	if h.call.Retention > 0 {
		req.Retention = durationpb.New(h.call.Retention)
	}
	var resp *dedupv1.CompleteResponse
	send := func(ctx context.Context) (err error) {
		resp, err = h.e.dedup.Complete(ctx, req)
		return err
	}
	err := h.e.tell(ctx, send)
	reason, _ := reasonOf(err)
	if err == nil || !answered(err) || reason == dedupv1.Reason_REASON_STALE_HOLDER {
		return resp, req, err
	}
	h.e.log.LogAttrs(ctx, slog.LevelError, "dedupd refused an outcome; completing without the answer",
		slog.String("operation", h.call.Operation), slog.String("record", ShortRecordID(h.recordID)),
		slog.String("code", status.Code(err).String()))
	req = &dedupv1.CompleteRequest{
		Identity: h.identity, AttemptId: h.attemptID, Fence: h.fence,
		Outcome: withoutAnswer(o), Retention: req.GetRetention(),
	}
	return resp, req, h.e.tell(ctx, send)
}

// withoutAnswer keeps of an outcome that it was there, its size and its hash.
func withoutAnswer(o *dedupv1.Outcome) *dedupv1.Outcome {
	if om := o.GetOmitted(); om != nil {
		return &dedupv1.Outcome{Result: &dedupv1.Outcome_Omitted{Omitted: om}}
	}
	answer := o.GetResponse().GetValue()
	if o.GetResponse() == nil {
		answer = o.GetStatus()
	}
	sum := sha256.Sum256(answer)
	return &dedupv1.Outcome{Result: &dedupv1.Outcome_Omitted{Omitted: &dedupv1.OmittedResponse{
		Size: int64(len(answer)), Sha256: sum[:], TypeUrl: o.GetResponse().GetTypeUrl(),
	}}}
}

func (h *hold) completeLater(ctx context.Context, req *dedupv1.CompleteRequest, o *dedupv1.Outcome) {
	h.e.completer.add(ctx, &letter{
		recordID: string(h.recordID), operation: h.call.Operation, complete: req,
		stands: h.answerStands(o), fingerprints: h.call.Fingerprints,
	})
}

func tooLate(ctx context.Context, log *slog.Logger, observe Observer, operation string, recordID []byte) {
	count(observe.Superseded, operation)
	log.LogAttrs(ctx, slog.LevelError, "an outcome came too late, another holder had the record; where the two answers differ dedupd keeps the conflict as a dead letter",
		slog.String("operation", operation), slog.String("record", ShortRecordID(recordID)))
}

// superseded answers for a holder whose record was no longer its own: with the
// stored outcome, never with its own.
func (h *hold) superseded(ctx context.Context) (Result, error) {
	tooLate(ctx, h.e.log, h.e.observe, h.call.Operation, h.recordID)
	return h.answered(h.lookup(ctx))
}

// overtaken answers for a run that ended without an outcome, whose record was no
// longer its own: another holder may have done by now what this one could not.
func (h *hold) overtaken(ctx context.Context) (Result, error) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	resp, err := h.lookup(ctx)
	if err == nil && resp.GetCompleted() == nil && resp.GetRecord().GetFence() <= h.fence {
		// Nobody has been there: our own Release was, or an operator.
		return Result{Left: dedupv1.Effect_EFFECT_UNKNOWN}, nil
	}
	return h.answered(resp, err)
}

func (h *hold) lookup(ctx context.Context) (resp *dedupv1.LookupResponse, err error) {
	err = h.e.tell(ctx, func(ctx context.Context) (err error) {
		resp, err = h.e.dedup.Lookup(ctx, &dedupv1.LookupRequest{
			Record:       &dedupv1.LookupRequest_Identity{Identity: h.identity},
			Fingerprints: h.call.Fingerprints,
		})
		return err
	})
	return resp, err
}

// answered is the stored outcome, or that nobody knows.
func (h *hold) answered(resp *dedupv1.LookupResponse, err error) (Result, error) {
	if err == nil && resp.GetCompleted() != nil && !resp.GetCompleted().GetKept() {
		return Result{Stored: resp.GetCompleted(), Ends: resp.GetCompleted().GetEnds()}, nil
	}
	retry := settleRetry
	switch state := resp.GetRecord().GetState(); {
	case err != nil && answered(err), err == nil && state != dedupv1.State_STATE_RESERVED && state != dedupv1.State_STATE_UNKNOWN:
		retry = 0 // nobody is going to settle it: the record is gone, or serves another request
	}
	return Result{}, h.refuse(dedupv1.Reason_REASON_OUTCOME_UNKNOWN, retry, err)
}

// release ends a run without a stored outcome. What cannot be delivered goes on
// in the background: the caller's answer does not depend on it. left is what the
// record's runs have left behind, this one and those before it. gone reports that the
// record was another holder's by then, or settled.
func (h *hold) release(ctx context.Context, e Ending) (left dedupv1.Effect, gone bool) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	req := &dedupv1.ReleaseRequest{
		Identity: h.identity, AttemptId: h.attemptID, Fence: h.fence,
		Effect: e.Effect, Error: e.Kept, Note: e.Note,
	}
	if e.Effect == dedupv1.Effect_EFFECT_UNSPECIFIED {
		req.Effect = dedupv1.Effect_EFFECT_UNKNOWN
	}
	if e.Kept != nil {
		req.Hold = durationpb.New(e.Hold)
	}
	var resp *dedupv1.ReleaseResponse
	send := func(ctx context.Context) (err error) {
		resp, err = h.e.dedup.Release(ctx, req)
		return err
	}
	err := h.e.tell(ctx, send)
	reason, _ := reasonOf(err)
	if reason != dedupv1.Reason_REASON_STALE_HOLDER && answered(err) && req.GetError() != nil {
		req.Error, req.Hold = nil, nil // the error itself was refused: release without it
		err = h.e.tell(ctx, send)
		reason, _ = reasonOf(err)
	}
	if reason == dedupv1.Reason_REASON_STALE_HOLDER {
		// It may be our own doing: a re-sent Release that finds the record gone on has been done.
		return dedupv1.Effect_EFFECT_UNKNOWN, true
	}
	left = h.leftBy(req.GetEffect(), resp)
	if err == nil || answered(err) {
		return left, false
	}
	count(h.e.observe.Unacknowledged, h.call.Operation)
	h.e.completer.add(ctx, &letter{
		recordID: string(h.recordID), operation: h.call.Operation, release: req, fingerprints: h.call.Fingerprints,
	})
	return left, false
}

// leftBy is what a record's runs have left behind, the last of which left this:
// those before it are known to dedupd alone. resp is nil where it did not tell.
func (h *hold) leftBy(last dedupv1.Effect, resp *dedupv1.ReleaseResponse) dedupv1.Effect {
	switch {
	case resp == nil && h.grant.GetEarlierGrants() > 0, resp.GetState() == dedupv1.State_STATE_UNKNOWN:
		return dedupv1.Effect_EFFECT_UNKNOWN
	case resp.GetBound() && last == dedupv1.Effect_EFFECT_NONE:
		return dedupv1.Effect_EFFECT_REPEATABLE
	}
	return last
}

// giveBack ends a grant under which nothing ran.
func (h *hold) giveBack(ctx context.Context) {
	effect := dedupv1.Effect_EFFECT_NONE
	if h.mode == dedupv1.Mode_MODE_RECONCILE {
		effect = dedupv1.Effect_EFFECT_UNKNOWN
	}
	h.release(ctx, Ending{Effect: effect, Note: "granted too late to run"})
}
