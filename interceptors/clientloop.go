package interceptors

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/dedupd/dedupd/interceptors/internal/ending"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// loop tries until there is an answer or no sense in going on. Where it is not
// ok, last is the last server's error, nil before the first answer.
func (c *clientCall) loop(ctx context.Context) (ok bool, last error) {
	return tries.Loop{
		Try: func(ctx context.Context) (policy.Answer, error) {
			answer, err := c.try(ctx)
			c.retry = answer.Retry // of the last try: whether the call may be parked
			return answer, err
		},
		Next:   c.next,
		Permit: c.permit,
		Retrying: func(ctx context.Context, answer policy.Answer, err error) {
			c.client.observe.retry(ctx, c.method, answer, err)
		},
	}.Run(ctx)
}

// permit asks the connection's budget for a retry.
func (c *clientCall) permit(ctx context.Context) (release func(), ok bool) {
	if c.conn.budget == nil {
		return func() {}, true
	}
	release, ok = c.conn.budget.TryRetry()
	if !ok {
		c.client.observe.budgetSpent(ctx, c.method)
	}
	return release, ok
}

// try sends the call once, unless its breaker holds it back, and says what its
// end means.
func (c *clientCall) try(ctx context.Context) (policy.Answer, error) {
	permit, err := c.conn.allow(c.method)
	if err != nil {
		c.held++
		c.client.observe.held(ctx, c.method)
		answer := c.table.Classify(policy.Try{Err: err, Sent: policy.SentNothing, CallerDone: ctx.Err() != nil})
		c.note(err, answer, nil)
		return answer, err
	}
	defer permit.Done(policy.Neutral) // a panic says nothing about the server
	c.attempts++
	c.client.observe.attempt(ctx, c.method, c.attempts)
	if c.policy.guarded != nil {
		answer, err := c.guardedTry(ctx, &permit)
		c.tried(err)
		return answer, err
	}
	ended, trailer := c.sendOnce(ctx)
	ended.CallerDone = ctx.Err() != nil
	permit.Done(policy.VerdictOf(ended))
	answer := c.table.Classify(ended)
	if values := trailer[TrailerReplayed]; len(values) == 1 {
		c.replayed = true
		if ended.Err != nil {
			// The stored answer: it is the same however often it is asked for.
			answer.Retry, answer.Effect = policy.Permanent, policy.EffectNone
		}
	}
	if values := trailer[TrailerTrace]; len(values) == 1 {
		c.trace = values[0]
	}
	c.note(ended.Err, answer, trailer)
	if ended.Err == nil {
		c.look(ctx, trailer)
	}
	c.tried(ended.Err)
	return answer, ended.Err
}

// sendOnce sends a try with its headers, within its own deadlines.
func (c *clientCall) sendOnce(ctx context.Context) (policy.Try, metadata.MD) {
	try := c.header(ctx)
	if c.perTry > 0 {
		cut, cancel := context.WithTimeout(try, c.perTry)
		defer cancel()
		try = cut
	}
	try, stop := withinLease(try, ctx)
	defer stop()
	ended, trailer := c.invoke(try)
	if !c.keyed && !c.protected() {
		return ended, nil // sent once, whatever its trailer says
	}
	ended.Pushback = trailer["grpc-retry-pushback-ms"]
	return ended, trailer
}

// invoke sends a try through what stands between it and the wire, if anything.
func (c *clientCall) invoke(ctx context.Context) (policy.Try, metadata.MD) {
	if len(c.client.perTry) > 0 {
		c.sends = &sends{classify: c.classify}
		err := c.invoker(ctx, c.method, c.req, c.reply, c.cc, append(c.opts[:len(c.opts):len(c.opts)], c.sends)...)
		sent, trailer := c.sends.end()
		return policy.Try{Err: err, Sent: sent}, trailer
	}
	c.out = sending{}
	opts := c.out.options(c.opts)
	var trailer metadata.MD
	if c.keyed || c.protected() {
		opts = append(opts, grpc.Trailer(&trailer))
	}
	err := c.invoker(ctx, c.method, c.req, c.reply, c.cc, opts...)
	return policy.Try{Err: err, Sent: c.out.sent(err, c.req, c.opts)}, trailer
}

// classify says what a try's end means: of a guarded call's refusals only what
// its callee means by them.
func (c *clientCall) classify(t policy.Try) policy.Answer {
	answer := c.table.Classify(t)
	g := c.policy.guarded
	if g == nil || g.RefusalsApplyNothing || t.Sent == policy.SentNothing || t.Sent == policy.SentHeader {
		return answer
	}
	switch policy.StatusOf(t.Err).Code() { //nolint:exhaustive // the codes that not every callee means
	case codes.Aborted, codes.ResourceExhausted:
		answer.Effect = max(answer.Effect, policy.EffectUnknown)
	}
	return answer
}

// note keeps what the tries so far may have left behind.
func (c *clientCall) note(err error, answer policy.Answer, trailer metadata.MD) {
	record := trailer[TrailerRecord]
	if len(record) == 1 {
		c.recordID, c.known = record[0], true
	}
	// Of a run without protection the record that is named knows nothing.
	c.unprotected = c.unprotected || len(trailer[TrailerUnprotected]) > 0
	recorded := c.keyed && len(record) == 1 && !c.unprotected
	c.acknowledged = (c.acknowledged || recorded) && !c.unprotected
	left, underWay := c.sends.left()
	effect, repeatable := answer.Effect, false
	if recorded && err != nil {
		effect, repeatable = ending.Told(trailer[TrailerEffect], effect)
	}
	c.bound = c.bound || repeatable
	if _, refused := ReasonOf(err); recorded && err != nil && !refused && left != policy.EffectApplied && !underWay {
		// The key's record was granted to this try: whatever earlier ones left open
		// is settled, and this one's handler says what it left itself.
		switch {
		case repeatable, effect == policy.EffectNone && c.bound:
			c.effect, c.lost = policy.EffectUnknown, false
			return
		case effect == policy.EffectNone:
			c.effect, c.lost = policy.EffectNone, false
			return
		}
	}
	c.effect = max(c.effect, effect, left)
	c.lost = c.lost || c.effect == policy.EffectUnknown
}

// look keeps in mind whether the server of an answer looks at keys: a key that it
// does not look at protects no call.
func (c *clientCall) look(ctx context.Context, trailer metadata.MD) {
	if !c.keyed || c.policy.guarded != nil || c.policy.bare || len(trailer[TrailerRecord]) > 0 || !c.seen() {
		return
	}
	c.conn.ignored.Store(c.method, time.Now())
	c.client.observe.ignored(ctx, c.method)
}

// seen reports whether gRPC itself told of the try's answer, and not an interceptor
// further in that made one.
func (c *clientCall) seen() bool {
	if c.sends != nil {
		return c.sends.wasAnswered()
	}
	return c.out.ended
}

// next says whether and when to go on. Waiting for somebody else's run uses up
// no attempt; being held back by the breaker does.
func (c *clientCall) next(answer policy.Answer) (time.Duration, bool) {
	if answer.Retry == policy.Wait {
		c.waits++
	}
	return tries.Next(answer, c.protected(), c.attempts+c.held-c.waits, c.maxAttempts, c.backoff)
}
