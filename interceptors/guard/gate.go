package guard

import (
	"context"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// gateOpen is how long nobody asks a dedupd that does not answer. It is shorter
// than between services: three calls at a time then find out, and it costs
// keyed work to be late.
const gateOpen = time.Second

// gate holds calls back that would wait in vain for a dedupd that does not
// answer, or whose store is away: it opens by policy's defaults (half of 20 calls
// in 10 s), and they are refused at once as they would be in the end. Only
// Reserve passes through it: what ends or keeps a grant is always tried.
type gate struct{ breaker *policy.Breaker }

func newGate() (gate, error) {
	b, err := policy.NewBreaker(policy.BreakerSettings{OpenFor: gateOpen})
	return gate{breaker: b}, err
}

// pass asks whether a Reserve may be sent. If so, done takes how it ended; ctx is
// the caller's. Else err is no refusal of a store, but carries the time to wait.
func (g gate) pass(ctx context.Context) (done func(error), err error) {
	permit, err := g.breaker.Allow(dedupv1.DedupService_Reserve_FullMethodName)
	if err != nil {
		return nil, err
	}
	return func(err error) {
		switch {
		case err == nil || answered(err):
			permit.Done(policy.Well)
		case callerLeft(ctx, err):
			permit.Done(policy.Neutral)
		default:
			permit.Done(policy.Ill)
		}
	}, nil
}

// held is the refusal of a call that the gate held back.
func (w *work) held(err error) *RefusalError {
	_, left := reasonOf(err)
	return w.refuse(dedupv1.Reason_REASON_STORE_UNAVAILABLE, max(left, minRetryAfter), nil)
}
