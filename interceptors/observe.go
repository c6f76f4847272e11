package interceptors

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Sight is what an observed call would have been, had it been protected.
type Sight = guard.Sight

// What an observed call would have been.
const (
	// SightNone says that dedupd did not answer in time: nothing is known.
	SightNone = guard.SightNone
	// SightRun says that it would have run, as it did.
	SightRun = guard.SightRun
	// SightReplay says that a stored answer would have been given, and the handler not run.
	SightReplay = guard.SightReplay
	// SightRefuse says that it would have been refused, or made to wait.
	SightRefuse = guard.SightRefuse
	// SightMismatch says that its key was used for another request before.
	SightMismatch = guard.SightMismatch
)

// observed runs the handler as if there were no keys, and beside it keeps the
// shadow record of the call.
func (s *server) observed(ctx context.Context, m *method, req any, handler grpc.UnaryHandler) (any, error) {
	done := s.watch(ctx, m, req)
	end := guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN} // of a panic
	defer func() { done(end) }()
	resp, err := handler(ctx, req)
	end = m.shadowEnding(resp, err)
	return resp, markNested(err)
}

// watch counts what the call would have been. Whatever goes wrong here is no
// fault of the call: it goes on.
func (s *server) watch(ctx context.Context, m *method, req any) (done func(guard.Ending)) {
	done = func(guard.Ending) {}
	tell := func(would Sight, reason dedupv1.Reason) {
		if s.observe.Observed != nil {
			s.observe.Observed(m.fullName, would, reason)
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	key, keyed, err := incomingKey(md)
	switch {
	case err != nil:
		tell(SightRefuse, reasonIn(err))
		return done
	case !keyed:
		if s.observe.Keyless != nil {
			s.observe.Keyless(m.fullName)
		}
		return done
	}
	call, _, err := s.keyed(ctx, m, req, key, md)
	if err != nil {
		tell(SightRefuse, reasonIn(err))
		return done
	}
	would, reason, done := s.engine.Observe(ctx, call)
	tell(would, reason)
	return done
}

// shadowEnding is what an observed handler's return would mean for its record.
// Nothing of a response is kept.
func (m *method) shadowEnding(resp any, err error) guard.Ending {
	completed := err == nil
	if err != nil {
		switch endingOf(m.errors, err, guard.LeftClean) {
		case policy.Completed:
			completed = true
		case policy.Released, policy.ReleasedKept:
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE}
		case policy.Unknown, policy.EndingAsTable:
		}
	}
	if completed {
		msg, _ := resp.(proto.Message)
		if o, fault := newOutcome(msg, err, nil, nil, allowList{}, 0); fault == nil {
			return guard.Ending{Outcome: o}
		}
	}
	return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN}
}
