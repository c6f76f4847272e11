package interceptors

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

var errHeaderSent = errors.New("the header was sent already, set it before")

// capture stands between a handler and its stream: it keeps headers and trailers
// until it is known which answer goes out.
type capture struct {
	method string

	mu       sync.Mutex
	sent     bool // the handler sent its header, or has ended
	ended    bool
	headers  metadata.MD
	trailers metadata.MD
}

var _ grpc.ServerTransportStream = (*capture)(nil)

func (c *capture) Method() string { return c.method }

func (c *capture) SetHeader(md metadata.MD) error { return c.addHeader(md, false) }

func (c *capture) SendHeader(md metadata.MD) error { return c.addHeader(md, true) }

func (c *capture) addHeader(md metadata.MD, send bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return errHeaderSent
	}
	c.headers, c.sent = metadata.Join(c.headers, md), send
	return nil
}

func (c *capture) SetTrailer(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errHeaderSent
	}
	c.trailers = metadata.Join(c.trailers, md)
	return nil
}

// end returns what the handler set; what it sets later is refused.
func (c *capture) end() (headers, trailers metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent, c.ended = true, true
	return c.headers, c.trailers
}
