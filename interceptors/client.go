package interceptors

import (
	"context"
	"crypto/sha256"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ClientOptions returns what makes a client's unary calls carry keys and be
// tried again where that is safe: grpc.NewClient(target, options...). The chain
// is PerCall... → keys and retries → PerTry... → wire. gRPC's own configured
// retries are turned off on the connection, so that layers do not multiply.
// Streaming calls pass untouched. It returns every fault of the options at once.
//
// A call is tried again only if it carries a key that its server looks at, or its
// method is declared idempotency_level = NO_SIDE_EFFECTS or IDEMPOTENT, or listed
// by WithSafeToRetry; every other call is sent exactly once, whatever happens. A
// method whose proto option says KEY_RULE_OFF or KEY_RULE_OBSERVE runs every call:
// a key does not protect it, unless WithDeduplicated, WithKeyFields or WithGuarded
// name the method.
func ClientOptions(opts ...ClientOption) ([]grpc.DialOption, error) {
	c, err := newClientConfig(opts)
	if err != nil {
		return nil, err
	}
	cl := &client{clientConfig: c, conns: newConns(c)}
	chain := make([]grpc.UnaryClientInterceptor, 0, len(c.perCall)+len(c.perTry)+3)
	if len(c.perCall) > 0 {
		chain = append(chain, cl.pin)
	}
	chain = append(append(append(chain, c.perCall...), cl.unary), c.perTry...)
	if len(c.perTry) > 0 {
		chain = append(chain, watch)
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(chain...),
		grpc.WithChainStreamInterceptor(cl.stream),
		grpc.WithDisableRetry(),
	}, nil
}

type client struct {
	*clientConfig
	conns   *conns
	methods methods
}

// unary sends one call, as often as it takes and is safe.
func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	m, shared := c.policyOf(method), c.conns.of(cc)
	if shared.budget != nil {
		shared.budget.Begin()
		defer shared.budget.End()
	}
	if c.plain(ctx, m, opts) {
		return c.sendPlain(ctx, method, m, shared, req, reply, cc, invoker, opts)
	}
	call := &clientCall{
		client: c, callConfig: &c.callConfig, method: method, policy: m, conn: shared,
		req: req, reply: reply, cc: cc, invoker: invoker, opts: opts,
	}
	return call.do(ctx)
}

// do sends a call that there is more to than sending it.
func (c *clientCall) do(ctx context.Context) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	total := ctx
	if _, ok := ctx.Deadline(); !ok && c.protected() {
		within, cancel := context.WithTimeout(ctx, c.total)
		defer cancel()
		total = within
	}
	ok, err := c.loop(total)
	if !ok {
		if settled, answer := c.settle(total); settled {
			err = answer
		} else {
			err = c.end(total, err, c.park(total, err))
		}
	}
	c.markRun(ctx, err)
	if c.automatic && c.pin == nil && err != nil {
		guard.ReuseCallNumber(ctx, c.named, c.number)
	}
	c.report(ctx, err)
	return err
}

// stream lets a streaming call pass; only a guarded run is told of it, and under
// BOUNDED it ends with the lease as far as that is known now.
func (c *client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.observe.Stream != nil {
		c.observe.Stream(ctx, method)
	}
	if guard.RecordIDFrom(ctx) != nil && c.policyOf(method).level != readOnly {
		guard.Mark(ctx, guard.LeftApplied)
	}
	bounded, cancel := withinLease(ctx, ctx)
	context.AfterFunc(ctx, cancel) // nobody tells when a stream is over; the run's end is late enough
	return streamer(bounded, desc, cc, method, opts...)
}

// withinLease returns ctx, which also ends with the lease of run, as far as that is
// known now, where it rests on BOUNDED: nothing that it sends may land later.
func withinLease(ctx, run context.Context) (context.Context, context.CancelFunc) {
	if end, ok := guard.LeaseEnd(run); ok {
		return context.WithDeadline(ctx, end)
	}
	return ctx, func() {}
}

// clientCall is one call on its way.
type clientCall struct {
	*callConfig // the connection's, unless the call has options of its own
	client      *client
	key         *string // nil: it goes without
	out         sending // of the last try
	sends       *sends  // of it; nil: nothing stands between it and the wire
	method      string
	policy      *clientMethod
	fp          *dedupv1.Fingerprint // nil: no key, or no message
	keyed       bool
	automatic   bool              // the key is one that nobody asked for
	named       [sha256.Size]byte // if so: the hash of the call's method and request
	number      uint64            // and which of the run's calls with that hash it is
	pin         *pin              // what it has in common with the same call's other tries; nil: nothing
	known       bool              // the callee is known to deduplicate
	run         []byte            // the record id of the run that makes the call; nil: none does
	conn        *conn

	req, reply any
	cc         *grpc.ClientConn
	invoker    grpc.UnaryInvoker
	opts       []grpc.CallOption

	attempts int           // tries that were sent
	held     int           // tries that the breaker held back
	waits    int           // tries that found somebody else at work
	effect   policy.Effect // the worst of the tries that is still open
	recordID string
	replayed bool
	// acknowledged: the callee named the record of this call's key.
	acknowledged bool
	unprotected  bool // it ran without protection, at least once

	retry  policy.Retry           // of the last try
	trace  string                 // of the run that a replayed answer goes back to
	tries  []*dedupv1.CallAttempt // the last ones, of a call that may be parked
	replay *dedupv1.ReplayClaim   // of a call that replays a dead letter; nil: it does not
}

// begin chooses the key, once: before the first attempt.
func (c *clientCall) begin(ctx context.Context) error {
	c.known = c.policy.declared
	c.run = guard.RecordIDFrom(ctx)
	md, _ := metadata.FromOutgoingContext(ctx)
	var err error
	if c.replay, err = replayOf(md[HeaderReplay]); err != nil {
		return err
	}
	if err := c.applyOptions(); err != nil {
		return err
	}
	c.key = c.callConfig.key
	if err := c.chooseKey(ctx, md); err != nil {
		return err
	}
	if c.key == nil {
		return nil
	}
	if err := validateKey(*c.key); err != nil {
		return err
	}
	c.keyed = true
	return c.takeFingerprint()
}

// applyOptions applies what the call sets for itself.
func (c *clientCall) applyOptions() error {
	shared := c.callConfig
	for _, o := range c.opts {
		mine, ok := o.(callOption)
		if !ok {
			continue
		}
		if c.callConfig == shared {
			own := *shared
			c.callConfig = &own
		}
		if err := mine.fn(c.callConfig); err != nil {
			return inputInvalid(err)
		}
	}
	return nil
}

// protected reports whether sending the call again cannot do harm. A key that
// nobody asked for protects only where the callee is known to look at it, and none
// does where the callee runs every call.
func (c *clientCall) protected() bool {
	return c.keyed && !c.policy.bare && (!c.automatic || c.known) || c.policy.level != unsafe
}

// header returns ctx with what a try carries, on a copy of the caller's metadata.
func (c *clientCall) header(ctx context.Context) context.Context {
	if c.policy.guarded != nil {
		return c.providerHeader(ctx)
	}
	if !c.keyed {
		return ctx
	}
	ctx = setOutgoingKey(ctx, *c.key)
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	md.Set(HeaderAttempt, strconv.Itoa(c.attempts))
	if c.fp != nil {
		md.Set(HeaderFingerprint, wireFingerprint(c.fp))
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// markRun tells a guarded run that this call was made from what it may have left
// behind.
func (c *clientCall) markRun(ctx context.Context, err error) {
	if c.run != nil && c.policy.level != readOnly {
		guard.MarkCall(ctx, err != nil, c.effect, c.keyed && keying.IsChild(*c.key) && c.acknowledged)
	}
}
