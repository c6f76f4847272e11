package nethttp

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ProblemBase starts the type of every problem that the middleware answers with
// (RFC 9457); the rest of it is one of the words of the README's table.
const ProblemBase = "https://github.com/dedupd/dedupd/tree/main/interceptors/nethttp#"

const (
	problemType = "application/problem+json"
	closedRetry = time.Second
)

// problem is a refusal as the caller sees it.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Reason is the protocol's word, without its prefix; empty where it has none.
	Reason string `json:"reason,omitempty"`
	// Record is the first 12 hexadecimal digits of the record's id.
	Record string `json:"record,omitempty"`
	// Age is how many seconds ago the run began that has the key.
	Age int64 `json:"age,omitempty"`
	// Effect is "none" or "unknown", where the reason alone does not tell.
	Effect string `json:"effect,omitempty"`

	retryAfter time.Duration
}

// kind is a row of the one table of refusals.
type kind struct {
	status      int
	word, title string
}

// kindOf is the table: reason, HTTP status, problem type.
func kindOf(reason dedupv1.Reason) kind {
	switch reason {
	case dedupv1.Reason_REASON_KEY_REQUIRED:
		return kind{http.StatusBadRequest, "key-required", "An Idempotency-Key is required"}
	case dedupv1.Reason_REASON_KEY_INVALID:
		return kind{http.StatusBadRequest, "key-invalid", "The Idempotency-Key is malformed"}
	case dedupv1.Reason_REASON_INPUT_INVALID:
		return kind{http.StatusBadRequest, "input-invalid", "The request is malformed"}
	case dedupv1.Reason_REASON_IN_PROGRESS:
		return kind{http.StatusConflict, "in-progress", "A request with this Idempotency-Key is in progress"}
	case dedupv1.Reason_REASON_OUTCOME_UNKNOWN, dedupv1.Reason_REASON_STALE_HOLDER:
		return kind{http.StatusConflict, "outcome-unknown", "The outcome of the first request is not known"}
	case dedupv1.Reason_REASON_KEY_REUSED:
		return kind{http.StatusUnprocessableEntity, "key-reused", "The Idempotency-Key was used for another request"}
	case dedupv1.Reason_REASON_KEY_EXPIRED:
		return kind{http.StatusUnprocessableEntity, "key-expired", "The Idempotency-Key is past its retention"}
	case dedupv1.Reason_REASON_OUTCOME_NOT_STORED:
		return kind{http.StatusGone, "outcome-not-stored", "The work was done, its response is not kept"}
	case dedupv1.Reason_REASON_STORE_UNAVAILABLE:
		return kind{http.StatusServiceUnavailable, "store-unavailable", "Requests with a key cannot be taken right now"}
	case dedupv1.Reason_REASON_NOT_RECONCILED, dedupv1.Reason_REASON_RECORD_CHANGED,
		dedupv1.Reason_REASON_BREAKER_OPEN, dedupv1.Reason_REASON_BUDGET_SPENT,
		dedupv1.Reason_REASON_QUOTA_EXCEEDED, dedupv1.Reason_REASON_ENTRY_NOT_FOUND, dedupv1.Reason_REASON_ENTRY_CHANGED, // never dedupd's word to a door
		dedupv1.Reason_REASON_UNSPECIFIED:
	}
	return kind{http.StatusServiceUnavailable, "refused", "The request was refused"}
}

func newProblem(reason dedupv1.Reason, detail string) *problem {
	k := kindOf(reason)
	p := &problem{Type: ProblemBase + k.word, Title: k.title, Status: k.status, Detail: detail}
	if reason != dedupv1.Reason_REASON_UNSPECIFIED {
		p.Reason = policy.ReasonName(reason)
	}
	return p
}

// plainProblem is one that says no more than its status.
func plainProblem(httpStatus int, detail string) *problem {
	return &problem{Type: "about:blank", Title: http.StatusText(httpStatus), Status: httpStatus, Detail: detail}
}

// problemOf turns the engine's error into what the caller gets.
func problemOf(err error) *problem {
	r, ok := errors.AsType[*guard.RefusalError](err)
	if !ok {
		return problemOfOther(err)
	}
	p := newProblem(r.Reason, r.Error())
	p.Record, p.Age, p.retryAfter = guard.ShortRecordID(r.RecordID), int64(r.Age/time.Second), r.RetryAfter
	if e := r.Effect(); e != policy.EffectAsTable {
		p.Effect = e.String()
	}
	if r.Reason == dedupv1.Reason_REASON_UNSPECIFIED && r.RetryAfter == 0 && status.Code(r.Err) != codes.ResourceExhausted {
		p.Status = http.StatusInternalServerError // asking again does not help
	}
	return p
}

func problemOfOther(err error) *problem {
	switch {
	case errors.Is(err, guard.ErrClosed):
		p := plainProblem(http.StatusServiceUnavailable, "the server is stopping")
		p.retryAfter = closedRetry
		return p
	case status.Code(err) == codes.Canceled, status.Code(err) == codes.DeadlineExceeded,
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		// Nobody reads it; but an empty response would be a 200.
		return plainProblem(http.StatusServiceUnavailable, "the caller left before anything ran")
	}
	return plainProblem(http.StatusInternalServerError, "the key cannot be looked at: the route's policy is broken")
}

// write sends p.
func (p *problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // it holds strings and numbers
		body = nil
	}
	h := w.Header()
	h.Set("Content-Type", problemType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	if p.retryAfter > 0 {
		h.Set("Retry-After", seconds(p.retryAfter))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // it fails where the client is gone
}

// seconds writes a wait as Retry-After has it: whole seconds, never too few.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
