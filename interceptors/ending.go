package interceptors

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/ending"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// RunEnding says what the return of a run means for its record, by the rules of
// a gRPC handler: a response, which may be nil, completes it; an error says of
// itself what it means (NotApplied, OutcomeUnknown, Final), else t does by its
// code, and frees the key only where the run has left nothing behind (MarkEffect,
// and gRPC calls through ClientOptions). A permanent error is kept for hold; 0
// keeps none. It is for doors other than gRPC's, which call it at the end of a
// guard.Run, with that run's context.
func RunEnding(ctx context.Context, resp proto.Message, err error, a guard.Attempt, t policy.Table, hold time.Duration) guard.Ending {
	store := func(resp proto.Message, err error) *dedupv1.Outcome {
		o, err := newOutcome(resp, err, nil, nil, allowList{}, a.MaxOutcomeBytes)
		if err != nil {
			return nil
		}
		return o
	}
	if err != nil {
		return errorEnding(ctx, sentFor(ctx, err), err, t, hold, store)
	}
	if o := store(resp, nil); o != nil {
		return guard.Ending{Outcome: o}
	}
	return unencodable()
}

// AnswerOf returns the answer that a repeat gets of a stored outcome: the
// response, nil where the run had none, or the error. The error is a refusal with
// REASON_OUTCOME_NOT_STORED where the work was done, but its answer is not kept.
func AnswerOf(o *dedupv1.Outcome, operation string) (proto.Message, error) {
	resp, _, _, err := replayOutcome(o, operation)
	return resp, err
}

// ending says what the handler's return means for its record. The error it
// returns is the one the caller is sent: the very status that a repeat gets.
func (k *keyedCall) ending(ctx context.Context, resp any, err error, a guard.Attempt) (guard.Ending, error) {
	if err == nil {
		return k.success(resp, a)
	}
	sent := sentFor(ctx, err)
	return errorEnding(ctx, sent, err, k.m.errors, k.s.hold, func(resp proto.Message, err error) *dedupv1.Outcome {
		return k.outcome(resp, err, a)
	}), sent
}

// sentFor is what the caller is sent for a run's error: a refusal of the run itself
// as one of ours, any other error as the handler's own.
func sentFor(ctx context.Context, err error) error {
	if r := guard.RunRefusal(err, guard.RecordIDFrom(ctx)); r != nil {
		return refusalStatus(r)
	}
	return policy.StatusOf(markNested(err)).Err()
}

// errorEnding says what err means for a run's record, which stores it as sent.
func errorEnding(ctx context.Context, sent, err error, t policy.Table, hold time.Duration, store func(proto.Message, error) *dedupv1.Outcome) guard.Ending {
	left, how := guard.LeftBehind(ctx), policy.Released
	if proto.Size(policy.StatusOf(sent).Proto()) > maxStatusBytes {
		hold = 0 // what is kept in its place would tell repeats that the work was done
	}
	if !refusedFor(guard.RunRefusal(err, guard.RecordIDFrom(ctx)), left) {
		how = endingOf(t, err, left)
	}
	return ending.Of(how, markOf(err), left, noteOf(sent), hold, func() *dedupv1.Outcome { return store(nil, sent) })
}

// endingOf judges a handler's error.
func endingOf(t policy.Table, err error, left guard.Left) policy.Ending {
	table := t.Ending(err)
	if further, ok := errors.AsType[*CallError](err); errors.Is(err, ErrOutcomeUnknown) && (!ok || !further.bound) {
		table = policy.Unknown
	}
	return ending.Judge(markOf(err), policy.StatusOf(err).Code(), table, left)
}

// success stores the response. One that cannot be encoded cannot be sent either:
// the effect has happened, and its answer is lost.
func (k *keyedCall) success(resp any, a guard.Attempt) (guard.Ending, error) {
	msg, ok := resp.(proto.Message)
	if ok || resp == nil {
		if o := k.outcome(msg, nil, a); o != nil {
			return guard.Ending{Outcome: o}, nil
		}
	}
	return unencodable(), status.Error(codes.Internal, "the response cannot be encoded")
}

func unencodable() guard.Ending {
	return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: "the response cannot be encoded"}
}

func (k *keyedCall) outcome(resp proto.Message, err error, a guard.Attempt) *dedupv1.Outcome {
	headers, trailers := k.capture.end()
	o, err := newOutcome(resp, err, headers, trailers, k.m.allow, a.MaxOutcomeBytes)
	if err != nil {
		return nil
	}
	return o
}

// noteOf is what an operator may see of an error: its code.
func noteOf(err error) string { return "the handler returned " + status.Code(err).String() }

// refusedFor reports a refusal that says nothing of this run's effect but that
// there is none.
func refusedFor(r *guard.RefusalError, left guard.Left) bool {
	return r != nil && r.Reason == dedupv1.Reason_REASON_KEY_REUSED && left <= guard.LeftKeyed
}
