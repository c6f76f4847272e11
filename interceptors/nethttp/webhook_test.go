package nethttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
)

const events = "webhook payments"

func signed(r *http.Request, _ []byte) error {
	if r.Header.Get("Signature") != "right" {
		return errors.New("wrong signature")
	}
	return nil
}

// parked keeps dead letters in memory.
type parked struct {
	letters []nethttp.Letter
	err     error
}

func (p *parked) Park(_ context.Context, l nethttp.Letter) error {
	p.letters = append(p.letters, l)
	return p.err
}

func (w *world) webhook(t *testing.T, change ...func(*nethttp.WebhookConfig)) http.Handler {
	t.Helper()
	c := nethttp.WebhookConfig{Operation: events, Verify: signed, ID: nethttp.FieldID("data.id")}
	for _, f := range change {
		f(&c)
	}
	h, err := nethttp.NewWebhook(w.engine, c)
	require.NoError(t, err)
	return h.Wrap(w)
}

func delivery(body string, change ...func(*request)) request {
	q := request{method: http.MethodPost, target: "/hooks", body: body, header: http.Header{
		"Signature": {"right"}, "Content-Type": {"application/json"},
	}}
	for _, f := range change {
		f(&q)
	}
	return q
}

func TestAnEventIsHandledOnceAndAnsweredAtOnceFromThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) { rw.WriteHeader(http.StatusAccepted) }
		h := w.webhook(t)
		require.Equal(t, http.StatusAccepted, send(t.Context(), h, delivery(`{"data":{"id":"evt 1"},"tries":1}`)).Code)
		again := send(t.Context(), h, delivery(`{"tries":2,"data":{"id":"evt 1"}}`))
		require.Equal(t, http.StatusAccepted, again.Code, "counters in the body do not make it another event")
		require.Equal(t, "true", again.Header().Get(nethttp.HeaderReplayed))
		require.Equal(t, 1, w.count())
		send(t.Context(), h, delivery(`{"data":{"id":7}}`))
		require.Equal(t, 2, w.count())
	})
}

func TestAnEventWhoseAnswerIsNotKeptIsAnswered200(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) { _, _ = rw.Write(make([]byte, 2<<20)) }
		h := w.webhook(t)
		require.Equal(t, http.StatusOK, send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)).Code)
		again := send(t.Context(), h, delivery(`{"data":{"id":"1"}}`))
		require.Equal(t, http.StatusOK, again.Code)
		require.Empty(t, again.Body.String())
		require.Equal(t, 1, w.count())
	})
}

func TestADeliveryWaitsForTheFirstOneAndThenIsToldToComeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(_ http.ResponseWriter, _ *http.Request, _ int) { pass(8 * time.Second) }
		h := w.webhook(t)
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)) }()
		synctest.Wait()
		start := time.Now()
		early := send(t.Context(), h, delivery(`{"data":{"id":"1"}}`))
		requireProblem(t, early, http.StatusServiceUnavailable, "in-progress")
		require.NotEmpty(t, early.Header().Get("Retry-After"))
		require.InDelta(t, 5, time.Since(start).Seconds(), 1.1)
		late := send(t.Context(), h, delivery(`{"data":{"id":"1"}}`))
		require.Equal(t, http.StatusOK, late.Code)
		require.Equal(t, http.StatusOK, (<-first).Code)
		require.Equal(t, 1, w.count())
	})
}

func TestAnEventThatNobodyKnowsOfIs503AndADeadLetter(t *testing.T) { // A05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) } //nolint:forbidigo // stands for a crash
		var log bytes.Buffer
		keeper := &parked{}
		h := w.webhook(t, func(c *nethttp.WebhookConfig) {
			c.Park, c.Logger = keeper, slog.New(slog.NewTextHandler(&log, nil))
		})
		require.Panics(t, func() { send(t.Context(), h, delivery(`{"data":{"id":"secret 1"}}`)) })
		for range 2 {
			pass(5 * time.Minute)
			rec := send(t.Context(), h, delivery(`{"data":{"id":"secret 1"}}`))
			requireProblem(t, rec, http.StatusServiceUnavailable, "outcome-unknown")
			require.NotEmpty(t, rec.Header().Get("Retry-After"))
			keeper.err = errors.New("no room")
		}
		require.Len(t, keeper.letters, 2)
		letter := keeper.letters[0]
		require.Equal(t, guard.RecordID(letter.Identity), letter.RecordID)
		require.Equal(t, "secret 1", string(letter.Identity.GetKey()))
		require.JSONEq(t, `{"data":{"id":"secret 1"}}`, string(letter.Body))
		require.Equal(t, "/hooks", letter.Path)
		require.Equal(t, 1, w.count())
		require.Contains(t, log.String(), "could not be kept")
		require.NotContains(t, log.String(), "secret")
	})
}

func TestAnEventThatFailedWithNothingAppliedRunsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, r *http.Request, n int) {
			switch n {
			case 1:
				rw.WriteHeader(http.StatusUnprocessableEntity)
			case 2:
				nethttp.SayNotApplied(r.Context())
				rw.WriteHeader(http.StatusInternalServerError)
			}
		}
		h := w.webhook(t)
		for _, want := range []int{422, 500, 200, 200} {
			require.Equal(t, want, send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)).Code)
		}
		require.Equal(t, 3, w.count(), "a failure is not repeated, and frees the event")
	})
}

func TestARedirectIsNoSuccessOfAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) { http.Redirect(rw, r, "/login", http.StatusFound) }
		h := w.webhook(t)
		require.Equal(t, http.StatusFound, send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)).Code)
		requireProblem(t, send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)), http.StatusServiceUnavailable, "outcome-unknown")
		require.Equal(t, 1, w.count())
	})
}

func TestDeliveriesThatAreRefusedAreNever2xx(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		amount := func(c *nethttp.WebhookConfig) {
			c.Fingerprint = func(body []byte) ([]byte, error) {
				if !bytes.HasPrefix(body, []byte("{")) {
					return nil, errors.New("no object")
				}
				return body[len(body)-2:], nil
			}
		}
		byHeader := func(c *nethttp.WebhookConfig) { c.ID = nethttp.HeaderID("Event-Id") }
		h := w.webhook(t, amount)
		requireProblem(t, send(t.Context(), h, delivery(`{"data":{"id":"1"}}`, with("Signature", "wrong"))), http.StatusUnauthorized, "")
		for _, body := range []string{``, `[]`, `{}`, `{"data":{}}`, `{"data":{"id":null}}`, `{"data":{"id":{}}}`, `{"data":{"id":true}}`, `{"data":7}`} {
			requireProblem(t, send(t.Context(), h, delivery(body)), http.StatusBadRequest, "key-required")
		}
		requireProblem(t, send(t.Context(), h, delivery(`{"data":{"id":" 1"}}`)), http.StatusBadRequest, "key-invalid")
		requireProblem(t, send(t.Context(), h, delivery(` {"data":{"id":"1"}}`)), http.StatusBadRequest, "input-invalid")
		require.Zero(t, w.count())

		require.Equal(t, http.StatusCreated, send(t.Context(), h, delivery(`{"data":{"id":"1"},"amount":1}`)).Code)
		requireProblem(t, send(t.Context(), h, delivery(`{"data":{"id":"1"},"amount":2}`)), http.StatusUnprocessableEntity, "key-reused")
		headed := w.webhook(t, byHeader)
		requireProblem(t, send(t.Context(), headed, delivery(`{}`)), http.StatusBadRequest, "key-required")
		require.Equal(t, http.StatusCreated, send(t.Context(), headed, delivery(`{}`, with("Event-Id", "2"))).Code)
		require.Equal(t, 2, w.count())

		w.down.Store(true)
		requireProblem(t, send(t.Context(), headed, delivery(`{}`, with("Event-Id", "3"))), http.StatusServiceUnavailable, "store-unavailable")
		w.down.Store(false)
		pass(2 * time.Hour)
		requireProblem(t, send(t.Context(), headed, delivery(`{}`, with("Event-Id", "2"))), http.StatusUnprocessableEntity, "key-expired")
		require.Equal(t, 2, w.count())
	})
}

func TestAnEventIsSettledByItsReconciler(t *testing.T) { // A05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(_ http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				panic(http.ErrAbortHandler) //nolint:forbidigo // stands for a crash
			}
		}
		h := w.webhook(t, func(c *nethttp.WebhookConfig) {
			c.Route.Basis = dedupv1.Basis_BASIS_FENCED
			c.Route.Reconciler = func(r *http.Request) guard.Reconciler {
				return func(context.Context, guard.Attempt) (guard.Verdict, error) {
					_, err := io.ReadAll(r.Body)
					return guard.NotApplied(), err
				}
			}
		})
		require.Panics(t, func() { send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)) })
		require.Equal(t, http.StatusOK, send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)).Code)
		require.Equal(t, 2, w.count())
	})
}

func TestAWebhookNeedsASignatureAndAName(t *testing.T) {
	t.Parallel()
	_, err := nethttp.NewWebhook(nil, nethttp.WebhookConfig{Route: nethttp.Route{Policy: &dedupv1.MethodPolicy{FailOpen: true}}})
	for _, fault := range []string{"engine", "operation", "signature", "names an event", "fail_open"} {
		require.ErrorContains(t, err, fault)
	}
}

func TestAnUnknownEventIsKeptWithDedupd(t *testing.T) { // A05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) } //nolint:forbidigo // stands for a crash
		letters := dedupv1.NewDeadLetterServiceClient(w.dedupd.Conn())
		parker, err := guard.NewParker(guard.ParkerConfig{DeadLetters: letters})
		require.NoError(t, err)
		t.Cleanup(parker.Close)
		h := w.webhook(t, func(c *nethttp.WebhookConfig) { c.Park = nethttp.ParkWith(parker) })
		require.Panics(t, func() { send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)) })
		for range 3 {
			pass(5 * time.Minute)
			requireProblem(t, send(t.Context(), h, delivery(`{"data":{"id":"1"}}`)), http.StatusServiceUnavailable, "outcome-unknown")
		}
		list, err := letters.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetEntries(), 1, "one entry, however often it is told")
		require.Equal(t, int64(3), list.GetEntries()[0].GetCount())
		require.Equal(t, "1", string(list.GetEntries()[0].GetIdentity().GetKey()))
	})
}
