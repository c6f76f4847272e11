package nethttp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Route is the policy of the requests that a pattern matches. Zero fields mean
// their defaults.
type Route struct {
	// Policy is what a gRPC method says in its proto option: whether keys are taken
	// (OPTIONAL unless set), the operation, lease, retention, rerun_safe, what
	// errors mean, fail_open, caller_cancels, and which headers a replay repeats
	// (replay_headers, lower case). replay_trailers and key_fields have no meaning
	// here. Unless named, the operation is "METHOD pattern".
	Policy *dedupv1.MethodPolicy
	// MaxRun ends the handler's context; zero means guard.DefaultMaxRun.
	MaxRun time.Duration
	// Wait is how long a repeat waits for a run that is going on; zero: it is
	// answered 409 at once, as the draft has it.
	Wait time.Duration
	// MaxBody is the largest request body in bytes; zero means the middleware's.
	MaxBody int64
	// Errors says what the handler's failing statuses mean, by the code that
	// policy.CodeOfHTTP gives them; nil means policy.Default.
	Errors *policy.Table
	// Fingerprint tells requests under one key apart; nil means the function of
	// that name. Set it to leave out fields that change between attempts, or to
	// interceptors.Fingerprint of the message that the body holds, where a gRPC
	// method shares the operation. An error of it is the client's: 400.
	Fingerprint func(operation string, r *http.Request, body []byte) (*dedupv1.Fingerprint, error)
	// Reconciler returns what finds out how an earlier run of this very request
	// ended; the request's body can be read. Nil: an unknown outcome is refused, or
	// run again if the policy is rerun_safe. Use Response.Outcome for guard.Applied.
	Reconciler func(r *http.Request) guard.Reconciler
	// Basis is what Reconciler rests on. It is set with it, and only with it.
	Basis dedupv1.Basis
}

// route is a Route, ready to use.
type route struct {
	Route
	pattern string // "" for those that no pattern matches
	keys    dedupv1.KeyRule
	errors  policy.Table
	headers []string // sorted
	hold    time.Duration
	shared  bool // another route of the operation reruns or reconciles
}

func newRoute(pattern string, r Route, maxBody int64, hold time.Duration) (*route, error) {
	out := &route{Route: r, pattern: pattern, keys: r.Policy.GetKeys(), errors: policy.Default(), hold: hold}
	out.MaxBody = cmp.Or(r.MaxBody, maxBody)
	if out.keys == dedupv1.KeyRule_KEY_RULE_UNSPECIFIED {
		out.keys = dedupv1.KeyRule_KEY_RULE_OPTIONAL
	}
	if r.Errors != nil {
		out.errors = *r.Errors
	}
	if r.Policy.GetErrors() == dedupv1.ErrorRule_ERROR_RULE_UNKNOWN {
		out.errors = out.errors.ErrorsUnknown()
	}
	var err error
	if out.headers, err = replayable(r.Policy.GetReplayHeaders()); err == nil {
		err = out.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("route %q: %w", pattern, err)
	}
	return out, nil
}

func (t *route) validate() error {
	switch {
	case dedupv1.KeyRule_name[int32(t.keys)] == "":
		return fmt.Errorf("the key rule %d is of a later version, update the middleware", t.keys)
	case t.MaxRun < 0 || t.Wait < 0 || t.MaxBody < 0:
		return errors.New("times and sizes must not be negative")
	case (t.Reconciler == nil) != (t.Basis == dedupv1.Basis_BASIS_UNSPECIFIED):
		return errors.New("a reconciler names what it rests on: BOUNDED, FENCED or INBOX")
	case len(t.Policy.GetReplayTrailers()) > 0 || len(t.Policy.GetKeyFields()) > 0:
		return errors.New("replay_trailers and key_fields are for gRPC methods, take them off")
	}
	return guard.CheckLimits(t.Policy.GetOperation(), t.Policy.GetLease().AsDuration(), t.Policy.GetRetention().AsDuration())
}

// runsAgain reports whether a later run may answer differently.
func (t *route) runsAgain() bool { return t.Policy.GetRerunSafe() || t.Reconciler != nil }

// markShared finds the routes whose operation a later run of another may answer.
func markShared(routes []*route) {
	for _, t := range routes {
		name := t.Policy.GetOperation()
		for _, other := range routes {
			t.shared = t.shared || other != t && name != "" && other.Policy.GetOperation() == name && other.runsAgain()
		}
	}
}

// takes is the key rule for a request: safe methods have no effect to deduplicate,
// unless the pattern itself names one.
func (t *route) takes(r *http.Request) dedupv1.KeyRule {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		if !strings.HasPrefix(t.pattern, r.Method+" ") {
			return dedupv1.KeyRule_KEY_RULE_OFF
		}
	}
	return t.keys
}

// operation names what the request's key is for.
func (t *route) operation(r *http.Request) string {
	if name := t.Policy.GetOperation(); name != "" {
		return name
	}
	pattern := cmp.Or(t.pattern, r.Pattern, canonicalPath(r.URL))
	name := pattern
	if !strings.HasPrefix(pattern, r.Method+" ") {
		if _, path, ok := strings.Cut(pattern, " "); ok { // HEAD, by a pattern for GET
			pattern = path
		}
		name = r.Method + " " + pattern
	}
	if len(name) > guard.MaxOperation || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c > '~' }) {
		sum := sha256.Sum256([]byte(name))
		method := r.Method[:min(len(r.Method), 32)]
		if !printable(method) {
			method = "?"
		}
		return method + " sha256:" + hex.EncodeToString(sum[:])
	}
	return name
}

// fingerprint tells the request apart.
func (t *route) fingerprint(operation string, r *http.Request, body []byte) (*dedupv1.Fingerprint, error) {
	if t.Fingerprint == nil {
		return Fingerprint(operation, r, body), nil
	}
	fp, err := t.Fingerprint(operation, r, body)
	if err == nil && fp == nil {
		err = errors.New("the route's fingerprint is missing")
	}
	return proto.CloneOf(fp), err
}

// call is what the route says of every request to the engine.
func (t *route) call(operation string, fp *dedupv1.Fingerprint) guard.Call {
	p := t.Policy
	return guard.Call{
		Operation: operation, Fingerprints: []*dedupv1.Fingerprint{fp},
		Lease: p.GetLease().AsDuration(), MaxRun: t.MaxRun, Wait: t.Wait, RefuseAtOnce: t.Wait == 0,
		Retention: p.GetRetention().AsDuration(), RerunSafe: p.GetRerunSafe(), SharedWithRerun: t.shared,
		Basis: t.Basis, CallerCancels: p.GetCallerCancels(),
	}
}
