package guard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

const (
	observeTime  = 100 * time.Millisecond // that a call waits for dedupd, at most
	observePause = time.Second            // for which nobody asks after that was too short
	maxObserved  = 256                    // reports on their way at a time
)

// Sight is what an observed call would have been, had it been protected.
type Sight uint8

const (
	// SightNone says that dedupd did not answer in time: nothing is known.
	SightNone Sight = iota
	// SightRun says that it would have run.
	SightRun
	// SightReplay says that it would have been given the stored answer of an earlier call.
	SightReplay
	// SightRefuse says that it would have been refused, or made to wait, for the reason
	// given.
	SightRefuse
	// SightMismatch says that the key was used for another request before.
	SightMismatch
)

// String names the sight as a metric label would.
func (s Sight) String() string {
	switch s {
	case SightRun:
		return "run"
	case SightReplay:
		return "replay"
	case SightRefuse:
		return "refuse"
	case SightMismatch:
		return "mismatch"
	case SightNone:
	}
	return "none"
}

// watcher keeps shadow records. They decide nothing.
type watcher struct {
	dedup     dedupv1.DedupServiceClient
	namespace string
	resume    atomic.Int64 // unix nanoseconds until which nobody asks
	onWay     chan struct{}
	wg        sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// Observe looks what dedupd would have said to the call, in the namespace
// Config.Shadow, and returns it with the reason of a refusal. It waits for at
// most 100 ms, and after a miss not at all for a second; it returns no error.
// The caller runs its work in any case and then calls done, once, with how that
// ended; of an outcome no response is stored. c.Reconciler is not asked.
func (e *Engine) Observe(ctx context.Context, c Call) (sight Sight, reason dedupv1.Reason, done func(Ending)) {
	done = func(Ending) {}
	c.withDefaults()
	now := time.Now()
	if c.validate() != nil || e.life.Err() != nil || now.UnixNano() < e.watch.resume.Load() {
		return SightNone, 0, done
	}
	req := &dedupv1.ReserveRequest{
		Identity:     &dedupv1.Identity{Namespace: e.watch.namespace, Operation: c.Operation, Caller: c.Caller, Key: c.Key},
		Fingerprints: c.Fingerprints, AttemptId: newAttemptID(),
		// Nobody extends it: it lasts as long as the work may.
		Lease: durationpb.New(min(max(c.Lease, c.MaxRun), MaxLease)),
	}
	if c.RerunSafe {
		req.OnUnknown = dedupv1.OnUnknown_ON_UNKNOWN_RERUN
	}
	try, cancel := trying(ctx, observeTime)
	resp, err := e.watch.dedup.Reserve(try, req)
	cancel()
	if err != nil && !answered(err) {
		if ctx.Err() == nil {
			e.watch.resume.Store(now.Add(observeTime + observePause).UnixNano())
		}
		e.watch.report(ctx, req, 0, Ending{Effect: dedupv1.Effect_EFFECT_NONE})
		return SightNone, 0, done
	}
	switch reason, _ = reasonOf(err); {
	case reason == dedupv1.Reason_REASON_KEY_REUSED:
		return SightMismatch, reason, done
	case err != nil:
		return SightRefuse, reason, done
	case resp.GetCompleted() != nil:
		return SightReplay, 0, done
	case resp.GetInProgress() != nil:
		return SightRefuse, dedupv1.Reason_REASON_IN_PROGRESS, done
	case resp.GetGranted() == nil:
		return SightNone, 0, done
	}
	fence := resp.GetGranted().GetFence()
	return SightRun, 0, func(end Ending) { e.watch.report(ctx, req, fence, end) }
}

// report sends how an observed call ended, in the background and once: a shadow
// record that stays unfinished harms nobody.
func (o *watcher) report(ctx context.Context, q *dedupv1.ReserveRequest, fence int64, end Ending) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	select {
	case o.onWay <- struct{}{}:
	default:
		return
	}
	o.wg.Add(1)
	go func() {
		defer o.wg.Done()
		defer func() { <-o.onWay }()
		try, cancel := trying(context.WithoutCancel(ctx), tryTime)
		defer cancel()
		if end.Outcome != nil {
			_, _ = o.dedup.Complete(try, &dedupv1.CompleteRequest{
				Identity: q.GetIdentity(), AttemptId: q.GetAttemptId(), Fence: fence, Outcome: withoutAnswer(end.Outcome),
			})
			return
		}
		effect := end.Effect
		if effect == dedupv1.Effect_EFFECT_UNSPECIFIED {
			effect = dedupv1.Effect_EFFECT_UNKNOWN
		}
		_, _ = o.dedup.Release(try, &dedupv1.ReleaseRequest{
			Identity: q.GetIdentity(), AttemptId: q.GetAttemptId(), Fence: fence, Effect: effect, Note: "observed only",
		})
	}()
}

func (o *watcher) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.wg.Wait()
}
