package guard

import (
	"context"
	"crypto/rand"
	mrand "math/rand/v2"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/dedupd/dedupd/interceptors/internal/tries"
)

// The one budget of calls to dedupd, per attempt of the client: up to
// reserveTries Reserves (fewer on later attempts), finishTries of each call that
// begins or ends a run, and one Extend per third of the lease.
const (
	reserveTries = 3
	finishTries  = 5
	regrants     = 3 // new attempt ids after grants that came too late to run

	reserveTime = 5 * time.Second // for a Reserve, beside the time it waits
	tryTime     = 2 * time.Second // for one try, beside the time it waits
	finishTime  = 5 * time.Second // for Complete, Release, BeginRun and Lookup
	replyMargin = 200 * time.Millisecond

	tryBase = 25 * time.Millisecond
	tryCap  = time.Second

	laterBase = 100 * time.Millisecond // between tries in the background
	laterCap  = 30 * time.Second
	laterTime = 24 * time.Hour // after which a message is given up
)

// newAttemptID names one try.
func newAttemptID() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails: crypto/rand ends the process rather than return an error
	return id
}

// pause waits before try n+2 of a call; false when ctx ended first.
func (e *Engine) pause(ctx context.Context, n int) bool {
	return tries.Pause(ctx, e.often.Wait(n, 0, mrand.Int64N))
}

// trying is the context of one call to dedupd. What the caller's own calls carry
// as outgoing metadata is none of dedupd's business.
func trying(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(metadata.NewOutgoingContext(ctx, metadata.MD{}), timeout)
}

// tell sends one call to dedupd until it is answered, within finishTries and
// ctx. The message must be safe to repeat.
func (e *Engine) tell(ctx context.Context, send func(context.Context) error) error {
	for n := 0; ; n++ {
		try, cancel := trying(ctx, tryTime)
		err := send(try)
		cancel()
		if err == nil || answered(err) {
			return err
		}
		if n+1 == finishTries || !e.pause(ctx, n) {
			return err
		}
	}
}
