package nethttp

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
)

// recorder holds a handler's response back until it is known which one goes out.
//
// It is a Flusher whose Flush does nothing: a handler that writes in pieces works,
// and its response arrives whole. It cannot be hijacked (http.ErrNotSupported by
// way of http.ResponseController), and informational responses are dropped.
type recorder struct {
	mu     sync.Mutex
	header http.Header // the handler's own, live
	status int         // 0: not written yet
	sent   http.Header // the header as it was when the status was written
	body   bytes.Buffer
	ended  bool
}

var (
	_ http.ResponseWriter = (*recorder)(nil)
	_ http.Flusher        = (*recorder)(nil)
)

func newRecorder() *recorder { return &recorder{header: http.Header{}} }

// Header returns the handler's headers.
func (c *recorder) Header() http.Header { return c.header }

// WriteHeader notes the status; the first one counts.
func (c *recorder) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if status < http.StatusOK || c.status != 0 {
		return
	}
	c.status, c.sent = status, c.header.Clone()
}

// Write adds to the body.
func (c *recorder) Write(b []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0, http.ErrHandlerTimeout
	}
	if !bodyAllowed(c.status) {
		return 0, http.ErrBodyNotAllowed
	}
	return c.body.Write(b)
}

// Flush does nothing.
func (c *recorder) Flush() {}

// redirects reports that the handler answered with a 3xx.
func (c *recorder) redirects() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status >= http.StatusMultipleChoices && c.status < http.StatusBadRequest
}

// end returns the response; what the handler's goroutines write later is refused.
func (c *recorder) end() *Response {
	c.WriteHeader(http.StatusOK)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	r := &Response{Status: c.status, Header: c.sent, Body: c.body.Bytes()}
	for name, values := range c.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			r.Header[name] = values
		}
	}
	for _, list := range c.sent.Values("Trailer") {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values, ok := c.header[name]; ok {
				r.Header[http.TrailerPrefix+name] = values
				delete(r.Header, name)
			}
		}
	}
	r.Header.Del("Trailer")
	for _, name := range []string{HeaderReplayed, HeaderRecord, HeaderExpires, HeaderEffect} {
		r.Header.Del(name) // they are not the handler's to say
	}
	if _, set := r.Header["Content-Type"]; !set && len(r.Body) > 0 && r.Header.Get("Content-Encoding") == "" {
		// As net/http would, but before it is stored.
		r.Header.Set("Content-Type", http.DetectContentType(r.Body))
	}
	return r
}
