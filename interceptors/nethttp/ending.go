package nethttp

import (
	"context"
	"net/http"
	"strconv"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ending says what a handler's response means for its record. The run's context
// tells what it left behind.
func (t *route) ending(ctx context.Context, r *Response, said mark, a guard.Attempt) guard.Ending {
	left := guard.LeftBehind(ctx)
	end := guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: "the handler answered " + strconv.Itoa(r.Status)}
	switch what := t.meaning(r.Status, said, left); what {
	case policy.Completed:
		return guard.Ending{Outcome: r.outcome(a.MaxOutcomeBytes, t.headers)}
	case policy.Released, policy.ReleasedKept:
		end.Effect = dedupv1.Effect_EFFECT_NONE
		if left == guard.LeftKeyed && said != markNotApplied {
			end.Effect = dedupv1.Effect_EFFECT_REPEATABLE
		}
		if what == policy.ReleasedKept && t.hold > 0 {
			end.Kept, end.Hold = r.outcome(a.MaxOutcomeBytes, t.headers), t.hold
		}
	case policy.Unknown, policy.EndingAsTable:
	}
	return end
}

// meaning judges a response: what the handler says of it, else the one table,
// which frees the key only where the run has left nothing behind.
func (t *route) meaning(httpStatus int, said mark, left guard.Left) policy.Ending {
	if httpStatus < http.StatusBadRequest && said != markUnknown {
		return policy.Completed
	}
	row := t.errors.Row(policy.CodeOfHTTP(httpStatus))
	switch said {
	case markFinal:
		return policy.Completed
	case markUnknown:
		return policy.Unknown
	case markNotApplied:
		// The status may still say that the error is permanent, and worth keeping.
		if policy.Default().Row(policy.CodeOfHTTP(httpStatus)).Ending == policy.ReleasedKept {
			return policy.ReleasedKept
		}
		return policy.Released
	}
	if left > guard.LeftKeyed {
		return policy.Unknown
	}
	return row.Ending
}
