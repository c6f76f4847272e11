package nethttp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// verdictOf is what a try says of its host: a refusal of our middleware is an
// answer, whatever its status.
func verdictOf(s sentTry, answer policy.Answer) policy.Verdict {
	if s.resp != nil && answer.Reason != dedupv1.Reason_REASON_UNSPECIFIED {
		return policy.Well
	}
	return policy.VerdictOf(s.Try)
}

// sentTry is how one try ended: Err has the status of the table's row.
type sentTry struct {
	policy.Try
	resp *http.Response
}

// send sends one try within ctx, and with the run's deadlines that caller has.
func (c *outgoing) send(ctx, caller context.Context) sentTry { //nolint:contextcheck // the response's body lives as long as the caller wants
	body, err := c.bodyOf()
	if err != nil {
		return sentTry{Try: policy.Try{Err: err, Sent: policy.SentNothing}}
	}
	// The response's body is read after RoundTrip, so what ends the try by time
	// ends with its headers; what the lease bounds does not.
	try, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	whole := c.req.Context()
	detach := context.AfterFunc(whole, func() { cancel(context.Cause(whole)) }) //nolint:contextcheck // as above
	end := func() { detach(); cancel(context.Canceled) }
	if lease, ok := guard.LeaseEnd(caller); ok {
		bounded, free := context.WithDeadline(try, lease)
		inner := end
		try, end = bounded, func() { free(); inner() }
	}
	if c.t.config.PerTry > 0 {
		cut := time.AfterFunc(c.t.config.PerTry, func() { cancel(context.DeadlineExceeded) })
		defer cut.Stop()
	}
	var seen atomic.Int32
	traced := httptrace.WithClientTrace(try, &httptrace.ClientTrace{
		GetConn: func(string) { seen.CompareAndSwap(int32(policy.SentUnseen), int32(policy.SentNothing)) },
		GotConn: func(httptrace.GotConnInfo) { seen.Store(int32(policy.SentMessage)) },
	})
	resp, err := c.t.config.Base.RoundTrip(c.request(traced, body)) //nolint:bodyclose // the caller's to close, or drop's
	stop()
	out := sentTry{Try: policy.Try{Sent: policy.Sent(seen.Load()), CallerDone: ctx.Err() != nil}, resp: resp} //nolint:gosec // one of four values
	if err != nil {
		out.Err = transportError(err)
		end()
		return out
	}
	out.Sent = policy.SentMessage
	if code := policy.CodeOfHTTP(resp.StatusCode); code != codes.OK {
		out.Err = status.Error(code, "the callee answered "+resp.Status)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &endingBody{ReadCloser: resp.Body, end: end}
	}
	return out
}

// request returns the request of one try: the caller's is not touched.
func (c *outgoing) request(ctx context.Context, body io.ReadCloser) *http.Request {
	r := c.req.Clone(ctx)
	r.Body = body
	if c.whole && body != nil {
		if r.ContentLength = int64(len(c.body)); r.ContentLength == 0 {
			r.Body = http.NoBody
		}
	}
	c.setKey(r.Header)
	return r
}

// setKey writes the key of a try: in guard mode the record's id, if the callee
// takes a key at all, and never ours.
func (c *outgoing) setKey(h http.Header) {
	name, key := cmp.Or(c.provider.KeyHeader, HeaderKey), c.key
	switch {
	case key == "" || c.own && c.provider.Guarded == nil:
		return
	case c.provider.Guarded != nil:
		h.Del(HeaderKey)
		if name, key = c.provider.KeyHeader, c.recordID; name == "" {
			return
		}
	}
	if !c.provider.BareKeys {
		key = quoted(key)
	}
	h.Set(name, key)
}

// transportError gives what a base transport returned the code of its row.
func transportError(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &codedError{error: err, code: codes.DeadlineExceeded}
	case errors.Is(err, context.Canceled):
		return &codedError{error: err, code: codes.Canceled}
	}
	return &codedError{error: err, code: codes.Unavailable}
}

// codedError is an error of the base transport with the code of its row.
type codedError struct {
	error
	code codes.Code
}

func (e *codedError) Unwrap() error { return e.error }

// GRPCStatus has the code of the error's row.
func (e *codedError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }

// endingBody ends a try's context with its response's body.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
