package policy

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// CodeOfHTTP returns the status code whose row of the table an HTTP status has:
// what it is worth to a client, and what a handler means by it. Statuses below
// 400 are OK; of the others those that are not named mean FAILED_PRECONDITION
// below 500, and INTERNAL from there on.
func CodeOfHTTP(httpStatus int) codes.Code {
	switch httpStatus {
	case http.StatusUnauthorized, http.StatusProxyAuthRequired:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound, http.StatusGone:
		return codes.NotFound
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType, http.StatusRequestEntityTooLarge:
		return codes.InvalidArgument
	case http.StatusRequestedRangeNotSatisfiable:
		return codes.OutOfRange
	case http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusTooEarly:
		return codes.Aborted
	case http.StatusRequestTimeout, http.StatusServiceUnavailable:
		// A server that gives up on a request may have begun: to a client as unknown
		// as UNAVAILABLE is.
		return codes.Unavailable
	case http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return codes.Unimplemented
	case http.StatusBadGateway:
		return codes.Unknown
	case http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	case statusClientClosed:
		return codes.Canceled
	}
	switch {
	case httpStatus >= http.StatusInternalServerError:
		return codes.Internal
	case httpStatus >= http.StatusBadRequest:
		return codes.FailedPrecondition
	}
	return codes.OK
}

// statusClientClosed is what proxies note of a client that left.
const statusClientClosed = 499

// HTTPRetryAfter reads a Retry-After header: whole seconds, or a date that is
// told by now. ok is false where there is none that can be read; a date that has
// passed is zero.
func HTTPRetryAfter(value string, now time.Time) (wait time.Duration, ok bool) {
	const longest = 365 * 24 * 3600 // seconds
	value = strings.TrimSpace(value)
	if n, err := strconv.ParseUint(value, 10, 63); err == nil {
		return time.Duration(min(n, longest)) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return max(0, at.Sub(now)), true
}

// AnswerTo says what a refusal of dedupd's means to the client that got it, by
// whatever transport: hint is the wait that it asks for, hasHint whether it does.
func AnswerTo(r Refusal, hint time.Duration, hasHint bool) Answer {
	answer := Answer{Retry: Permanent, Effect: EffectUnknown, Hint: max(hint, 0), HasHint: hasHint}
	answer.applyRefusal(r)
	return answer
}
