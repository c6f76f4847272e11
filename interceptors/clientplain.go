package interceptors

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// plain reports whether there is no more to a call than to send it once: it has no
// key and gets none, and is not safe to send again. Most calls of most clients are
// such calls, so they should cost next to nothing.
func (c *client) plain(ctx context.Context, m *clientMethod, opts []grpc.CallOption) bool {
	if !m.plain || len(c.perTry) > 0 || c.callConfig.perTry > 0 || ctx.Err() != nil {
		return false
	}
	for _, o := range opts {
		if _, ours := o.(callOption); ours {
			return false
		}
	}
	if guard.RecordIDFrom(ctx) != nil {
		return false
	}
	md, some := metadata.FromOutgoingContext(ctx)
	return !some || len(md[HeaderKey])+len(md[HeaderKeyBin])+len(md[HeaderReplay]) == 0
}

// sendPlain sends a plain call.
func (c *client) sendPlain(ctx context.Context, method string, m *clientMethod, shared *conn, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts []grpc.CallOption) error {
	permit, err := shared.allow(method)
	if err != nil {
		c.observe.held(ctx, method)
		return c.plainError(ctx, method, m, policy.Try{Err: err, Sent: policy.SentNothing}, 0)
	}
	defer permit.Done(policy.Neutral) // a panic says nothing about the server
	c.observe.attempt(ctx, method, 1)
	out := &sending{}
	if err = invoker(ctx, method, req, reply, cc, out.options(opts)...); err == nil {
		permit.Done(policy.Well)
		if c.observe.Ended != nil {
			c.observe.Ended(ctx, method, CallEnd{Attempts: 1})
		}
		return nil
	}
	ended := policy.Try{Err: err, Sent: out.sent(err, req, opts), CallerDone: ctx.Err() != nil}
	permit.Done(policy.VerdictOf(ended))
	return c.plainError(ctx, method, m, ended, 1)
}

// plainError says of a plain call that failed whether an effect may have happened.
func (c *client) plainError(ctx context.Context, method string, m *clientMethod, ended policy.Try, attempts int) error {
	call := clientCall{client: c, callConfig: &c.callConfig, method: method, policy: m, attempts: attempts}
	call.note(ended.Err, c.table.Classify(ended), nil)
	err := call.end(ctx, ended.Err, guard.Parked{})
	call.report(ctx, err)
	return err
}
