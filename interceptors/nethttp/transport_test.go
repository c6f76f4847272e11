package nethttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// provider stands for a callee and the way to it: it answers try n, from 1.
type provider struct {
	answer func(n int, r *http.Request, body string) (*http.Response, error)

	mu     sync.Mutex
	keys   []string
	bodies []string
}

func (p *provider) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
		if int64(len(b)) != r.ContentLength {
			return nil, fmt.Errorf("body of %d bytes, said to be %d", len(b), r.ContentLength)
		}
	}
	trace := httptrace.ContextClientTrace(r.Context())
	if trace == nil {
		return nil, errors.New("nobody watches what is sent")
	}
	trace.GetConn("")
	p.mu.Lock()
	p.keys, p.bodies = append(p.keys, r.Header.Get(nethttp.HeaderKey)), append(p.bodies, body)
	n := len(p.keys)
	p.mu.Unlock()
	resp, err := p.answer(n, r, body)
	if !errors.Is(err, errNoWay) {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	return resp, err
}

func (p *provider) tries() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.keys)
}

var errNoWay = errors.New("connection refused")

func says(status int, header ...string) (*http.Response, error) {
	resp := &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader("body"))}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp, nil
}

// sequence answers by status, the last one again and again.
func sequence(statuses ...int) *provider {
	return &provider{answer: func(n int, _ *http.Request, _ string) (*http.Response, error) {
		return says(statuses[min(n, len(statuses))-1])
	}}
}

func transport(t *testing.T, base http.RoundTripper, change ...func(*nethttp.TransportConfig)) http.RoundTripper {
	t.Helper()
	c := nethttp.TransportConfig{Base: base}
	for _, f := range change {
		f(&c)
	}
	rt, err := nethttp.NewTransport(c)
	require.NoError(t, err)
	return rt
}

func deduplicates(c *nethttp.TransportConfig) { c.Others.Deduplicates = true }

// reply is a response, read whole.
type reply struct {
	StatusCode int
	Header     http.Header
	Body       string
	end        nethttp.CallEnd
}

// call sends a request of the method; a key of "" is none.
func call(ctx context.Context, t *testing.T, rt http.RoundTripper, method, key string) (*reply, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://api.test/charges", io.NopCloser(strings.NewReader("charge 1")))
	require.NoError(t, err)
	if key != "" {
		require.NoError(t, nethttp.SetKey(r, key))
	}
	resp, err := rt.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	end, ok := nethttp.EndOf(resp)
	require.True(t, ok)
	return &reply{StatusCode: resp.StatusCode, Header: resp.Header, Body: string(body), end: end}, nil
}

func TestOnlyWhatIsSafeIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method, key string
		config      func(*nethttp.TransportConfig)
		tries       int
	}{
		"a POST without a key":               {http.MethodPost, "", nil, 1},
		"a POST with one":                    {http.MethodPost, "a", nil, 5},
		"a PATCH with one":                   {http.MethodPatch, "a", nil, 5},
		"a GET":                              {http.MethodGet, "", nil, 5},
		"a PUT":                              {http.MethodPut, "", nil, 5},
		"a POST to one who deduplicates":     {http.MethodPost, "", deduplicates, 5},
		"a POST with a key, but no attempts": {http.MethodPost, "a", func(c *nethttp.TransportConfig) { c.MaxAttempts = 1 }, 1},
		"a POST too large to be held":        {http.MethodPost, "a", func(c *nethttp.TransportConfig) { c.MaxBody = 3 }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := sequence(http.StatusServiceUnavailable)
				if name == "a POST too large to be held" {
					p.answer = func(int, *http.Request, string) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }
				}
				change := c.config
				if change == nil {
					change = func(*nethttp.TransportConfig) {}
				}
				resp, err := call(t.Context(), t, transport(t, lenient{p}, change), c.method, c.key)
				require.Equal(t, c.tries, p.tries())
				if err == nil {
					require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "the last response is the caller's")
					end := resp.end
					require.Equal(t, c.tries, end.Attempts)
					require.Equal(t, c.method != http.MethodGet, end.Unknown)
				} else {
					require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
					require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				}
				for i := range p.keys {
					require.Equal(t, p.keys[0], p.keys[i], "one key for all tries")
					require.Equal(t, "charge 1", p.bodies[i], "one body for all tries")
				}
			})
		})
	}
}

// lenient sends bodies of unknown length.
type lenient struct{ *provider }

func (l lenient) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.ContentLength <= 0 && r.Body != nil {
		r.ContentLength = int64(len("charge 1"))
	}
	return l.provider.RoundTrip(r)
}

func TestWhatAStatusIsWorth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for status, transient := range map[int]bool{
			408: true, 425: true, 429: true, 500: true, 502: true, 503: true, 504: true, 507: true, 520: true,
			400: false, 401: false, 403: false, 404: false, 409: false, 410: false, 412: false, 422: false, 501: false, 505: false,
		} {
			p := sequence(status, http.StatusCreated)
			resp, err := call(t.Context(), t, transport(t, p), http.MethodPost, "a")
			require.NoError(t, err)
			require.Equal(t, transient, resp.StatusCode == http.StatusCreated, status)
			end := resp.end
			require.False(t, end.Unknown, status)
		}
	})
}

func TestRetryAfterIsTheLeastWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, value := range map[string]func() string{
			"seconds": func() string { return "20" },
			"a date":  func() string { return time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat) },
		} {
			start := time.Now()
			p := &provider{answer: func(n int, _ *http.Request, _ string) (*http.Response, error) {
				if n == 1 {
					return says(http.StatusTooManyRequests, "Retry-After", value())
				}
				return says(http.StatusOK)
			}}
			resp, err := call(t.Context(), t, transport(t, p), http.MethodPost, "a")
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, resp.StatusCode, name)
			require.GreaterOrEqual(t, time.Since(start), 19*time.Second, name)

			short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			start = time.Now()
			p.keys = nil
			resp, err = call(short, t, transport(t, p), http.MethodPost, "a")
			cancel()
			require.NoError(t, err)
			require.Equal(t, http.StatusTooManyRequests, resp.StatusCode, "no wait that would outlast the deadline")
			require.Zero(t, time.Since(start))
		}
	})
}

func TestAnotherRunInProgressIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &provider{answer: func(n int, _ *http.Request, _ string) (*http.Response, error) {
			if n <= 12 {
				return says(http.StatusConflict, "Retry-After", "1")
			}
			return says(http.StatusCreated)
		}}
		resp, err := call(t.Context(), t, transport(t, p), http.MethodPost, "a")
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, 13, p.tries(), "waiting uses up no attempt")
	})
}

func TestATransportSpeaksWithTheMiddleware(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, err := nethttp.New(w.engine, nethttp.SharedCaller())
		require.NoError(t, err)
		h := m.Wrap(w)
		lose := 2
		p := &provider{answer: func(n int, r *http.Request, body string) (*http.Response, error) {
			rec := httptest.NewRecorder()
			r.Body = io.NopCloser(strings.NewReader(body))
			h.ServeHTTP(rec, r)
			if n <= lose {
				return nil, io.ErrUnexpectedEOF // the reply is lost
			}
			return rec.Result(), nil
		}}
		resp, err := call(t.Context(), t, transport(t, p), http.MethodPost, "a")
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, "true", resp.Header.Get(nethttp.HeaderReplayed))
		require.Equal(t, 1, w.count())
		end := resp.end
		require.Equal(t, resp.Header.Get(nethttp.HeaderRecord), end.RecordID)

		// What a run left behind is told where its status says another thing.
		lose = 0
		for status, say := range map[int]func(context.Context){500: nethttp.SayNotApplied, 422: guard.MarkEffect} {
			w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) {
				say(r.Context())
				rw.WriteHeader(status)
			}
			resp, err = call(t.Context(), t, transport(t, p), http.MethodPost, "said "+strconv.Itoa(status))
			require.NoError(t, err)
			require.Equal(t, status, resp.StatusCode)
			require.Equal(t, status == 422, resp.end.Unknown)
		}

		// Refusals are known by their problem types.
		w.handle = func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) } //nolint:forbidigo // stands for a crash
		require.Panics(t, func() { _, _ = call(t.Context(), t, transport(t, p), http.MethodPost, "b") })
		before := p.tries()
		resp, err = call(t.Context(), t, transport(t, p), http.MethodPost, "b")
		require.NoError(t, err)
		require.Equal(t, http.StatusConflict, resp.StatusCode)
		require.Greater(t, p.tries(), before+5, "an unknown outcome that may settle is waited for")
		end = resp.end
		require.True(t, end.Unknown)
		require.Contains(t, resp.Body, "OUTCOME_UNKNOWN", "the body is still the caller's to read")
	})
}

func TestARequestThatWasNeverSentAppliedNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, sent := range []bool{true, false} {
			p := &provider{answer: func(int, *http.Request, string) (*http.Response, error) {
				if sent {
					return nil, io.EOF
				}
				return nil, errNoWay
			}}
			_, err := call(t.Context(), t, transport(t, p), http.MethodPost, "")
			require.Error(t, err)
			require.Equal(t, sent, errors.Is(err, interceptors.ErrOutcomeUnknown))
			require.Equal(t, 1, p.tries())
		}
	})
}

func TestTimesEndATryAndTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := &provider{answer: func(_ int, r *http.Request, _ string) (*http.Response, error) {
			<-r.Context().Done()
			return nil, context.Cause(r.Context())
		}}
		start := time.Now()
		_, err := call(t.Context(), t, transport(t, hang), http.MethodPost, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Equal(t, time.Minute, time.Since(start), "60 s in all where the context has no deadline")

		_, err = call(t.Context(), t, transport(t, hang, func(c *nethttp.TransportConfig) { c.PerTry = time.Second }), http.MethodPost, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 6, hang.tries(), "five tries, each cut")

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = call(ctx, t, transport(t, hang), http.MethodPost, "a")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)

		slow := &provider{answer: func(_ int, r *http.Request, _ string) (*http.Response, error) {
			resp, _ := says(http.StatusOK)
			resp.Body = io.NopCloser(&slowBody{ctx: r.Context()})
			return resp, nil
		}}
		resp, err := call(t.Context(), t, transport(t, slow, func(c *nethttp.TransportConfig) { c.PerTry = time.Second }), http.MethodPost, "a")
		require.NoError(t, err)
		require.Equal(t, "slow", resp.Body)
	})
}

// slowBody takes two minutes, unless its request's context ends.
type slowBody struct {
	ctx  context.Context //nolint:containedctx // as a connection has it
	done bool
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.done {
		return 0, io.EOF
	}
	b.done = true
	select {
	case <-time.After(2 * time.Minute):
		return copy(p, "slow"), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func TestBudgetAndBreakerBoundTheTries(t *testing.T) { // E10, F01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := sequence(http.StatusServiceUnavailable)
		rt := transport(t, p, func(c *nethttp.TransportConfig) { c.Breaker = policy.BreakerSettings{MinCalls: 5, OpenFor: time.Hour} })
		for range 4 {
			_, _ = call(t.Context(), t, rt, http.MethodPost, "a")
		}
		require.Less(t, p.tries(), 20, "held back")
		_, err := call(t.Context(), t, rt, http.MethodPost, "a")
		require.Error(t, err)
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown, "nothing was sent")
		reason, _ := interceptors.ReasonOf(errors.Unwrap(err))
		require.Equal(t, dedupv1.Reason_REASON_BREAKER_OPEN, reason)
	})
}

func TestFaultsOfATransportAreToldAtOnce(t *testing.T) {
	t.Parallel()
	engine := &guard.Engine{}
	for fault, c := range map[string]nethttp.TransportConfig{
		"negative":      {MaxAttempts: -1},
		"no host":       {Providers: map[string]nethttp.Provider{"https://api.test": {}}},
		"no header":     {Others: nethttp.Provider{KeyHeader: "X Key"}},
		"is nil":        {Others: nethttp.Provider{Guarded: &nethttp.Guarded{}}},
		"no guard":      {Others: nethttp.Provider{Deduplicates: true, Guarded: &nethttp.Guarded{Engine: engine}}},
		"name its head": {Others: nethttp.Provider{Guarded: &nethttp.Guarded{Engine: engine, Rerun: true}}},
		"lease":         {Others: nethttp.Provider{Guarded: &nethttp.Guarded{Engine: engine, Lease: time.Hour}}},
		"retention":     {Others: nethttp.Provider{Guarded: &nethttp.Guarded{Engine: engine, Retention: -1}}},
		"budget":        {Budget: policy.BudgetSettings{Ratio: 2}},
		"breaker":       {Breaker: policy.BreakerSettings{Ratio: 2}},
	} {
		_, err := nethttp.NewTransport(c)
		require.ErrorContains(t, err, fault)
	}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for _, key := range []string{"", " a", "é", strings.Repeat("k", 256)} {
		require.Error(t, nethttp.SetKey(r, key))
	}
}
