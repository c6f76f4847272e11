package nethttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
)

const orders = "POST /orders"

func TestARepeatGetsTheFirstResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.wrap(t)
		first := send(t.Context(), h, order(`"order 1"`))
		require.Equal(t, http.StatusCreated, first.Code)
		require.Equal(t, `{"order":1}`, first.Body.String())
		require.NotEmpty(t, first.Header().Get(nethttp.HeaderExpires))

		repeat := send(t.Context(), h, order(`"order 1";x=1`))
		requireReplayed(t, first, repeat)
		require.Equal(t, "/orders/1", repeat.Header().Get("Location"))
		require.Equal(t, 1, w.count())
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.lookup(t, orders, "order 1").GetState())

		send(t.Context(), h, order(`"order 1"`, with("Authorization", "Bearer bob")))
		require.Equal(t, 2, w.count(), "keys of two callers never meet")
		send(t.Context(), h, order(`"order 1"`, at(http.MethodPost, "/refunds")))
		require.Equal(t, 3, w.count(), "another operation")
		require.Equal(t, http.StatusCreated, send(t.Context(), h, order("")).Code)
		require.Equal(t, 4, w.count(), "without a key it runs")
	})
}

func TestOnlyAllowedHeadersAreRepeated(t *testing.T) { // D02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			for name, value := range map[string]string{
				"Set-Cookie": "session=1", "X-Request-Id": "7", "X-Rate-Left": "9", "Content-Language": "en", "X-Bad": "caf\xe9",
				"Idempotency-Replayed": "true", "Content-Type": "text/plain",
			} {
				rw.Header().Set(name, value)
			}
			_, _ = io.WriteString(rw, "ok")
		}
		h := w.wrap(t, nethttp.WithOthers(nethttp.Route{Policy: &dedupv1.MethodPolicy{ReplayHeaders: []string{"x-rate-left", "x-bad"}}}))
		first := send(t.Context(), h, order("a"))
		require.Equal(t, "session=1", first.Header().Get("Set-Cookie"))
		repeat := send(t.Context(), h, order("a"))
		requireReplayed(t, first, repeat)
		require.Equal(t, "9", repeat.Header().Get("X-Rate-Left"))
		require.Equal(t, "en", repeat.Header().Get("Content-Language"))
		for _, name := range []string{"Set-Cookie", "X-Request-Id", "X-Bad"} {
			require.Empty(t, repeat.Header().Get(name), name)
		}
		require.Equal(t, 1, w.count())
	})
}

func TestMalformedAndMissingKeysAre400(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		required := nethttp.Route{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED}}
		h := w.wrap(t, nethttp.Strict(), nethttp.WithRoute("/orders", required))
		p := requireProblem(t, send(t.Context(), h, order("")), http.StatusBadRequest, "key-required")
		require.Equal(t, "KEY_REQUIRED", p.Reason)
		for _, key := range []string{`"`, `""`, `bare`, `"` + strings.Repeat("k", 256) + `"`} {
			p = requireProblem(t, send(t.Context(), h, order(key)), http.StatusBadRequest, "key-invalid")
			require.Equal(t, "KEY_INVALID", p.Reason)
			require.NotContains(t, p.Detail, "bare")
		}
		requireProblem(t, send(t.Context(), h, order("", with(nethttp.HeaderKey, ""))), http.StatusBadRequest, "key-invalid")
		require.Zero(t, w.count())
		require.Equal(t, http.StatusCreated, send(t.Context(), h, order("", at(http.MethodGet, "/orders"))).Code)
		require.Equal(t, http.StatusCreated, send(t.Context(), h, order("", at(http.MethodPost, "/elsewhere"))).Code)
		require.Equal(t, 2, w.count(), "safe methods and other routes need none")
	})
}

func TestACallerWhoIsNotKnownIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		requireProblem(t, send(t.Context(), w.wrap(t), order("a", with("Authorization"))), http.StatusUnauthorized, "")
		failing, err := nethttp.New(w.engine, nethttp.WithCaller(func(*http.Request) (string, error) { return "ada", errors.New("no") }))
		require.NoError(t, err)
		requireProblem(t, send(t.Context(), failing.Wrap(w), order("a")), http.StatusUnauthorized, "")
		require.Zero(t, w.count())
	})
}

func TestAnotherRequestUnderTheKeyIs422(t *testing.T) { // C04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.wrap(t, nethttp.WithRoute("/orders/{id}/pay", nethttp.Route{}))
		pay := at(http.MethodPost, "/orders/1/pay?b=2&a=%7e1")
		require.Equal(t, http.StatusCreated, send(t.Context(), h, order("a", pay)).Code)
		for name, change := range map[string]func(*request){
			"body": saying(`{"item":"two books"}`), "path": at(http.MethodPost, "/orders/2/pay?b=2&a=%7e1"),
			"query": at(http.MethodPost, "/orders/1/pay?b=3&a=%7e1"), "media type": with("Content-Type", "text/plain"),
			"encoding": with("Content-Encoding", "gzip"),
		} {
			p := requireProblem(t, send(t.Context(), h, order("a", pay, change)), http.StatusUnprocessableEntity, "key-reused")
			require.Equal(t, "KEY_REUSED", p.Reason, name)
			require.Len(t, p.Record, 12)
		}
		same := send(t.Context(), h, order("a", at(http.MethodPost, "/orders/1/pay?a=~1&b=2"),
			with("Content-Type", "Application/JSON; charset=utf-8"), with("User-Agent", "other")))
		require.Equal(t, "true", same.Header().Get(nethttp.HeaderReplayed), "written otherwise, the same request")
		require.Equal(t, 1, w.count())
	})
}

func TestAConcurrentRequestIs409OrWaits(t *testing.T) { // C05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			pass(4 * time.Second)
			_, _ = io.WriteString(rw, "done")
		}
		atOnce, waits := w.wrap(t), w.wrap(t, nethttp.WithOthers(nethttp.Route{Wait: time.Minute}))
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- send(t.Context(), atOnce, order("a")) }()
		pass(2 * time.Second)
		busy := send(t.Context(), atOnce, order("a"))
		p := requireProblem(t, busy, http.StatusConflict, "in-progress")
		require.Equal(t, "1", busy.Header().Get("Retry-After"))
		require.Equal(t, int64(2), p.Age)

		repeat := send(t.Context(), waits, order("a"))
		requireReplayed(t, <-first, repeat)
		require.Equal(t, 1, w.count())
	})
}

func TestAClientThatLeavesChangesNothing(t *testing.T) { // A01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) {
			pass(3 * time.Second)
			if r.Context().Err() == nil {
				_, _ = io.WriteString(rw, "done")
			}
		}
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		send(ctx, w.wrap(t), order("a"))
		repeat := send(t.Context(), w.wrap(t), order("a"))
		require.Equal(t, "done", repeat.Body.String())
		require.Equal(t, 1, w.count())

		w.handle = func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }
		cancels := w.wrap(t, nethttp.WithOthers(nethttp.Route{Policy: &dedupv1.MethodPolicy{CallerCancels: true}}))
		ctx, leave = context.WithTimeout(t.Context(), time.Second)
		defer leave()
		send(ctx, cancels, order("b"))
		require.Equal(t, 2, w.count(), "it ends with its client where the route says so")
	})
}

func TestDedupdAwayIs503AndNothingRuns(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.down.Store(true)
		var open int
		observer := nethttp.WithObserver(nethttp.Observer{Unprotected: func(string) { open++ }})
		away := send(t.Context(), w.wrap(t), order("a"))
		p := requireProblem(t, away, http.StatusServiceUnavailable, "store-unavailable")
		require.Equal(t, "none", p.Effect)
		require.Equal(t, "1", away.Header().Get("Retry-After"))
		require.Zero(t, w.count())

		failsOpen := w.wrap(t, observer, nethttp.WithOthers(nethttp.Route{Policy: &dedupv1.MethodPolicy{FailOpen: true}}))
		require.Equal(t, http.StatusCreated, send(t.Context(), failsOpen, order("a")).Code)
		require.Equal(t, 1, w.count())
		require.Equal(t, 1, open)
	})
}

func TestABodyOverTheLimitIs413(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.wrap(t, nethttp.WithMaxBody(10), nethttp.WithRoute("POST /large", nethttp.Route{MaxBody: 20}))
		requireProblem(t, send(t.Context(), h, order("a", saying("12345678901"))), http.StatusRequestEntityTooLarge, "")
		require.Zero(t, w.count())
		var got string
		w.handle = func(_ http.ResponseWriter, r *http.Request, _ int) {
			b, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, int64(len(b)), r.ContentLength)
			got = string(b)
		}
		send(t.Context(), h, order("a", saying("1234567890")))
		require.Equal(t, "1234567890", got, "the handler reads what was read before")
		send(t.Context(), h, order("a", at(http.MethodPost, "/large"), saying("12345678901")))
		require.Equal(t, "12345678901", got)
		send(t.Context(), h, order("", saying(strings.Repeat("x", 50))))
		require.Len(t, got, 50, "requests without a key are not limited here")
	})
}

func TestABodyThatWasReadBeforeIsNotTakenForAnEmptyOne(t *testing.T) { // C06
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for name, read := range map[string]func(*http.Request) error{
			"parsed": (*http.Request).ParseForm,
			"read": func(r *http.Request) error {
				_, err := io.ReadAll(r.Body)
				return err
			},
		} {
			keys := w.wrap(t)
			outer := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if read(r) == nil {
					keys.ServeHTTP(rw, r)
				}
			})
			form := order("a", saying("item=book"), with("Content-Type", "application/x-www-form-urlencoded"))
			p := requireProblem(t, send(t.Context(), outer, form), http.StatusInternalServerError, "")
			require.Contains(t, p.Detail, "put it inside", name)
		}
		require.Zero(t, w.count())
	})
}

func TestAnExpiredKeyIs422(t *testing.T) { // B11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.wrap(t)
		send(t.Context(), h, order("a"))
		pass(2 * time.Hour)
		requireProblem(t, send(t.Context(), h, order("a")), http.StatusUnprocessableEntity, "key-expired")
		require.Equal(t, 1, w.count())
	})
}

func TestObservedRoutesRunAlwaysAndAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var seen []string
		h := w.wrap(t, nethttp.WithObserver(nethttp.Observer{Observed: func(_ string, would guard.Sight, _ dedupv1.Reason) {
			seen = append(seen, would.String())
		}}), nethttp.WithOthers(nethttp.Route{MaxBody: 20, Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OBSERVE}}))
		var bodies []int
		w.handle = func(_ http.ResponseWriter, r *http.Request, _ int) {
			b, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			bodies = append(bodies, len(b))
		}
		send(t.Context(), h, order("a"))
		synctest.Wait()
		send(t.Context(), h, order("a"))
		send(t.Context(), h, order("a", saying("other")))
		send(t.Context(), h, order("a", saying(strings.Repeat("x", 30))))
		send(t.Context(), h, order(`"`))
		send(t.Context(), h, order("b", with("Authorization")))
		require.Equal(t, []string{"run", "replay", "mismatch", "refuse", "refuse", "refuse"}, seen)
		require.Equal(t, []int{15, 15, 5, 30, 15, 15}, bodies)
	})
}

func TestFaultsOfTheOptionsAreToldAtOnce(t *testing.T) {
	t.Parallel()
	engine := &guard.Engine{}
	p := func(p *dedupv1.MethodPolicy) nethttp.Route { return nethttp.Route{Policy: p} }
	for fault, opts := range map[string][]nethttp.Option{
		"WithCaller":      {},
		"once":            {nethttp.WithCaller(bearer), nethttp.SharedCaller()},
		"is nil":          {nethttp.WithCaller(nil)},
		"max body":        {nethttp.SharedCaller(), nethttp.WithMaxBody(0)},
		"error hold":      {nethttp.SharedCaller(), nethttp.WithErrorHold(time.Hour)},
		"parsing":         {nethttp.SharedCaller(), nethttp.WithRoute("POST  /{", nethttp.Route{})},
		"conflicts":       {nethttp.SharedCaller(), nethttp.WithRoute("/a/{b}", nethttp.Route{}), nethttp.WithRoute("/{a}/b", nethttp.Route{})},
		"set-cookie":      {nethttp.SharedCaller(), nethttp.WithOthers(p(&dedupv1.MethodPolicy{ReplayHeaders: []string{"set-cookie"}}))},
		"one message":     {nethttp.SharedCaller(), nethttp.WithOthers(p(&dedupv1.MethodPolicy{ReplayHeaders: []string{"date"}}))},
		"later version":   {nethttp.SharedCaller(), nethttp.WithOthers(p(&dedupv1.MethodPolicy{Keys: 99}))},
		"lease":           {nethttp.SharedCaller(), nethttp.WithOthers(p(&dedupv1.MethodPolicy{Lease: durationpb.New(time.Hour)}))},
		"what it rests":   {nethttp.SharedCaller(), nethttp.WithOthers(nethttp.Route{Basis: dedupv1.Basis_BASIS_INBOX})},
		"negative":        {nethttp.SharedCaller(), nethttp.WithOthers(nethttp.Route{Wait: -1})},
		"gRPC methods":    {nethttp.SharedCaller(), nethttp.WithOthers(p(&dedupv1.MethodPolicy{KeyFields: []string{"id"}}))},
		"needs a pattern": {nethttp.SharedCaller(), nethttp.WithRoute("", nethttp.Route{})},
	} {
		_, err := nethttp.New(engine, opts...)
		require.ErrorContains(t, err, fault)
	}
	_, err := nethttp.New(nil, nethttp.SharedCaller())
	require.ErrorContains(t, err, "engine")
}
