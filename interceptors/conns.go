package interceptors

import (
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// conn is what the calls of one connection share. Its fields are nil where they
// are turned off.
type conn struct {
	budget  *policy.Budget
	breaker *policy.Breaker
	// ignored, never nil, holds by method when a keyed call was last answered by a
	// server that looks at no keys.
	ignored *sync.Map
}

// ignoredFor is for how long a method whose server looked at no key is taken for one
// that does not: servers of both kinds may stand behind one connection.
const ignoredFor = 10 * time.Minute

// ignores reports whether a key is known to protect no call of a method.
func (c *conn) ignores(method string) bool {
	at, ok := c.ignored.Load(method)
	return ok && time.Since(at.(time.Time)) < ignoredFor //nolint:forcetypeassert,errcheck // nothing else is stored
}

// allow asks the breaker for the permit of a try.
func (c *conn) allow(method string) (policy.Permit, error) {
	if c.breaker == nil {
		return policy.Permit{}, nil
	}
	return c.breaker.Allow(method)
}

// conns finds a connection's budget and breakers: options may serve several
// connections, whose servers fail apart.
type conns struct {
	config *clientConfig
	none   conn // of connections that share nothing

	mu    sync.RWMutex
	known map[*grpc.ClientConn]*conn
}

func newConns(c *clientConfig) *conns {
	return &conns{config: c, none: conn{ignored: &sync.Map{}}, known: map[*grpc.ClientConn]*conn{}}
}

// of returns what the calls of cc share. Calls that are made by hand, without a
// connection, share one.
func (c *conns) of(cc *grpc.ClientConn) *conn {
	if !c.config.shares() {
		return &c.none
	}
	c.mu.RLock()
	found := c.known[cc]
	c.mu.RUnlock()
	if found == nil {
		found = c.add(cc)
	}
	return found
}

// add makes what the calls of cc share, and forgets the connections that were closed
// since the last new one.
func (c *conns) add(cc *grpc.ClientConn) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.known[cc]; found != nil {
		return found
	}
	maps.DeleteFunc(c.known, func(cc *grpc.ClientConn, _ *conn) bool {
		return cc != nil && cc.GetState() == connectivity.Shutdown
	})
	made := c.config.newConn()
	c.known[cc] = made
	return made
}

// shares reports whether there is anything that calls of a connection share.
func (c *clientConfig) shares() bool { return c.budget != nil || c.shared != nil || c.breaker != nil }

// newConn makes what the calls of one connection share. The settings were found
// good at construction, so making them cannot fail.
func (c *clientConfig) newConn() *conn {
	made := &conn{budget: c.shared, ignored: &sync.Map{}}
	if c.budget != nil {
		made.budget, _ = policy.NewBudget(*c.budget)
	}
	if c.breaker != nil {
		made.breaker, _ = policy.NewBreaker(*c.breaker)
	}
	return made
}
