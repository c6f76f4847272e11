package nethttp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/ending"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	maxProblem = 64 << 10 // of a failing response, read to tell its reason
	maxDrained = 64 << 10 // of a response that is not given out, so that its connection can be used again
)

// safety is how far a method may be sent again without a key.
type safety uint8

const (
	unsafe     safety = iota
	idempotent        // again, but it has effects
	readOnly
)

func safetyOf(method string) safety {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return readOnly
	case http.MethodPut, http.MethodDelete:
		return idempotent
	}
	return unsafe
}

// outgoing is one request of a Transport on its way.
type outgoing struct {
	t        *Transport
	req      *http.Request
	provider Provider
	table    policy.Table
	budget   *policy.Budget

	body  []byte // held for another try
	whole bool   // body is all of it
	sent  bool   // a body that is not held was sent

	key       string // "": none
	own       bool   // it is in the request's header already
	automatic bool   // it is the run's child key
	fp        *dedupv1.Fingerprint
	named     [sha256.Size]byte
	number    uint64

	attempts, held, waits int
	effect                policy.Effect // the worst of the tries that is still open
	recordID              string
	acknowledged          bool // the callee named the record of this request's key
	resp                  *http.Response
}

// operation names what the request's key is for on this side.
func (c *outgoing) operation() string {
	return cmp.Or(c.req.Method, http.MethodGet) + " " + c.req.URL.Host
}

func (c *outgoing) level() safety { return safetyOf(c.req.Method) }

// protected reports whether sending the request again cannot do harm.
func (c *outgoing) protected() bool {
	if !c.whole && c.req.GetBody == nil && c.sent {
		return false
	}
	return c.key != "" || c.level() != unsafe
}

// prepare reads the body and chooses the key, once.
func (c *outgoing) prepare(ctx context.Context) error {
	if err := c.hold(); err != nil {
		return err
	}
	header := HeaderKey
	if c.provider.Guarded == nil {
		header = cmp.Or(c.provider.KeyHeader, HeaderKey)
	}
	key, keyed, err := headerKey(http.Header{HeaderKey: c.req.Header.Values(header)}, false)
	if err != nil {
		return err
	}
	if c.whole {
		c.fp = Fingerprint(c.operation(), c.req, c.body)
	}
	parent := guard.RecordIDFrom(ctx)
	switch {
	case keyed:
		c.key, c.own = key, true
	case c.level() == readOnly, !c.provider.Deduplicates && c.provider.Guarded == nil:
		// A key that the callee does not look at would protect nothing, and have
		// net/http's own Transport send the request again.
	case parent != nil && c.fp != nil:
		c.named = sha256.Sum256(keying.LengthPrefixed(c.operation(), string(c.fp.GetDigest())))
		c.number, _ = guard.CallNumber(ctx, c.named)
		c.key, c.automatic = keying.Child(parent, c.operation(), c.fp.GetDigest(), c.number), true
	default:
		c.key = keying.Fresh(time.Now())
	}
	if c.provider.Guarded != nil && c.key != "" && !c.whole {
		return errors.New("the body of a guarded request must fit TransportConfig.MaxBody")
	}
	return nil
}

// hold reads the body, as far as it may be held.
func (c *outgoing) hold() error {
	if c.req.Body == nil || c.req.Body == http.NoBody {
		c.whole = true
		return nil
	}
	limit := c.t.config.MaxBody
	body, err := io.ReadAll(io.LimitReader(c.req.Body, limit+1))
	c.body, c.whole = body, int64(len(body)) <= limit
	return err
}

// bodyOf returns the body of the next try.
func (c *outgoing) bodyOf() (io.ReadCloser, error) {
	switch {
	case c.req.Body == nil || c.req.Body == http.NoBody:
		return c.req.Body, nil
	case c.whole:
		return io.NopCloser(bytes.NewReader(c.body)), nil
	case c.sent && c.req.GetBody != nil:
		return c.req.GetBody()
	}
	c.sent = true
	return struct { // the base closes it, whenever it has sent it
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(c.body), c.req.Body), c.req.Body}, nil
}

// loop tries until there is an answer or no sense in going on.
func (c *outgoing) loop(ctx context.Context) error {
	_, err := tries.Loop{
		Try: c.try,
		Next: func(a policy.Answer) (time.Duration, bool) {
			if a.Retry == policy.Wait {
				c.waits++
			}
			return tries.Next(a, c.protected(), c.attempts+c.held-c.waits, c.t.config.MaxAttempts, c.t.backoff)
		},
		Permit:   func(context.Context) (func(), bool) { return c.budget.TryRetry() },
		Retrying: func(context.Context, policy.Answer, error) {},
	}.Run(ctx)
	return err
}

// drop gives up the response in hand, for another try.
func (c *outgoing) drop() {
	if c.resp == nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.resp.Body, maxDrained)
	_ = c.resp.Body.Close()
	c.resp = nil
}

// try sends the request once, unless the host's breaker holds it back, and says
// what its end means. The error stands for a failing response too.
func (c *outgoing) try(ctx context.Context) (policy.Answer, error) {
	permit, err := c.t.breaker.Allow("/" + c.req.URL.Host + "/" + c.req.Method)
	if err != nil {
		c.held++
		answer := c.table.Classify(policy.Try{Err: err, Sent: policy.SentNothing, CallerDone: ctx.Err() != nil})
		c.effect = max(c.effect, answer.Effect)
		return answer, err
	}
	defer permit.Done(policy.Neutral) // a panic says nothing about the server
	c.drop()
	c.attempts++
	if c.provider.Guarded != nil && c.key != "" {
		return c.guardedTry(ctx, &permit)
	}
	s := c.send(ctx, ctx)
	answer := c.answerTo(s)
	permit.Done(verdictOf(s, answer))
	c.note(s, answer)
	c.resp = s.resp
	return answer, s.Err
}

// answerTo says what a try's end means.
func (c *outgoing) answerTo(s sentTry) policy.Answer {
	if s.resp == nil {
		return c.table.Classify(s.Try)
	}
	if s.resp.Header.Get(HeaderReplayed) == "true" && s.Err != nil {
		// The stored answer: it is the same however often it is asked for.
		return policy.Answer{Retry: policy.Permanent, Effect: policy.EffectNone}
	}
	hint, hinted := policy.HTTPRetryAfter(s.resp.Header.Get("Retry-After"), time.Now())
	var answer policy.Answer
	switch refusal, ours := c.refusalIn(s.resp); {
	case s.Err == nil:
		return c.table.Classify(s.Try)
	case ours:
		answer = policy.AnswerTo(refusal, hint, hinted)
	case s.resp.StatusCode == http.StatusConflict && hinted && c.key != "":
		// As the draft has it: the first request under this key is in progress.
		answer = policy.Answer{Retry: policy.Wait, Effect: policy.EffectUnknown, Hint: hint, HasHint: true}
	default:
		answer = c.table.Classify(s.Try)
		answer.Hint, answer.HasHint = max(answer.Hint, hint), answer.HasHint || hinted
	}
	if s.CallerDone && answer.Retry != policy.Permanent {
		answer.Retry = policy.Stop
	}
	return answer
}

// refusalIn reads a problem of our own middleware; the body stays readable.
func (c *outgoing) refusalIn(resp *http.Response) (policy.Refusal, bool) {
	if resp.StatusCode < http.StatusBadRequest || mediaType(resp.Header.Get("Content-Type")) != problemType {
		return policy.Refusal{}, false
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	var p problem
	if err != nil || json.Unmarshal(head, &p) != nil || !strings.HasPrefix(p.Type, ProblemBase) {
		return policy.Refusal{}, false
	}
	return policy.Refusal{Reason: policy.ReasonNamed(p.Reason), Effect: policy.EffectNamed(p.Effect)}, true
}

// note keeps what the tries so far may have left behind.
func (c *outgoing) note(s sentTry, answer policy.Answer) {
	if s.resp != nil {
		if id := s.resp.Header.Get(HeaderRecord); len(id) == 2*sha256.Size && c.key != "" {
			c.recordID, c.acknowledged = id, true
		}
	}
	granted := c.acknowledged && s.resp != nil && s.resp.Header.Get(HeaderRecord) != "" && s.Err != nil && answer.Reason == 0
	if granted {
		answer.Effect, _ = ending.Told(s.resp.Header.Values(HeaderEffect), answer.Effect)
	}
	if granted && answer.Effect == policy.EffectNone {
		// The key's record was granted to this try, and its handler says that
		// nothing was applied: so did no earlier one.
		c.effect = policy.EffectNone
		return
	}
	c.effect = max(c.effect, answer.Effect)
}

// end makes what the caller gets, and tells the run that the request was made from
// what it may have left behind.
func (c *outgoing) end(ctx context.Context, err error) (*http.Response, error) {
	end := CallEnd{Attempts: c.attempts, RecordID: c.recordID, Unknown: c.effect == policy.EffectUnknown && c.level() != readOnly}
	if c.level() != readOnly && c.attempts > 0 {
		guard.MarkCall(ctx, err != nil, c.effect, keying.IsChild(c.key) && (c.acknowledged || c.provider.Deduplicates))
	}
	if c.automatic && err != nil {
		guard.ReuseCallNumber(ctx, c.named, c.number)
	}
	if c.resp != nil {
		c.resp.Request = c.req.WithContext(context.WithValue(ctx, endKey{}, end))
		return c.resp, nil
	}
	if err == nil {
		err = cmp.Or(context.Cause(ctx), context.DeadlineExceeded)
	}
	if coded, ok := errors.AsType[*codedError](err); ok {
		err = coded.error
	}
	return nil, &CallError{CallEnd: end, err: err}
}
