package nethttp

import (
	"context"
	"net/http"
	"strconv"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/ending"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ending says what a handler's response means for its record. The run's context
// tells what it left behind.
func (t *route) ending(ctx context.Context, r *Response, said ending.Mark, a guard.Attempt) guard.Ending {
	left := guard.LeftBehind(ctx)
	return ending.Of(t.meaning(r.Status, said, left), said, left, "the handler answered "+strconv.Itoa(r.Status), t.hold, func() *dedupv1.Outcome {
		return r.outcome(a.MaxOutcomeBytes, t.headers)
	})
}

// meaning judges a response: below 400 it is a success, which only the handler can
// put in doubt.
func (t *route) meaning(httpStatus int, said ending.Mark, left guard.Left) policy.Ending {
	if httpStatus < http.StatusBadRequest && said != ending.Unknown {
		return policy.Completed
	}
	code := policy.CodeOfHTTP(httpStatus)
	return ending.Judge(said, code, t.errors.Row(code).Ending, left)
}
