package interceptors

import (
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"google.golang.org/grpc"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// conn is what the calls of one connection share. Its fields are nil where they
// are turned off.
type conn struct {
	budget  *policy.Budget
	breaker *policy.Breaker
}

// conns finds a connection's budget and breakers: options may serve several
// connections, whose servers fail apart. It keeps no connection alive.
type conns struct {
	config *clientConfig
	known  sync.Map // weak.Pointer[grpc.ClientConn] to *conn
	first  atomic.Pointer[firstConn]
	none   conn // of connections that share nothing
}

// firstConn is the first connection that still lives: most options serve one, and
// to compare with it costs a quarter of finding it.
type firstConn struct {
	of   weak.Pointer[grpc.ClientConn]
	conn *conn
}

func newConns(c *clientConfig) *conns { return &conns{config: c} }

// of returns what the calls of cc share. Calls that are made by hand, without a
// connection, share one.
func (c *conns) of(cc *grpc.ClientConn) *conn {
	first := c.first.Load()
	if first != nil && cc != nil && first.of.Value() == cc {
		return first.conn
	}
	if !c.config.shares() {
		return &c.none
	}
	found := c.find(cc)
	if first == nil || first.of.Value() == nil {
		c.first.Store(&firstConn{of: weak.Make(cc), conn: found})
	}
	return found
}

func (c *conns) find(cc *grpc.ClientConn) *conn {
	key := weak.Make(cc)
	if found, ok := c.known.Load(key); ok {
		return found.(*conn) //nolint:forcetypeassert,errcheck // nothing else is stored
	}
	found, had := c.known.LoadOrStore(key, c.config.newConn())
	if !had && cc != nil {
		runtime.AddCleanup(cc, func(key weak.Pointer[grpc.ClientConn]) { c.known.Delete(key) }, key)
	}
	return found.(*conn) //nolint:forcetypeassert,errcheck // nothing else is stored
}

// shares reports whether there is anything that calls of a connection share.
func (c *clientConfig) shares() bool { return c.budget != nil || c.shared != nil || c.breaker != nil }

// newConn makes what the calls of one connection share. The settings were found
// good at construction, so making them cannot fail.
func (c *clientConfig) newConn() *conn {
	made := &conn{budget: c.shared}
	if c.budget != nil {
		made.budget, _ = policy.NewBudget(*c.budget)
	}
	if c.breaker != nil {
		made.breaker, _ = policy.NewBreaker(*c.breaker)
	}
	return made
}
