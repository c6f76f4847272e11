package interceptors

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"

	"github.com/dedupd/dedupd/interceptors/policy"
)

type sentKey struct{}

// sentMark is how much of one try left the client. It is unseen until a
// sentWatcher meets the try: an interceptor further in may have sent it over a
// connection of its own.
type sentMark struct{ seen atomic.Int32 }

func (m *sentMark) raise(to policy.Sent) {
	for {
		was := m.seen.Load()
		if was >= int32(to) || m.seen.CompareAndSwap(was, int32(to)) {
			return
		}
	}
}

// get tells what was seen.
func (m *sentMark) get() policy.Sent {
	return policy.Sent(m.seen.Load()) //nolint:gosec // one of four values
}

// sentWatcher is a stats handler that writes what it sees to the try's sentMark.
type sentWatcher struct{}

var _ stats.Handler = sentWatcher{}

// TagRPC marks the try as watched: gRPC calls it before anything of a call is
// sent. It leaves ctx as it is, for the try has tagged it.
func (sentWatcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	if m, ok := ctx.Value(sentKey{}).(*sentMark); ok {
		m.raise(policy.SentNothing)
	}
	return ctx
}

// HandleRPC marks outgoing headers and messages.
func (sentWatcher) HandleRPC(ctx context.Context, s stats.RPCStats) {
	m, ok := ctx.Value(sentKey{}).(*sentMark)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.OutHeader:
		m.raise(policy.SentHeader)
	case *stats.OutPayload:
		m.raise(policy.SentMessage)
	}
}

// TagConn leaves ctx as it is.
func (sentWatcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (sentWatcher) HandleConn(context.Context, stats.ConnStats) {}
