package nethttp

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"strconv"
	"strings"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/headerlist"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const responseType = "type.googleapis.com/dedup.v1.HttpResponse"

// Response is an HTTP response as the middleware stores and repeats it.
type Response struct {
	// Status is the status code, 200-599.
	Status int
	// Header holds the headers. Of a stored one those that the route names, and
	// always Content-Type, Content-Encoding, Content-Language, Content-Location
	// and Location.
	Header http.Header
	// Body is the body's bytes.
	Body []byte
}

// alwaysKept are headers without which a stored body, or a 201, could not be read.
func alwaysKept() []string {
	return []string{"content-encoding", "content-language", "content-location", "location"}
}

// replayable returns the sorted names of the headers that a replay repeats.
func replayable(names []string) ([]string, error) {
	for _, name := range names {
		switch name {
		case "connection", "content-length", "date", "keep-alive", "trailer", "transfer-encoding", "upgrade", "retry-after":
			// They are about one message, not about its answer.
			return nil, &headerError{name: name}
		}
	}
	return headerlist.Names("header", append(alwaysKept(), names...))
}

type headerError struct{ name string }

func (e *headerError) Error() string {
	return "replay header " + strconv.Quote(e.name) + " belongs to one message and is made anew, take it off the list"
}

// Outcome returns what a response is stored as, for whoever completes a grant
// without the middleware: a reconciler (guard.Applied), or a process that work was
// handed over to (guard.Handed). A response of more than maxBytes, as the grant
// tells it, is left out whole: repeats then get 410 Gone. Headers are kept by
// name, in lower case, beside those that always are.
func (r *Response) Outcome(maxBytes int64, headers ...string) (*dedupv1.Outcome, error) {
	names, err := replayable(headers)
	if err != nil {
		return nil, err
	}
	return r.outcome(maxBytes, names), nil
}

// outcome stores r; names are lower case and sorted.
func (r *Response) outcome(maxBytes int64, names []string) *dedupv1.Outcome {
	o := &dedupv1.Outcome{Headers: headerlist.Metadata(storable(r.Header, names), names)}
	if code := policy.CodeOfHTTP(r.Status); code != codes.OK {
		o.Status = failure(code, r.Status)
	}
	value := marshal(&dedupv1.HttpResponse{
		Status: uint32(max(r.Status, 0)), ContentType: strings.ToValidUTF8(r.Header.Get("Content-Type"), "?"), Body: r.Body, //nolint:gosec // three digits
	})
	if int64(len(value)) > maxBytes {
		sum := sha256.Sum256(value)
		o.Result = &dedupv1.Outcome_Omitted{Omitted: &dedupv1.OmittedResponse{
			Size: int64(len(value)), Sha256: sum[:], TypeUrl: responseType,
		}}
		return o
	}
	o.Result = &dedupv1.Outcome_Response{Response: &dedupv1.Response{TypeUrl: responseType, Value: value}}
	return o
}

// failure is the outcome's status of a failing response, which says no more than
// its code.
func failure(code codes.Code, httpStatus int) []byte {
	return marshal(&statuspb.Status{
		Code: int32(code), Message: "HTTP " + strconv.Itoa(httpStatus), //nolint:gosec // one of 17
	})
}

// marshal cannot fail: the messages' strings are valid UTF-8.
func marshal(m proto.Message) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m)
	return b
}

// storable returns the named headers by lower-case name, without values that
// dedupd does not take: nothing but printable ASCII.
func storable(h http.Header, names []string) map[string][]string {
	out := map[string][]string{}
	for _, name := range names {
		values := h.Values(name)
		if !slices.ContainsFunc(values, func(v string) bool { return !printable(v) }) {
			out[name] = values
		}
	}
	return out
}

// storedResponse reads an outcome; false where it holds no HTTP response that this
// build can read: the answer is not there to be given.
func storedResponse(o *dedupv1.Outcome) (*Response, bool) {
	var m dedupv1.HttpResponse
	stored := o.GetResponse()
	if stored.GetTypeUrl() != responseType || proto.Unmarshal(stored.GetValue(), &m) != nil ||
		m.GetStatus() < http.StatusOK || m.GetStatus() > 599 {
		return nil, false
	}
	r := &Response{Status: int(m.GetStatus()), Header: http.Header{}, Body: m.GetBody()}
	for _, e := range o.GetHeaders() {
		if name := e.GetKey(); !headerlist.Denied(name) {
			r.Header.Add(name, string(e.GetValue()))
		}
	}
	if t := m.GetContentType(); t != "" {
		r.Header.Set("Content-Type", t)
	}
	return r, true
}

// write sends r.
func (r *Response) write(w http.ResponseWriter) {
	h := w.Header()
	trailers := false
	for name, values := range r.Header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			trailers = true
			continue
		}
		h[name] = values
	}
	if bodyAllowed(r.Status) && !trailers {
		h.Set("Content-Length", strconv.Itoa(len(r.Body)))
	}
	w.WriteHeader(r.Status)
	if bodyAllowed(r.Status) {
		_, _ = w.Write(r.Body) // it fails where the client is gone
	}
	for name, values := range r.Header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			h[name] = values
		}
	}
}

func bodyAllowed(status int) bool {
	return status >= http.StatusOK && status != http.StatusNoContent && status != http.StatusNotModified
}
