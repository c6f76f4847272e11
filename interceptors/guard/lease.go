package guard

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
)

// hold is a grant in this process's hands.
type hold struct {
	*work
	attemptID []byte
	fence     int64
	mode      dedupv1.Mode // RUN from BeginRun on
	grant     *dedupv1.Granted
	since     time.Time // when the grant was asked for
	skew      time.Duration
	ran       atomic.Bool                     // the run has ended: losing the lease harms nothing
	handed    atomic.Bool                     // over to another process: how the run ends settles nothing
	told      sync.Once                       // that the lease was lost, however many find it so
	kept      atomic.Pointer[dedupv1.Outcome] // by the effect's own resource

	mu sync.Mutex
	// end of the lease, never later than the store's own idea of it: what an
	// answer says is left is counted from when its request was sent, by the
	// monotonic clock.
	end time.Time
}

// granted takes a grant into our hands; nil for one that this build cannot read.
func (w *work) granted(g *dedupv1.Granted, attemptID []byte, sent time.Time) *hold {
	if g.GetFence() <= 0 || g.GetMode() != dedupv1.Mode_MODE_RUN && g.GetMode() != dedupv1.Mode_MODE_RECONCILE {
		return nil
	}
	h := &hold{
		work: w, attemptID: attemptID, fence: g.GetFence(), mode: g.GetMode(), grant: g, since: sent,
		skew: g.GetSkew().AsDuration(),
	}
	h.renew(sent, g.GetLeaseLeft())
	return h
}

func (h *hold) attempt() Attempt {
	return Attempt{
		RecordID: h.recordID, Fence: h.fence, EarlierGrants: h.grant.GetEarlierGrants(),
		LastRunEnded: h.grant.GetLastRunEndedAge().AsDuration(), MaxOutcomeBytes: h.grant.GetMaxOutcomeBytes(),
		Fingerprints: h.call.Fingerprints,
	}
}

// margin is how long before the lease's end the work stops.
func (h *hold) margin() time.Duration { return h.skew + h.call.Lease/10 }

func (h *hold) renew(sent time.Time, left *durationpb.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if end := sent.Add(left.AsDuration()); end.After(h.end) {
		h.end = end
	}
}

func (h *hold) leaseEnd() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// stopBy is when the work must have stopped unless the lease is extended.
func (h *hold) stopBy() time.Time { return h.leaseEnd().Add(-h.margin()) }

// fits reports whether enough of the lease is left to run. A grant that was
// waited for looks older from here than it is; extending it tells.
func (h *hold) fits(ctx context.Context) bool {
	if time.Now().Before(h.stopBy()) {
		return true
	}
	if h.grant.GetLeaseLeft().AsDuration() <= h.margin() {
		return false
	}
	return h.extend(ctx, h.call.Lease/3) == nil && time.Now().Before(h.stopBy())
}

func (h *hold) extend(ctx context.Context, timeout time.Duration) error {
	try, cancel := trying(ctx, timeout)
	defer cancel()
	return h.extendBy(try, h.call.Lease)
}

// extendBy asks once for a lease that lasts so long from now.
func (h *hold) extendBy(ctx context.Context, lease time.Duration) error {
	sent := time.Now()
	resp, err := h.e.dedup.Extend(ctx, &dedupv1.ExtendRequest{
		Identity: h.identity, AttemptId: h.attemptID, Fence: h.fence, Lease: durationpb.New(lease),
	})
	if err == nil {
		h.renew(sent, resp.GetLeaseLeft())
	}
	return err
}

// start makes the context of the run and begins to keep the lease. stop ends
// both and waits for the keeper.
func (h *hold) start(caller context.Context) (ctx context.Context, stop func()) {
	r := &run{hold: h}
	r.callerDeadline, _ = caller.Deadline()
	ctx = context.WithValue(context.WithoutCancel(caller), runKey{}, r)
	ctx, endRun := context.WithTimeoutCause(ctx, h.call.MaxRun, ErrMaxRun)
	ctx, endWithCaller := h.follow(ctx, caller)
	ctx, lose := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(h.e.life, func() { lose(ErrClosed) })
	keeping, stopKeeping := context.WithCancel(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		h.keep(keeping, lose)
	}()
	return &leased{Context: ctx, hold: h, lose: lose}, func() {
		unhook()
		stopKeeping()
		<-kept
		lose(context.Canceled)
		endWithCaller()
		endRun()
	}
}

// follow makes a run's context end with its caller's, where the call wants that.
func (h *hold) follow(ctx, caller context.Context) (context.Context, context.CancelFunc) {
	if !h.call.CallerCancels {
		return ctx, func() {}
	}
	return tries.Within(ctx, caller)
}

// keep extends the lease every third of it, and ends the run by the margin
// before a lease that cannot be extended. It stops when the run has had its
// time, so that a handler that ignores its context does not hold the key for
// ever.
func (h *hold) keep(ctx context.Context, lose context.CancelCauseFunc) {
	lease := h.call.Lease
	notBefore := time.Now()
	for {
		next := h.leaseEnd().Add(-lease * 2 / 3)
		if next.Before(notBefore) {
			next = notBefore
		}
		if stop := h.stopBy(); stop.Before(next) {
			next = stop
		}
		if !tries.Pause(ctx, time.Until(next)) {
			return
		}
		left := time.Until(h.stopBy())
		if left <= 0 {
			h.lost(ctx, lose)
			return
		}
		err := h.extend(ctx, min(lease/6, left))
		if ctx.Err() != nil {
			return
		}
		if reason, _ := reasonOf(err); reason == dedupv1.Reason_REASON_STALE_HOLDER {
			h.lost(ctx, lose)
			return
		}
		notBefore = time.Now().Add(lease / 20)
	}
}

func (h *hold) lost(ctx context.Context, lose context.CancelCauseFunc) {
	if h.ran.Load() {
		return
	}
	lose(ErrLeaseLost)
	h.told.Do(func() {
		count(h.e.observe.LeaseLost, h.call.Operation)
		h.e.log.LogAttrs(ctx, slog.LevelError, "the lease could not be extended; the run was told to stop",
			slog.String("operation", h.call.Operation), slog.String("record", ShortRecordID(h.recordID)))
	})
}

// leased is the context of a run. After a pause of the process the timer that
// ends it may come later than the run's own next look, so that look judges the
// time itself.
type leased struct {
	context.Context //nolint:containedctx // it is a context
	hold            *hold
	lose            context.CancelCauseFunc
}

// Err ends the context, with all that derive from it, when the lease has gone too
// far to go on.
func (c *leased) Err() error {
	if c.Context.Err() == nil && !time.Now().Before(c.hold.stopBy()) {
		c.hold.lost(c.Context, c.lose)
	}
	return c.Context.Err()
}
