package interceptors

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// least is the shortest time in which a try could end.
const least = time.Millisecond

// ClientOptions returns what makes a client's unary calls carry keys and be
// tried again where that is safe: grpc.NewClient(target, options...). The chain
// is PerCall... → keys and retries → PerTry... → wire. gRPC's own configured
// retries are turned off on the connection, so that layers do not multiply.
// Streaming calls pass untouched. It returns every fault of the options at once.
//
// A call is tried again only if it carries a key, or its method is declared
// idempotency_level = NO_SIDE_EFFECTS or IDEMPOTENT, or listed by
// WithSafeToRetry; every other call is sent exactly once, whatever happens.
func ClientOptions(opts ...ClientOption) ([]grpc.DialOption, error) {
	c, err := newClientConfig(opts)
	if err != nil {
		return nil, err
	}
	cl := &client{clientConfig: c}
	chain := append(append([]grpc.UnaryClientInterceptor{}, c.perCall...), cl.unary)
	chain = append(chain, c.perTry...)
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(chain...),
		grpc.WithStatsHandler(sentWatcher{}),
		grpc.WithDisableRetry(),
	}, nil
}

type client struct{ *clientConfig }

// unary sends one call, as often as it takes and is safe.
func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	call, err := c.begin(ctx, method, req, opts)
	if err != nil {
		return err
	}
	total, cancel := ctx, context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		total, cancel = context.WithTimeout(ctx, call.total)
	}
	defer cancel()
	err = call.loop(total, func(ctx context.Context, trailer *metadata.MD) error {
		return invoker(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Trailer(trailer))...)
	})
	call.markRun(ctx, err)
	return err
}

// clientCall is one call on its way.
type clientCall struct {
	callConfig
	policy      clientMethod
	fingerprint string
	keyed       bool

	attempts int
	waits    int
	effect   policy.Effect // the worst of the tries that is still open
	recordID string
}

// begin chooses the key, once: before the first attempt.
func (c *client) begin(ctx context.Context, method string, req any, opts []grpc.CallOption) (*clientCall, error) {
	call := &clientCall{callConfig: c.callConfig, policy: c.policyOf(method)}
	for _, o := range opts {
		if mine, ok := o.(callOption); ok {
			if err := mine.fn(&call.callConfig); err != nil {
				return nil, inputInvalid(err)
			}
		}
	}
	key, keyed, err := outgoingKey(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case call.key != nil && keyed && *call.key != key:
		return nil, keyInvalid("the call has two keys, one by option and one in its metadata; give one")
	case call.key == nil && keyed:
		call.key = &key
	case call.key == nil && (call.fresh || call.policy.deduplicated):
		fresh := freshKey(time.Now())
		call.key = &fresh
	}
	if call.key == nil {
		return call, nil
	}
	if err := validateKey(*call.key); err != nil {
		return nil, err
	}
	call.keyed = true
	if m, ok := req.(proto.Message); ok {
		fp, err := Fingerprint(call.policy.operation, m)
		if err != nil {
			return nil, inputInvalid(err)
		}
		call.fingerprint = wireFingerprint(fp)
	}
	return call, nil
}

// loop tries until there is an answer or no sense in going on.
func (c *clientCall) loop(ctx context.Context, send func(context.Context, *metadata.MD) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return c.end(ctx, nil)
		}
		var trailer metadata.MD
		answer, err := c.try(ctx, send, &trailer)
		if err == nil {
			return nil
		}
		wait, again := c.next(answer)
		if deadline, ok := ctx.Deadline(); again && ok && time.Until(deadline) < wait+least {
			again = false
		}
		if !again {
			return c.end(ctx, err)
		}
		if !sleep(ctx, wait) {
			return c.end(ctx, err)
		}
	}
}

// try sends the call once and says what its end means.
func (c *clientCall) try(ctx context.Context, send func(context.Context, *metadata.MD) error, trailer *metadata.MD) (policy.Answer, error) {
	c.attempts++
	try := c.header(ctx)
	cancel := context.CancelFunc(func() {})
	if c.perTry > 0 {
		try, cancel = context.WithTimeout(try, c.perTry)
	}
	defer cancel()
	if end, ok := guard.LeaseEnd(ctx); ok {
		// The run that sends this rests on BOUNDED: nothing of it may land after
		// its lease, as far as that is known now.
		bounded, stop := context.WithDeadline(try, end)
		defer stop()
		try = bounded
	}
	sent := new(sentMark)
	err := send(context.WithValue(try, sentKey{}, sent), trailer)
	answer := c.table.Classify(policy.Try{
		Err: err, Sent: sent.get(), CallerDone: ctx.Err() != nil, Pushback: (*trailer)["grpc-retry-pushback-ms"],
	})
	if replayed := (*trailer)[TrailerReplayed]; len(replayed) == 1 && err != nil {
		// The stored answer: it is the same however often it is asked for.
		answer.Retry, answer.Effect = policy.Permanent, policy.EffectNone
	}
	c.note(err, answer, *trailer)
	return answer, err
}

// note keeps what the tries so far may have left behind.
func (c *clientCall) note(err error, answer policy.Answer, trailer metadata.MD) {
	record := trailer[TrailerRecord]
	if len(record) == 1 {
		c.recordID = record[0]
	}
	_, refused := ReasonOf(err)
	if c.keyed && len(record) == 1 && !refused && err != nil && answer.Effect == policy.EffectNone {
		// The key's record was granted to this try, and its handler says that
		// nothing was applied: so did no earlier one.
		c.effect = policy.EffectNone
		return
	}
	c.effect = max(c.effect, answer.Effect)
}

// next says whether and when to go on. Waiting for somebody else's run uses up
// no attempt.
func (c *clientCall) next(answer policy.Answer) (time.Duration, bool) {
	switch answer.Retry {
	case policy.Wait:
		if !c.protected() {
			return 0, false
		}
		c.waits++
		return c.backoff.Wait(0, answer.Hint, rand.Int64N), true
	case policy.Transient:
		tries := c.attempts - c.waits
		if !c.protected() || tries >= c.maxAttempts {
			return 0, false
		}
		return c.backoff.Wait(tries-1, answer.Hint, rand.Int64N), true
	case policy.AsTable, policy.Permanent, policy.Stop:
	}
	return 0, false
}

// protected reports whether sending the call again cannot do harm.
func (c *clientCall) protected() bool {
	return c.keyed || c.safe || c.policy.level != unsafe
}

// header returns ctx with what a try carries, on a copy of the caller's metadata.
func (c *clientCall) header(ctx context.Context) context.Context {
	if !c.keyed {
		return ctx
	}
	ctx = setOutgoingKey(ctx, *c.key)
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	md.Set(HeaderAttempt, strconv.Itoa(c.attempts))
	if c.fingerprint != "" {
		md.Set(HeaderFingerprint, c.fingerprint)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// markRun tells a guarded run that this call was made from what it may have left
// behind. A call under a key counts too: a run that is run again might choose
// another key.
func (c *clientCall) markRun(ctx context.Context, err error) {
	switch {
	case c.policy.level == readOnly:
	case err == nil || c.effect == policy.EffectApplied:
		guard.Mark(ctx, guard.LeftApplied)
	case c.effect == policy.EffectUnknown:
		guard.Mark(ctx, guard.LeftUnknown)
	}
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
