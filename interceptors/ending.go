package interceptors

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ending says what the handler's return means for its record. The error it
// returns is the one the caller is sent: the very status that a repeat gets.
func (k *keyedCall) ending(ctx context.Context, resp any, err error, a guard.Attempt) (guard.Ending, error) {
	if err == nil {
		return k.success(resp, a)
	}
	left := guard.LeftBehind(ctx)
	end := k.m.endingOf(err, left)
	sent := policy.StatusOf(markNested(err)).Err()
	switch end {
	case policy.Completed:
		if o := k.outcome(nil, sent, a); o != nil {
			return guard.Ending{Outcome: o}, sent
		}
	case policy.Released:
		return guard.Ending{Effect: releasedEffect(err, left), Note: noteOf(sent)}, sent
	case policy.ReleasedKept:
		e := guard.Ending{Effect: releasedEffect(err, left), Note: noteOf(sent)}
		if k.s.hold > 0 {
			e.Kept, e.Hold = k.outcome(nil, sent, a), k.s.hold
		}
		return e, sent
	case policy.Unknown, policy.EndingAsTable:
	}
	return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: noteOf(sent)}, sent
}

// endingOf judges a handler's error: what it says of itself, else the table,
// which frees the key only where the run has left nothing behind.
func (m *method) endingOf(err error, left guard.Left) policy.Ending {
	table := m.errors.Ending(err)
	switch markOf(err) {
	case markFinal:
		return policy.Completed
	case markUnknown:
		return policy.Unknown
	case markNotApplied:
		// The code may still say that the error is permanent, and worth keeping.
		if policy.Default().Row(policy.StatusOf(err).Code()).Ending == policy.ReleasedKept {
			return policy.ReleasedKept
		}
		return policy.Released
	}
	if errors.Is(err, ErrOutcomeUnknown) || left > guard.LeftKeyed {
		return policy.Unknown
	}
	return table
}

// releasedEffect says what a released run left behind: effects under child keys
// let the same request run again, and no other.
func releasedEffect(err error, left guard.Left) dedupv1.Effect {
	if left == guard.LeftKeyed && markOf(err) != markNotApplied {
		return dedupv1.Effect_EFFECT_REPEATABLE
	}
	return dedupv1.Effect_EFFECT_NONE
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
	return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: "the response cannot be encoded"},
		status.Error(codes.Internal, "the response cannot be encoded")
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
