package guard

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	// Probes is how often the background reconciler asks about a record that a
	// call left unknown.
	Probes = 5

	probeBase   = 5 * time.Second // before the first look; four times as long before each next one
	probeFactor = 4
	probeCap    = 5 * time.Minute
	probeTime   = 2 * time.Hour // for all of them, waiting for dedupd included
	spentTime   = time.Hour     // for which it is remembered that no probe is left
	maxProbed   = 1000          // records at a time
	probeWidth  = 4             // looks at a time
)

// prober is the background reconciler: it asks again about records that a call
// of this process met and could not settle. One goroutine per record, at most
// maxProbed; all end with the engine.
type prober struct {
	e       *Engine
	backoff policy.Backoff
	looking chan struct{} // a place for each look at a time
	wg      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	probed map[string]probed
}

// probed is what is remembered of a record that is asked about.
type probed struct {
	until time.Time // zero while there are probes left; else when that is forgotten
	entry string    // the dead letter that was parked when none was left, in hexadecimal
}

func newProber(e *Engine) (*prober, error) {
	backoff, err := policy.NewBackoff(probeBase, probeCap, probeFactor)
	return &prober{e: e, backoff: backoff, looking: make(chan struct{}, probeWidth), probed: map[string]probed{}}, err
}

// met takes over a record that a look left unknown; floor is when asking again
// may help. left is false where no probe is left; entry is then the dead letter
// that waits instead, if there is one.
func (p *prober) met(ctx context.Context, w *work, floor time.Duration) (left bool, entry string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := string(w.recordID)
	now := time.Now()
	if was, known := p.probed[id]; known {
		if was.until.IsZero() {
			return true, ""
		}
		if now.Before(was.until) {
			return false, was.entry
		}
		delete(p.probed, id)
	}
	if len(p.probed) >= maxProbed {
		for id, was := range p.probed {
			if !was.until.IsZero() && !now.Before(was.until) {
				delete(p.probed, id)
			}
		}
	}
	if p.closed || len(p.probed) >= maxProbed {
		return true, "" // nobody asks in the background; the caller's own retry does
	}
	p.probed[id] = probed{}
	again := &work{e: w.e, call: w.call, identity: w.identity, recordID: w.recordID, probing: true}
	again.call.RefuseAtOnce, again.call.Wait = true, 0
	again.call.Replay = nil // its claim is over long before; the record is known by now
	p.wg.Add(1)
	go p.ask(context.WithoutCancel(ctx), again, floor)
	return true, ""
}

// ask probes one record until it is settled or no probe is left.
func (p *prober) ask(ctx context.Context, w *work, floor time.Duration) {
	spent, entry := false, ""
	defer func() {
		p.mu.Lock()
		delete(p.probed, string(w.recordID))
		if spent {
			p.probed[string(w.recordID)] = probed{until: time.Now().Add(spentTime), entry: entry}
		}
		p.mu.Unlock()
		p.wg.Done()
	}()
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	defer context.AfterFunc(p.e.life, cancel)() //nolint:contextcheck // a second end: the engine's
	for looks := 0; looks < Probes; {
		if !tries.Pause(ctx, max(floor, p.backoff.Wait(looks, 0, rand.Int64N))) {
			return
		}
		select {
		case p.looking <- struct{}{}:
		case <-ctx.Done():
			return
		}
		found := w.probe(ctx)
		<-p.looking
		if found.settled {
			return
		}
		if found.looked {
			looks++
		}
		floor = found.retry
	}
	spent = true
	count(p.e.observe.Unreconciled, w.call.Operation)
	entry = w.park(ctx, "the reconciler could not tell what became of it")
	p.e.log.LogAttrs(ctx, slog.LevelError, "the reconciler could not settle an unknown outcome; an operator must resolve the record",
		slog.String("operation", w.call.Operation), slog.String("record", ShortRecordID(w.recordID)), slog.Int("probes", Probes))
}

// finding is what a probe came to.
type finding struct {
	settled bool          // nothing is left to ask
	looked  bool          // the reconciler was asked
	retry   time.Duration // else: when asking again may help
}

// probe asks for the record and, where it is still unknown, its reconciler.
// Nothing is run: what did not happen is left for the next caller to do.
func (w *work) probe(ctx context.Context) finding {
	h, stored, err := w.reserve(ctx)
	switch {
	case stored != nil:
		return finding{settled: true}
	case h == nil:
		return w.unasked(err)
	}
	runCtx, stop := h.start(ctx)
	defer stop()
	if h.mode == dedupv1.Mode_MODE_RUN { // somebody settled it as not applied
		h.release(ctx, Ending{Effect: dedupv1.Effect_EFFECT_NONE, Note: "nothing to reconcile"})
		return finding{settled: true}
	}
	_, begun, err := h.reconcile(runCtx)
	if begun {
		h.release(ctx, Ending{Effect: dedupv1.Effect_EFFECT_NONE, Note: "found not applied"})
	}
	if begun || err == nil {
		count(w.e.observe.Reconciled, w.call.Operation)
		return finding{settled: true}
	}
	var refusal *RefusalError
	if errors.As(err, &refusal) {
		// Partial: held for an operator, asking again is of no use.
		held := refusal.Reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN && refusal.RetryAfter == 0
		return finding{settled: held, looked: true, retry: refusal.RetryAfter}
	}
	return finding{looked: true}
}

// unasked judges a probe that was not granted the record.
func (w *work) unasked(err error) finding {
	var refusal *RefusalError
	if !errors.As(err, &refusal) {
		return finding{}
	}
	// Every other refusal says that the record is no longer ours to settle.
	theirs := refusal.Reason != dedupv1.Reason_REASON_IN_PROGRESS && refusal.Reason != dedupv1.Reason_REASON_STORE_UNAVAILABLE
	return finding{settled: theirs, retry: refusal.RetryAfter}
}

// chase asks again, in the background and under the same attempt id, what a
// Reserve of a replay was answered that ended unread, and gives a grant back:
// else one that nobody knows of would leave the key in doubt. It goes on until
// such a grant has lapsed.
func (p *prober) chase(ctx context.Context, w *work, attemptID []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	again := &work{e: w.e, call: w.call, identity: w.identity, recordID: w.recordID, probing: true}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.call.Lease)
		defer cancel()
		defer context.AfterFunc(p.e.life, cancel)() //nolint:contextcheck // a second end: the engine's
		for n := 0; p.e.pause(ctx, n); n++ {
			try, stop := trying(ctx, tryTime)
			sent := time.Now()
			resp, err := p.e.dedup.Reserve(try, again.reserveRequest(attemptID, 0))
			stop()
			switch {
			case err == nil:
				if h := again.granted(resp.GetGranted(), attemptID, sent); h != nil && again.replays(resp) {
					h.giveBack(ctx)
				}
				return
			case answered(err):
				return
			}
		}
	}()
}

// close waits for the probes to end, for up to d; the engine's life is over.
func (p *prober) close(ctx context.Context, d time.Duration) {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() { // it ends with the last probe
		defer close(ended)
		p.wg.Wait()
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		p.e.log.LogAttrs(ctx, slog.LevelError, "a reconciler does not stop although its context has ended")
	}
}
