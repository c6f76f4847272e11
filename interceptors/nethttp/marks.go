package nethttp

import (
	"context"
	"sync/atomic"

	"github.com/dedupd/dedupd/interceptors/internal/ending"
)

type markKey struct{}

func say(ctx context.Context, m ending.Mark) {
	if said, ok := ctx.Value(markKey{}).(*atomic.Int32); ok {
		said.Store(int32(m))
	}
}

// SayNotApplied says of a keyed handler's failing response that nothing was
// applied, effects of calls further down included, and nothing of this run can
// still be: the key is free again, whatever the status. Of several the last
// counts; outside a keyed handler it does nothing. Responses below 400 are
// successes, whatever is said.
func SayNotApplied(ctx context.Context) { say(ctx, ending.NotApplied) }

// SayOutcomeUnknown says that the effect may have been applied, whatever the
// status.
func SayOutcomeUnknown(ctx context.Context) { say(ctx, ending.Unknown) }

// SayFinal says that a failing response is the request's answer for good: it is
// stored for the full retention and every repeat gets it.
func SayFinal(ctx context.Context) { say(ctx, ending.Final) }
