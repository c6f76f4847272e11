// Package tries is the loop of one outgoing call, for every client that has one:
// gRPC's and HTTP's. It tries, asks whether and when to go on, asks for a permit,
// waits within the context, and tries again. What an end means is package
// policy's to say, and how to send is the caller's. Pause and Within serve
// whatever else waits, or works for two.
package tries

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// Least is the shortest time in which a try could end.
const Least = time.Millisecond

// Loop is one call's loop. Every function is set; they run on Run's goroutine.
type Loop struct {
	// Try sends the call once and says what its end means; a nil error is the end.
	Try func(ctx context.Context) (policy.Answer, error)
	// Next says whether to go on, and after what wait.
	Next func(policy.Answer) (wait time.Duration, again bool)
	// Permit asks for a retry; release ends it.
	Permit func(ctx context.Context) (release func(), ok bool)
	// Retrying is told before the wait.
	Retrying func(ctx context.Context, a policy.Answer, err error)
}

// Run tries until there is an answer or no sense in going on. Where it is not ok,
// last is the last try's error, nil before the first answer.
func (l Loop) Run(ctx context.Context) (ok bool, last error) {
	release := func() {}
	defer func() { release() }() // also if the try panics
	for {
		if ctx.Err() != nil {
			return false, last
		}
		answer, err := l.Try(ctx)
		release()
		if err == nil {
			return true, nil
		}
		last = err
		wait, again := l.Next(answer)
		if deadline, ok := ctx.Deadline(); again && ok && time.Until(deadline) < wait+Least {
			again = false
		}
		if again && answer.Retry == policy.Transient {
			// Asked for before the wait: calls that fail together would else come
			// out of their waits together.
			release, again = l.Permit(ctx)
		}
		if !again {
			return false, last
		}
		l.Retrying(ctx, answer, err)
		if !Pause(ctx, wait) {
			return false, last
		}
	}
}

// Next says whether and when a call goes on that is protected or not, after so
// many tries of at most so many. Waiting for somebody else's run uses up no try.
func Next(a policy.Answer, protected bool, made, most int, b policy.Backoff) (time.Duration, bool) {
	switch a.Retry {
	case policy.Wait:
		return b.Wait(0, a.Hint, rand.Int64N), protected
	case policy.Transient:
		return b.Wait(made-1, a.Hint, rand.Int64N), protected && made < most
	case policy.AsTable, policy.Permanent, policy.Stop:
	}
	return 0, false
}

// Pause waits for d; false when ctx ended first.
func Pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Within returns ctx, which also ends when caller does: at its deadline, and with
// the cause of its cancel. cancel frees what it holds.
func Within(ctx, caller context.Context) (within context.Context, cancel context.CancelFunc) {
	stop := context.CancelFunc(func() {})
	if deadline, ok := caller.Deadline(); ok {
		ctx, stop = context.WithDeadline(ctx, deadline)
	}
	ctx, end := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(caller, func() { end(context.Cause(caller)) })
	return ctx, func() {
		unhook()
		end(context.Canceled)
		stop()
	}
}
