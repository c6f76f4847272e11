package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
)

var (
	errNoKey    = errors.New("the message has no id, and the consumer makes no key of it; give it one at its publisher")
	errNoResult = errors.New("the handler's result cannot be encoded")
)

// Applied says, of a message whose earlier run ended in the dark, that its effect
// happened. Where HandleResult handles it, give its result instead:
// interceptors.VerdictApplied.
func Applied() interceptors.Verdict { return interceptors.VerdictApplied(&emptypb.Empty{}) }

// Handle decides on one delivery of a message; fn handles it, and runs at most
// once at a time for its key, on a context that carries ctx's values but does not
// end with ctx (see package guard): a consumer that is stopping lets it finish.
// When ctx ends before fn has begun, the decision is Nack.
//
// What fn's error means is told by Config.Errors and the marks of package
// interceptors. A panic of fn leaves its outcome unknown, on record, and goes on.
func (c *Consumer) Handle(ctx context.Context, m Message, fn func(ctx context.Context) error) Decision {
	return c.settle(ctx, m, &delivery{run: func(ctx context.Context) (proto.Message, error) { return nil, fn(ctx) }})
}

// HandleResult is Handle for a handler with a result that somebody goes on with,
// such as messages to publish: Decision.Result is the result of the first run for
// every delivery that is decided as Ack. It is stored with the record, up to
// 1 MiB; of a message whose result was not stored later deliveries are dead
// letters.
func (c *Consumer) HandleResult(ctx context.Context, m Message, fn func(ctx context.Context) (proto.Message, error)) Decision {
	return c.settle(ctx, m, &delivery{run: fn, result: true})
}

// HandleBatch decides on a message that carries many items (Message.Item), each
// handled under its own key, in their order: an item that was handled before is
// not handled again because another one failed. One that fails does not keep the
// later ones from being handled; dead letters are parked item by item.
//
// The carrier is acknowledged once every item is settled: handled or parked. Else
// it is delivered again after the longest delay of its items. items tells the
// decision on each; after dedupd could not be reached, or ctx has ended, the rest
// is not tried.
func (c *Consumer) HandleBatch(ctx context.Context, carrier Message, items []Message, fn func(ctx context.Context, item Message) error) (whole Decision, decided []Decision) {
	defer c.keepAlive(ctx, carrier)()
	whole = Decision{Action: Ack}
	for _, item := range items {
		item.KeepAlive = nil // the carrier is kept alive
		d := c.Handle(ctx, item, func(ctx context.Context) error { return fn(ctx, item) })
		decided = append(decided, d)
		if d.Action == Nack {
			whole = Decision{Action: Nack, Delay: max(whole.Delay, d.Delay), Err: d.Err}
		}
		if d.away {
			break
		}
	}
	return whole, decided
}

// delivery is one delivery on its way through the engine.
type delivery struct {
	run    func(ctx context.Context) (proto.Message, error)
	result bool // somebody goes on with the result

	runs      int64 // that the key was granted, this one included; 0: not granted
	exhausted bool  // granted, but it had had its runs
	answer    proto.Message
	err       error
	ending    guard.Ending
}

// settle decides, and parks what is a dead letter.
func (c *Consumer) settle(ctx context.Context, m Message, v *delivery) Decision {
	defer c.keepAlive(ctx, m)()
	n, err := c.namesOf(m)
	var d Decision
	if err != nil {
		d = dead(CauseRefused, err)
	} else {
		d = c.decide(ctx, m, n, v)
	}
	if d.Cause == CauseRefused {
		n = nameless(m)
	}
	d.Runs = v.runs
	if d.Action == DeadLetter {
		d = c.park(ctx, Letter{Identity: c.identity(n), Fingerprint: n.fingerprint, Message: m}, d)
	}
	if c.cfg.Observer.Decided != nil {
		c.cfg.Observer.Decided(c.cfg.Operation, d)
	}
	return d
}

func (c *Consumer) decide(ctx context.Context, m Message, n names, v *delivery) Decision {
	call := guard.Call{
		Operation: c.cfg.Operation, Caller: []byte(n.caller), Key: []byte(n.key),
		Fingerprints: []*dedupv1.Fingerprint{n.fingerprint},
		Lease:        c.cfg.Lease, MaxRun: c.cfg.MaxRun, Wait: c.cfg.MaxWait, Retention: c.cfg.Retention,
		RerunSafe: c.cfg.RerunSafe, Basis: c.cfg.Basis,
		// An outcome that dedupd has not acknowledged is never taken for settled.
		SharedWithRerun: true,
	}
	if c.cfg.Inbox != nil {
		call.Reconciler, call.Basis = c.cfg.Inbox, interceptors.Inbox
	}
	if c.cfg.Reconciler != nil {
		call.Reconciler = interceptors.GuardReconciler(func(ctx context.Context, a interceptors.Attempt) (interceptors.Verdict, error) {
			return c.cfg.Reconciler(ctx, a, m)
		})
	}
	res, err := c.engine.Do(ctx, call, func(ctx context.Context, a guard.Attempt) guard.Ending {
		return c.handle(ctx, a, v)
	})
	switch {
	case err != nil:
		return c.refused(m, err)
	case res.HandedOver:
		// It goes on elsewhere: deliveries wait for its end, as for any other run.
		return Decision{Action: Nack, Delay: c.wait(1, 0), Err: guard.ErrHandedOver}
	case res.Stored != nil:
		return v.stored(c.cfg.Operation, res)
	case v.exhausted:
		return dead(CauseExhausted, errExhausted)
	}
	return c.ended(m, v, res.RecordID)
}

// handle is the handler as the engine runs it.
func (c *Consumer) handle(ctx context.Context, a guard.Attempt, v *delivery) guard.Ending {
	v.runs = a.EarlierGrants
	if v.runs >= int64(c.cfg.MaxRuns) {
		v.exhausted = true
		return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE, Note: "not run: the message has had its runs"}
	}
	v.runs++
	v.answer, v.err = v.run(ctx)
	v.ending = interceptors.RunEnding(ctx, v.answer, v.err, a, *c.cfg.Errors, interceptors.DefaultErrorHold)
	if v.err == nil && v.ending.Outcome == nil {
		v.err = errNoResult
	}
	return v.ending
}

// keepAlive keeps a message alive until the function that it returns has been
// called.
func (c *Consumer) keepAlive(ctx context.Context, m Message) (stop func()) {
	if m.KeepAlive == nil || m.KeepAliveEvery <= 0 {
		return func() {}
	}
	// The handler does not end with ctx, so neither does this.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		every := time.NewTicker(m.KeepAliveEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			try, done := context.WithTimeout(ctx, m.KeepAliveEvery)
			if err := m.KeepAlive(try); err != nil && ctx.Err() == nil {
				c.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "a message could not be kept alive; it may be delivered again, which is harmless",
					slog.String("operation", c.cfg.Operation))
			}
			done()
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
