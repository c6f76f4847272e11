package nethttp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/ending"
	"github.com/dedupd/dedupd/interceptors/internal/seldom"
)

// Middleware makes HTTP handlers run once per key. It is safe for concurrent use.
type Middleware struct {
	config
	engine *guard.Engine
	mux    *http.ServeMux    // matches patterns, serves nothing
	routes map[string]*route // by pattern
	rest   *route
	open   seldom.Log // of requests that ran without protection
}

// New returns a middleware. The engine may serve other doors too; close it when
// the process stops, after the server has shut down. It returns every fault of the
// options at once.
func New(engine *guard.Engine, opts ...Option) (*Middleware, error) {
	c := newConfig()
	faults := make([]error, 0, len(opts))
	for _, o := range opts {
		faults = append(faults, o.apply(&c))
	}
	if engine == nil {
		faults = append(faults, errors.New("the engine is nil, make one by guard.New"))
	}
	if c.callers != 1 {
		faults = append(faults, errors.New("say once whose keys they are: WithCaller, or SharedCaller if there is only one caller"))
	}
	m := &Middleware{engine: engine, mux: http.NewServeMux(), routes: map[string]*route{}}
	var all []*route
	for _, named := range c.routes {
		t, err := newRoute(named.pattern, named.route, c.maxBody, c.hold)
		if err == nil {
			err = m.register(t)
		}
		faults = append(faults, err)
		all = append(all, t)
	}
	rest, err := newRoute("", c.others, c.maxBody, c.hold)
	m.rest = rest
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, err
	}
	markShared(append(all, rest))
	m.config = c
	return m, nil
}

// register adds a pattern to the mux, which panics where it cannot be read or
// meets another.
func (m *Middleware) register(t *route) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("route %q: %v", t.pattern, p)
		}
	}()
	m.mux.Handle(t.pattern, http.NotFoundHandler())
	m.routes[t.pattern] = t
	return nil
}

// routeOf returns the policy of a request.
func (m *Middleware) routeOf(r *http.Request) *route {
	if len(m.routes) > 0 {
		if _, pattern := m.mux.Handler(r); m.routes[pattern] != nil {
			return m.routes[pattern]
		}
	}
	return m.rest
}

// Wrap returns a handler that runs next once per key. Put authentication around
// it: what Wrap is inside of sees repeats too. Put what belongs to the work, and
// what recovers from panics, in or around it as you like: a panic is on record as an
// unknown outcome, and goes on.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := m.routeOf(r)
		rule := t.takes(r)
		if rule == dedupv1.KeyRule_KEY_RULE_OFF {
			next.ServeHTTP(w, r)
			return
		}
		if rule == dedupv1.KeyRule_KEY_RULE_OBSERVE {
			m.observed(w, r, t, next)
			return
		}
		key, keyed, err := headerKey(r.Header, m.strict)
		switch {
		case err != nil:
			newProblem(dedupv1.Reason_REASON_KEY_INVALID, err.Error()).write(w)
		case keyed:
			m.serve(w, r, t, key, next)
		case rule == dedupv1.KeyRule_KEY_RULE_REQUIRED:
			newProblem(dedupv1.Reason_REASON_KEY_REQUIRED, "send the same Idempotency-Key with every try of one request").write(w)
		default:
			if m.observe.Keyless != nil {
				m.observe.Keyless(t.operation(r))
			}
			next.ServeHTTP(w, r)
		}
	})
}

// serve runs one keyed request.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, t *route, key string, next http.Handler) {
	body, p := readBody(w, r, t.MaxBody)
	if p != nil {
		p.write(w)
		return
	}
	x := &exchange{route: t, request: r, body: body, next: next}
	call, p := m.call(r.Context(), x, key)
	if p != nil {
		p.write(w)
		return
	}
	res, err := m.engine.Do(r.Context(), call, x.run)
	if refusal, ok := errors.AsType[*guard.RefusalError](err); ok && refusal.Unreached && t.Policy.GetFailOpen() && r.Context().Err() == nil {
		m.ranOpen(r, call.Operation)
		next.ServeHTTP(w, x.with(r.Context()))
		return
	}
	x.answer(w, res, err)
}

// call says who asks for what.
func (m *Middleware) call(ctx context.Context, x *exchange, key string) (guard.Call, *problem) {
	var caller string
	if m.caller != nil {
		var err error
		if caller, err = m.caller(x.request); err != nil || caller == "" {
			m.log.LogAttrs(ctx, slog.LevelWarn, "a keyed request was refused, its caller is not known",
				slog.String("route", x.route.pattern))
			return guard.Call{}, plainProblem(http.StatusUnauthorized, "a request with a key must be authenticated: its caller is not known")
		}
	}
	c, err := x.call(ctx, []byte(caller), key)
	if err != nil {
		return guard.Call{}, newProblem(dedupv1.Reason_REASON_INPUT_INVALID, "the request cannot be told from others under its key")
	}
	return c, nil
}

// ranOpen counts a request that runs without protection, and logs such once a
// minute.
func (m *Middleware) ranOpen(r *http.Request, operation string) {
	if m.observe.Unprotected != nil {
		m.observe.Unprotected(operation)
	}
	if calls, due := m.open.Due(time.Minute); due {
		m.log.LogAttrs(r.Context(), slog.LevelError, "dedupd cannot be reached; requests of routes that fail open run without protection",
			slog.String("operation", operation), slog.Int("calls", calls))
	}
}

// readBody reads a request's body whole: nothing is reserved for a request that is
// not there yet.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *problem) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, plainProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body of a request with a key may be %d bytes", limit))
	}
	if err != nil {
		return nil, plainProblem(http.StatusBadRequest, "the body could not be read")
	}
	if r.PostForm != nil || r.MultipartForm != nil || r.ContentLength >= 0 && r.ContentLength != int64(len(body)) {
		// Requests would look alike that are not.
		return nil, plainProblem(http.StatusInternalServerError, "something outside of the middleware for keys has read the body: put it inside")
	}
	return body, nil
}

// exchange is one keyed request on its way through the engine.
type exchange struct {
	route   *route
	request *http.Request
	body    []byte
	next    http.Handler

	response *Response // the handler's own
}

// call is what the engine is asked.
func (x *exchange) call(ctx context.Context, caller []byte, key string) (guard.Call, error) {
	t := x.route
	operation := t.operation(x.request)
	fp, err := t.fingerprint(operation, x.request, x.body)
	if err != nil {
		return guard.Call{}, err
	}
	c := t.call(operation, fp)
	c.Caller, c.Key = caller, []byte(key)
	if t.Reconciler != nil {
		c.Reconciler = t.Reconciler(x.with(ctx))
	}
	return c, nil
}

// with returns the request, its body unread, on another context.
func (x *exchange) with(ctx context.Context) *http.Request {
	r := x.request.WithContext(ctx)
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body)), nil
	return r
}

// run is the handler as the engine runs it.
func (x *exchange) run(ctx context.Context, a guard.Attempt) guard.Ending {
	said := new(atomic.Int32)
	rec := newRecorder()
	x.next.ServeHTTP(rec, x.with(context.WithValue(ctx, markKey{}, said)))
	x.response = rec.end()
	return x.route.ending(ctx, x.response, ending.Mark(said.Load()), a)
}

// answer sends the run's own response, a stored one, or a problem.
func (x *exchange) answer(w http.ResponseWriter, res guard.Result, err error) {
	h := w.Header()
	if len(res.RecordID) > 0 {
		h.Set(HeaderRecord, hex.EncodeToString(res.RecordID))
	}
	if at := res.Ends.GetExpiresAt(); at != nil {
		h.Set(HeaderExpires, at.AsTime().Format(time.RFC3339))
	}
	switch {
	case err != nil:
		problemOf(err).write(w)
	case res.Stored == nil:
		if left := ending.Tell(res.Left); left != "" {
			h.Set(HeaderEffect, left)
		}
		x.response.write(w)
	default:
		stored, ok := storedResponse(res.Stored.GetOutcome())
		if !ok {
			p := newProblem(dedupv1.Reason_REASON_OUTCOME_NOT_STORED, "the work was done and is not done again; ask for what it made in another way")
			p.Record = guard.ShortRecordID(res.RecordID)
			p.write(w)
			return
		}
		if !res.Applied {
			h.Set(HeaderReplayed, "true")
		}
		stored.write(w)
	}
}

// observed runs the handler as if there were no keys, and beside it keeps the
// shadow record of the request. The body is read first, so that there is one.
func (m *Middleware) observed(w http.ResponseWriter, r *http.Request, t *route, next http.Handler) {
	tell := func(would guard.Sight, reason dedupv1.Reason) {
		if m.observe.Observed != nil {
			m.observe.Observed(t.operation(r), would, reason)
		}
	}
	key, keyed, err := headerKey(r.Header, m.strict)
	if err != nil {
		tell(guard.SightRefuse, dedupv1.Reason_REASON_KEY_INVALID)
	}
	if !keyed {
		if err == nil && m.observe.Keyless != nil {
			m.observe.Keyless(t.operation(r))
		}
		next.ServeHTTP(w, r)
		return
	}
	seen, whole := peekBody(r, t.MaxBody)
	x := &exchange{route: t, request: r, body: seen, next: next}
	call, p := m.call(r.Context(), x, key)
	if p != nil || !whole {
		tell(guard.SightRefuse, dedupv1.Reason_REASON_UNSPECIFIED)
		next.ServeHTTP(w, r)
		return
	}
	call.Reconciler, call.Basis = nil, dedupv1.Basis_BASIS_UNSPECIFIED
	would, reason, done := m.engine.Observe(r.Context(), call)
	tell(would, reason)
	end := guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN} // of a panic
	defer func() { done(end) }()
	seenStatus := &statusWriter{ResponseWriter: w}
	next.ServeHTTP(seenStatus, r)
	end = t.ending(context.WithoutCancel(r.Context()), &Response{Status: cmp.Or(seenStatus.status, http.StatusOK), Header: http.Header{}}, ending.None, guard.Attempt{})
}

// peekBody reads up to limit bytes of the body and puts them back; whole reports
// that there were no more.
func peekBody(r *http.Request, limit int64) (seen []byte, whole bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, true
	}
	seen, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	rest := r.Body
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(seen), rest), rest}
	return seen, err == nil && int64(len(seen)) <= limit
}

// statusWriter notes the status of a response that goes out as it is.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach flushing and hijacking.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush passes on to who looks for a Flusher by itself.
func (w *statusWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }
