package nethttp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	// DefaultWebhookWait is how long a repeated delivery waits for the first one.
	DefaultWebhookWait = 5 * time.Second
	// webhookRetry is the hint of a 503 that dedupd gives no time for.
	webhookRetry = 5 * time.Second

	parkTime = 2 * time.Second
)

// EventID finds what names an event in a delivery: the same in every delivery of
// it, and in no other event's.
type EventID func(header http.Header, body []byte) (id string, err error)

// HeaderID takes the event's id from a header.
func HeaderID(name string) EventID {
	return func(header http.Header, _ []byte) (string, error) {
		values := header.Values(name)
		if len(values) != 1 {
			return "", fmt.Errorf("the delivery has no single %s header", name)
		}
		return values[0], nil
	}
}

// FieldID takes the event's id from a field of the JSON body: a string or a
// number. Dots lead into objects: "data.id".
func FieldID(path string) EventID {
	names := strings.Split(path, ".")
	return func(_ http.Header, body []byte) (string, error) {
		missing := fmt.Errorf("the delivery's JSON body has no %s that is a string or a number", path)
		raw := json.RawMessage(body)
		for _, name := range names {
			var object map[string]json.RawMessage
			if json.Unmarshal(raw, &object) != nil {
				return "", missing
			}
			raw = object[name]
		}
		var text string
		var number json.Number
		switch {
		case len(raw) == 0 || string(raw) == "null":
			return "", missing
		case json.Unmarshal(raw, &text) == nil:
			return text, nil
		case json.Unmarshal(raw, &number) == nil:
			return number.String(), nil
		}
		return "", missing
	}
}

// Letter is a delivery that nobody can answer for: its first run ended in the
// dark.
type Letter struct {
	// Identity and RecordID name the record.
	Identity *dedupv1.Identity
	RecordID []byte
	// Fingerprints are those that the record is looked up by.
	Fingerprints []*dedupv1.Fingerprint
	// Path is where the delivery was sent to.
	Path string
	// ContentType and Body are the delivery's. Headers are left out: they may hold
	// secrets.
	ContentType string
	Body        []byte
}

// Parker keeps dead letters: once for each record, however often it is told. An
// error is logged; the sender delivers again in any case.
type Parker interface {
	Park(ctx context.Context, l Letter) error
}

// WebhookConfig configures NewWebhook.
type WebhookConfig struct {
	// Operation names what the events are for, and whose: "webhook stripe". 1-255
	// bytes; required. Event ids of two operations never meet.
	Operation string
	// Verify checks the sender's signature over the very bytes of the body;
	// required, since whoever gets past it can use up event ids. An error is 401.
	Verify func(r *http.Request, body []byte) error
	// ID finds the event's id; required.
	ID EventID
	// Fingerprint returns what of a body must be the same in every delivery of an
	// event; nil: nothing but the id, since senders change counters and times
	// between deliveries. Another one under the same id is refused with 422.
	Fingerprint func(body []byte) ([]byte, error)
	// Route is the policy, as of any request. Its Wait is DefaultWebhookWait unless
	// set; keys, Fingerprint and fail_open have no meaning here.
	Route Route
	// Park keeps deliveries whose outcome stays unknown; nil: they are logged only.
	Park Parker
	// Logger takes what an operator should know; nil: nothing is logged.
	Logger *slog.Logger
}

// Webhook makes a receiver of events handle each of them once.
type Webhook struct {
	config WebhookConfig
	engine *guard.Engine
	route  *route
	log    *slog.Logger
}

// NewWebhook returns a receiver for the events of one sender. It returns every
// fault of the configuration at once.
//
//   - An event whose handler answered 2xx is answered so at once, without its
//     being run: by the stored response, or by an empty 200 where that is not kept.
//   - While the first delivery is being handled, another one waits, and is answered
//     503 with Retry-After if that takes too long: the sender delivers again.
//   - Where nobody knows what an earlier run did: 503, and a dead letter.
//   - Everything but 2xx of the handler is what it is in Middleware: a failure frees
//     the event where nothing was applied. No failure is repeated; the next delivery
//     runs. A 3xx is taken for a fault of the handler, whose outcome is unknown.
//
// No delivery is ever answered 2xx before its effect.
func NewWebhook(engine *guard.Engine, c WebhookConfig) (*Webhook, error) {
	var faults []error
	fault := func(wrong bool, text string) {
		if wrong {
			faults = append(faults, errors.New(text))
		}
	}
	fault(engine == nil, "the engine is nil, make one by guard.New")
	fault(c.Operation == "" || len(c.Operation) > guard.MaxOperation, "name the operation, by 1 to 255 bytes")
	fault(c.Verify == nil, "say how the sender's signature is checked")
	fault(c.ID == nil, "say what names an event: HeaderID or FieldID")
	fault(c.Route.Fingerprint != nil || c.Route.Policy.GetFailOpen() || c.Route.Policy.GetKeys() != 0 || c.Route.Policy.GetOperation() != "",
		"a webhook's route has no keys, operation, fingerprint and fail_open of its own")
	if c.Route.Wait == 0 {
		c.Route.Wait = DefaultWebhookWait
	}
	t, err := newRoute(c.Operation, c.Route, DefaultMaxBody, 0)
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, err
	}
	return &Webhook{config: c, engine: engine, route: t, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler))}, nil
}

// Wrap returns a handler that runs next once for each event.
func (h *Webhook) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, p := readBody(w, r, h.route.MaxBody)
		if p == nil && h.config.Verify(r, body) != nil {
			p = plainProblem(http.StatusUnauthorized, "the sender's signature is not right")
		}
		if p != nil {
			p.write(w)
			return
		}
		call, fault := h.call(r, body)
		if fault != nil {
			fault.write(w)
			return
		}
		x := &exchange{route: h.route, request: r, body: body, next: onlySuccess(next)}
		if h.route.Reconciler != nil {
			call.Reconciler = h.route.Reconciler(x.with(r.Context()))
		}
		res, err := h.engine.Do(r.Context(), call, x.run)
		if err != nil {
			h.refuse(w, r, call, body, err)
			return
		}
		if _, ok := storedResponse(res.Stored.GetOutcome()); res.Stored != nil && !ok {
			w.WriteHeader(http.StatusOK) // it was done, and senders read no bodies
			return
		}
		x.answer(w, res, nil)
	})
}

// call is what the engine is asked for a delivery.
func (h *Webhook) call(r *http.Request, body []byte) (guard.Call, *problem) {
	id, err := h.config.ID(r.Header, body)
	if err != nil {
		return guard.Call{}, newProblem(dedupv1.Reason_REASON_KEY_REQUIRED, err.Error())
	}
	if fault := keying.Fault(id); fault != "" {
		return guard.Call{}, newProblem(dedupv1.Reason_REASON_KEY_INVALID, "the event's id as a "+fault)
	}
	same := []byte(id)
	if h.config.Fingerprint != nil {
		if same, err = h.config.Fingerprint(body); err != nil {
			return guard.Call{}, newProblem(dedupv1.Reason_REASON_INPUT_INVALID, "the event cannot be told from others under its id")
		}
	}
	call := h.route.call(h.config.Operation, webhookFingerprint(h.config.Operation, same))
	call.Key = []byte(id)
	return call, nil
}

// refuse answers a delivery that was not handled: never by a 2xx.
func (h *Webhook) refuse(w http.ResponseWriter, r *http.Request, call guard.Call, body []byte, err error) {
	p := problemOf(err)
	if p.Status == http.StatusConflict { // in progress, or unknown: the sender is to come again
		p.Status = http.StatusServiceUnavailable
	}
	if p.Status == http.StatusServiceUnavailable && p.retryAfter == 0 {
		p.retryAfter = webhookRetry
	}
	if refusal, ok := errors.AsType[*guard.RefusalError](err); ok && refusal.Reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN {
		h.park(r, refusal, call, body)
	}
	p.write(w)
}

// park keeps a delivery of an event whose outcome is unknown.
func (h *Webhook) park(r *http.Request, refusal *guard.RefusalError, call guard.Call, body []byte) {
	h.log.LogAttrs(r.Context(), slog.LevelError, "nobody knows whether an event was handled; it is not run again until its record is settled",
		slog.String("operation", call.Operation), slog.String("record", guard.ShortRecordID(refusal.RecordID)))
	if h.config.Park == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), parkTime)
	defer cancel()
	err := h.config.Park.Park(ctx, Letter{
		Identity: &dedupv1.Identity{Namespace: h.engine.Namespace(), Operation: call.Operation, Caller: call.Caller, Key: call.Key},
		RecordID: refusal.RecordID, Fingerprints: call.Fingerprints,
		Path: r.URL.Path, ContentType: r.Header.Get("Content-Type"), Body: body,
	})
	if err != nil {
		h.log.LogAttrs(ctx, slog.LevelError, "the delivery could not be kept as a dead letter",
			slog.String("operation", call.Operation), slog.String("code", policy.StatusOf(err).Code().String()))
	}
}

// onlySuccess takes a redirect, which senders take for a failure, for a fault.
func onlySuccess(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if rec, ok := w.(*recorder); ok && rec.redirects() {
			SayOutcomeUnknown(r.Context())
		}
	})
}
