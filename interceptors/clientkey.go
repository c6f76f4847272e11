package interceptors

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

type pinKey struct{}

// pin keeps the fresh key of one call for all that the interceptors around the
// call make of it: a retry among them must not look like another intent.
type pin struct {
	client *client
	method string

	mu  sync.Mutex
	key string
	// called, named and number are those of the call's child key.
	called bool
	named  [sha256.Size]byte
	number uint64
}

// pin is the outermost interceptor where there are others around the call.
func (c *client) pin(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	p := &pin{client: c, method: method}
	err := invoker(context.WithValue(ctx, pinKey{}, p), method, req, reply, cc, opts...)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && p.called {
		guard.ReuseCallNumber(ctx, p.named, p.number)
	}
	return err
}

// pinned returns the pin of a call of method; nil where nothing is around it.
func (c *client) pinned(ctx context.Context, method string) *pin {
	if p, _ := ctx.Value(pinKey{}).(*pin); p != nil && p.client == c && p.method == method {
		return p
	}
	return nil
}

// callNumber is guard.CallNumber, but gives one call one number.
func (p *pin) callNumber(ctx context.Context, named [sha256.Size]byte) (number uint64, same bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.called {
		p.number, p.called = guard.CallNumber(ctx, named)
		p.named = named
	}
	return p.number, p.called && p.named == named
}

// freshKey returns a new key, or the one that this very call has already.
func (c *client) freshKey(ctx context.Context, method string) string {
	p := c.pinned(ctx, method)
	if p == nil {
		return keying.Fresh(time.Now())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.key == "" {
		p.key = keying.Fresh(time.Now())
	}
	return p.key
}

// takeFingerprint computes the request's fingerprint, once.
func (c *clientCall) takeFingerprint() error {
	m, ok := c.req.(proto.Message)
	if !ok || c.fp != nil {
		return nil
	}
	fp, err := Fingerprint(c.policy.operation, m)
	if err != nil {
		return inputInvalid(err)
	}
	// Guard mode and look-ups send no other digest: it is the server's and the client's.
	fp.ClientDigest = fp.GetDigest()
	c.fp = fp
	return nil
}

// chooseKey gives the call its key: the caller's own, else one derived from the
// request, else inside a keyed handler the call's child key, else a fresh one
// where the server deduplicates or the call asks for it. It leaves it nil where
// the call goes without.
func (c *clientCall) chooseKey(ctx context.Context, md metadata.MD) error {
	key, keyed, err := incomingKey(md)
	if err != nil {
		return err
	}
	switch {
	case c.key != nil && keyed && *c.key != key:
		return keyInvalid("the call has two keys, one by option and one in its metadata; give one")
	case c.key != nil:
		return nil
	case !keyed && len(c.policy.keyFields) > 0:
		if key, err = deriveKey(c.policy.keyFields, c.req); err != nil {
			return err
		}
	case !keyed && c.takesChildKey():
		if err := c.takeFingerprint(); err != nil {
			return err
		}
		key, c.automatic = c.childKey(ctx), true
	case !keyed && (c.fresh || c.policy.deduplicated):
		key = c.client.freshKey(ctx, c.method)
	case !keyed:
		return nil
	}
	chosen := key // a variable of its own, so that calls without a key allocate none
	c.key = &chosen
	return nil
}

// childKey returns the key of a call that a keyed handler makes.
func (c *clientCall) childKey(ctx context.Context) string {
	digest := c.fp.GetDigest()
	c.named = sha256.Sum256(keying.LengthPrefixed(c.method, string(digest)))
	if c.pin = c.client.pinned(ctx, c.method); c.pin != nil {
		if number, same := c.pin.callNumber(ctx, c.named); same {
			c.number = number
			return keying.Child(c.run, c.method, digest, number)
		}
		c.pin = nil // another request: it is another call
	}
	c.number, _ = guard.CallNumber(ctx, c.named)
	return keying.Child(c.run, c.method, digest, c.number)
}

// takesChildKey reports whether the call is one that a keyed handler makes and
// that may have an effect.
func (c *clientCall) takesChildKey() bool {
	_, ok := c.req.(proto.Message)
	return ok && c.run != nil && c.policy.level != readOnly && !c.policy.keyless
}
