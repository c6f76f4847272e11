// Package ending says what a handler's answer means for its run's record, for every
// door that runs handlers: gRPC's and HTTP's. What the handler says of it comes
// first, then the table of its code, which frees the key only where the run has left
// nothing behind. It keeps no state, and knows no transport.
package ending

import (
	"time"

	"google.golang.org/grpc/codes"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Mark is what a handler says of its own answer, beyond the code.
type Mark int32

const (
	// None says nothing.
	None Mark = iota
	// NotApplied says that nothing was applied, and nothing of this run can still be.
	NotApplied
	// Unknown says that the effect may have been applied.
	Unknown
	// Final says that it is the answer for good.
	Final
)

// Judge says how a run ends that answers with a code, of which the table says t.
func Judge(said Mark, code codes.Code, t policy.Ending, left guard.Left) policy.Ending {
	switch said {
	case Final:
		return policy.Completed
	case Unknown:
		return policy.Unknown
	case NotApplied:
		// The code may still say that the error is permanent, and worth keeping.
		if policy.Default().Row(code).Ending == policy.ReleasedKept {
			return policy.ReleasedKept
		}
		return policy.Released
	case None:
	}
	if left > guard.LeftKeyed {
		return policy.Unknown
	}
	return t
}

// Of returns what the engine is told of a run that ends so. store makes the outcome,
// nil where it cannot be encoded; a permanent error is kept for hold, 0 keeps none.
func Of(how policy.Ending, said Mark, left guard.Left, note string, hold time.Duration, store func() *dedupv1.Outcome) guard.Ending {
	end := guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: note}
	switch how {
	case policy.Completed:
		if o := store(); o != nil {
			return guard.Ending{Outcome: o}
		}
	case policy.ReleasedKept:
		if hold > 0 {
			end.Kept, end.Hold = store(), hold
		}
		fallthrough
	case policy.Released:
		end.Effect = dedupv1.Effect_EFFECT_NONE
		if left == guard.LeftKeyed && said != NotApplied {
			// Effects under child keys: the same request may run again, and no other.
			end.Effect = dedupv1.Effect_EFFECT_REPEATABLE
		}
	case policy.Unknown, policy.EndingAsTable:
	}
	return end
}
