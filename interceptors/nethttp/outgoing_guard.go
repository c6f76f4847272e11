package nethttp

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// guardedTry sends a try under a grant of dedupd, or answers from the record.
func (c *outgoing) guardedTry(ctx context.Context, permit *policy.Permit) (policy.Answer, error) {
	g := c.provider.Guarded
	call := guard.Call{
		Operation: c.operation(), Caller: []byte(g.Caller), Key: []byte(c.key), Fingerprints: []*dedupv1.Fingerprint{c.fp},
		Lease: g.Lease, Retention: g.Retention, RerunSafe: g.Rerun, Attempt: c.attempts,
	}
	if deadline, ok := ctx.Deadline(); ok {
		call.MaxRun = max(time.Until(deadline), tries.Least)
	}
	var answer policy.Answer
	var sent sentTry
	res, err := g.Engine.Do(ctx, call, func(run context.Context, a guard.Attempt) guard.Ending {
		c.acknowledged, c.recordID = true, hex.EncodeToString(a.RecordID)
		var ending guard.Ending
		sent, answer, ending = c.sendGuarded(ctx, run, a)
		permit.Done(verdictOf(sent, answer))
		return ending
	})
	c.recordID = hex.EncodeToString(res.RecordID)
	refusal, refused := errors.AsType[*guard.RefusalError](err)
	switch {
	case refused:
		answer = answerToRefusal(refusal, ctx.Err() != nil)
	case err != nil: // the engine is closed, or the caller left before anything was sent
		return policy.Answer{Retry: policy.Stop, Effect: policy.EffectNone}, err
	case res.Stored != nil:
		return c.stored(res)
	default:
		c.resp, err = sent.resp, sent.Err
	}
	c.effect = max(c.effect, answer.Effect)
	return answer, err
}

// answerToRefusal says what the engine's refusal means.
func answerToRefusal(r *guard.RefusalError, callerDone bool) policy.Answer {
	answer := policy.AnswerTo(policy.Refusal{Reason: r.Reason, Effect: r.Effect()}, r.RetryAfter, r.RetryAfter > 0)
	if callerDone && answer.Retry != policy.Permanent {
		answer.Retry = policy.Stop
	}
	return answer
}

// stored answers from the record.
func (c *outgoing) stored(res guard.Result) (policy.Answer, error) {
	c.acknowledged, c.effect = true, policy.EffectApplied
	permanent := policy.Answer{Retry: policy.Permanent, Effect: policy.EffectApplied}
	r, ok := storedResponse(res.Stored.GetOutcome())
	if !ok {
		return permanent, &guard.RefusalError{
			Reason: dedupv1.Reason_REASON_OUTCOME_NOT_STORED, Operation: c.operation(), RecordID: res.RecordID,
			Err: errNotKept,
		}
	}
	r.Header.Set(HeaderReplayed, "true")
	c.resp = c.response(r) //nolint:bodyclose // the caller's to close
	return permanent, nil
}

var errNotKept = errors.New("the request was done, its response is not kept")

// sendGuarded sends a try on the context of its run, which ends with the caller's
// too, and reads its response whole.
func (c *outgoing) sendGuarded(caller, run context.Context, a guard.Attempt) (sentTry, policy.Answer, guard.Ending) {
	ctx, cancel := tries.Within(run, caller)
	defer cancel()
	s := c.send(ctx, caller)
	s.CallerDone = caller.Err() != nil
	var r *Response
	if s.resp != nil {
		r = &Response{Status: s.resp.StatusCode, Header: s.resp.Header}
		whole := s.resp.Body
		defer context.AfterFunc(ctx, func() { _ = whole.Close() })() // the answer's time is the run's
		var err error
		if r.Body, err = io.ReadAll(s.resp.Body); err != nil {
			// Its status may be a success, but its answer is lost.
			s.Err = &codedError{error: err, code: codes.Unavailable}
			_ = s.resp.Body.Close()
			s.resp = nil
		} else {
			_ = s.resp.Body.Close()
			s.resp = c.response(r)
		}
	}
	answer := c.answerTo(s)
	if r != nil && !c.provider.Guarded.RefusalsApplyNothing {
		switch r.Status {
		case http.StatusTooEarly, http.StatusTooManyRequests:
			answer.Effect = max(answer.Effect, policy.EffectUnknown)
		}
	}
	if answer.Effect == policy.EffectUnknown && !c.provider.Guarded.Rerun && answer.Retry == policy.Transient {
		answer.Retry = policy.Stop
	}
	return s, answer, c.guardedEnding(s, answer, r, a)
}

// guardedEnding is what a try leaves on its record, by what its client can tell.
func (c *outgoing) guardedEnding(s sentTry, answer policy.Answer, r *Response, a guard.Attempt) guard.Ending {
	end := guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: "the request ended with " + policy.StatusOf(s.Err).Code().String()}
	switch answer.Effect {
	case policy.EffectApplied:
		if r != nil {
			return guard.Ending{Outcome: r.outcome(a.MaxOutcomeBytes, alwaysKept())}
		}
	case policy.EffectNone:
		end.Effect = dedupv1.Effect_EFFECT_NONE
	case policy.EffectUnknown, policy.EffectAsTable:
	}
	return end
}

// response returns r as the answer to the caller's request.
func (c *outgoing) response(r *Response) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(r.Status) + " " + http.StatusText(r.Status), StatusCode: r.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.Header, Body: io.NopCloser(bytes.NewReader(r.Body)), ContentLength: int64(len(r.Body)), Request: c.req,
	}
}
