package nethttp_test

import (
	"context"
	"errors"
	"net/http"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
)

// accountOf stands for your authentication.
func accountOf(*http.Request) (string, error) { return "account 7", nil }

// How a public API takes the Idempotency-Key of its clients.
func ExampleNew() {
	protect := func(dedupd dedupv1.DedupServiceClient, api http.Handler) (http.Handler, error) {
		engine, err := guard.New(guard.Config{Dedup: dedupd, Namespace: "shop"}) // close it after the server
		if err != nil {
			return nil, err
		}
		keys, err := nethttp.New(engine,
			nethttp.WithCaller(accountOf),
			nethttp.WithRoute("POST /orders", nethttp.Route{Policy: &dedupv1.MethodPolicy{
				Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED, ReplayHeaders: []string{"etag"},
			}}),
			nethttp.WithRoute("POST /events/stream", nethttp.Route{Policy: &dedupv1.MethodPolicy{
				Keys: dedupv1.KeyRule_KEY_RULE_OFF, // it streams
			}}),
		)
		if err != nil {
			return nil, err
		}
		return keys.Wrap(api), nil
	}
	_ = protect
	// Output:
}

// How a receiver of webhooks handles each event once.
func ExampleNewWebhook() {
	receive := func(engine *guard.Engine, verify func(*http.Request, []byte) error, handle http.Handler) (http.Handler, error) {
		hook, err := nethttp.NewWebhook(engine, nethttp.WebhookConfig{
			Operation: "webhook payments", Verify: verify, ID: nethttp.FieldID("id"),
		})
		if err != nil {
			return nil, err
		}
		return hook.Wrap(handle), nil
	}
	_ = receive
	// Output:
}

// How a service calls one provider that takes keys, and one that does not.
func ExampleNewTransport() {
	client := func(engine *guard.Engine) (*http.Client, error) {
		transport, err := nethttp.NewTransport(nethttp.TransportConfig{Providers: map[string]nethttp.Provider{
			"api.payments.test": {Deduplicates: true, BareKeys: true},
			"api.letters.test":  {Guarded: &nethttp.Guarded{Engine: engine}},
		}})
		if err != nil {
			return nil, err
		}
		return &http.Client{Transport: transport}, nil
	}
	charge := func(ctx context.Context, c *http.Client, order string) error {
		key, err := interceptors.Key("charge", "order", order)
		if err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.payments.test/charges", nil)
		if err != nil {
			return err
		}
		if err := nethttp.SetKey(r, key); err != nil {
			return err
		}
		resp, err := c.Do(r)
		if errors.Is(err, interceptors.ErrOutcomeUnknown) {
			return err // ask again with the same key, whenever that is: it is safe
		}
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	_, _ = client, charge
	// Output:
}

// How a handler answers at once and lets a worker finish the work.
func Example_handoff() {
	accept := func(engine *guard.Engine, enqueue func(token string) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			token, err := guard.Handoff(r.Context(), 6*time.Hour)
			if err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if enqueue(token) != nil { // and it surely is not there
				if grant, err := engine.Resume(token); err == nil {
					_ = grant.Release(r.Context(), guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE})
				}
				w.WriteHeader(http.StatusServiceUnavailable) // sent as 409 in-progress: the next try runs
				return
			}
			w.WriteHeader(http.StatusAccepted) // repeats get 409 in-progress, then what the worker completes it with
		}
	}
	work := func(ctx context.Context, engine *guard.Engine, token string, do func(context.Context) error) error {
		grant, err := engine.Resume(token)
		if err != nil {
			return err
		}
		if err := do(ctx); err != nil {
			return grant.Release(ctx, guard.Ending{}) // unknown, unless you know better
		}
		outcome, err := (&nethttp.Response{Status: http.StatusCreated}).Outcome(grant.Attempt().MaxOutcomeBytes)
		if err != nil {
			return err
		}
		_, err = grant.Complete(ctx, outcome)
		return err
	}
	_, _ = accept, work
	// Output:
}
