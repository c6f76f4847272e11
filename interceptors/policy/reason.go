package policy

import (
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// What dedupd's refusals carry in google.rpc.ErrorInfo.
const (
	// Domain tells dedupd's refusals from the application's own errors.
	Domain = "dedup.v1"
	// MetaOperation and MetaRecord name the operation, and the first 12
	// hexadecimal digits of the record id.
	MetaOperation = "operation"
	MetaRecord    = "record"
	// MetaAge is how long ago the run began that has the key, with IN_PROGRESS: as
	// protobuf writes durations in JSON, in whole seconds ("93s").
	MetaAge = "age"
	// MetaNested is "true" on a refusal that a handler hands on from further
	// down: it says nothing about the call that returned it.
	MetaNested = "nested"
	// MetaEntry is the id, in hexadecimal, of the dead letter that waits for
	// somebody to settle it.
	MetaEntry = "entry"
	// MetaEffect is "none", "unknown" or "applied": what the refused call left
	// behind, where the reason alone does not tell.
	MetaEffect = "effect"

	nestedTrue   = "true"
	reasonPrefix = "REASON_"
)

// StatusOf returns the status that a gRPC server sends for a handler's err: the
// status in err's chain with err's whole text as its message where it is
// wrapped, the code of a context error, else UNKNOWN. Two things differ, so
// that the first answer and its replay are equal: an error whose status claims
// OK, which gRPC would send as a success without a response, is UNKNOWN, and
// bytes of the message that are not UTF-8 become U+FFFD here rather than on the
// wire, where they would cost the details. A nil err has status OK.
func StatusOf(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	s, ok := status.FromError(err)
	switch {
	case !ok:
		s = status.FromContextError(err)
	case s.Code() == codes.OK:
		s = status.New(codes.Unknown, err.Error())
	}
	if msg := s.Message(); !utf8.ValidString(msg) {
		p := s.Proto()
		p.Message = replaceInvalid(msg)
		s = status.FromProto(p)
	}
	return s
}

// Refusal is what the status of an error says of dedupd.
type Refusal struct {
	// Reason is the refusal's reason; unspecified for one that this build does
	// not know.
	Reason dedupv1.Reason
	// Nested: a handler handed it on from further down.
	Nested bool
	// Effect is what the refusal states in its metadata; zero if it does not.
	Effect Effect
	// Operation and Record name the record, for logs: the operation, and the
	// first 12 hexadecimal digits of the record id. Either may be empty.
	Operation, Record string
	// Entry is the id, in hexadecimal, of the record's open dead letter, if the
	// refusal names one.
	Entry string
}

// RefusalOf returns what the first ErrorInfo of dedupd's domain in err says, and
// whether there is one. Of a refusal and a nested one, the refusal counts.
func RefusalOf(err error) (Refusal, bool) {
	if err == nil {
		return Refusal{}, false
	}
	return refusalIn(StatusOf(err).Proto())
}

// ReasonOf returns the reason of a refusal that dedupd, or an interceptor in
// front of the called handler, made; false for the application's own errors and
// for refusals that a handler handed on from further down. The reason is
// unspecified where this build does not know it.
func ReasonOf(err error) (dedupv1.Reason, bool) {
	r, ok := RefusalOf(err)
	if !ok || r.Nested {
		return dedupv1.Reason_REASON_UNSPECIFIED, false
	}
	return r.Reason, true
}

// RetryAfter returns the wait that err's RetryInfo asks for, and whether it has
// one. A RetryInfo without a valid delay of zero or more counts as none.
func RetryAfter(err error) (time.Duration, bool) {
	if err == nil {
		return 0, false
	}
	return retryAfterIn(StatusOf(err).Proto())
}

func refusalIn(s *statuspb.Status) (found Refusal, ok bool) {
	for _, d := range s.GetDetails() {
		// An ErrorInfo that cannot be read is nobody's.
		var info errdetails.ErrorInfo
		if !d.MessageIs(&info) || proto.Unmarshal(d.GetValue(), &info) != nil || info.GetDomain() != Domain {
			continue
		}
		r := Refusal{
			Reason:    ReasonNamed(info.GetReason()),
			Nested:    info.GetMetadata()[MetaNested] == nestedTrue,
			Effect:    EffectNamed(info.GetMetadata()[MetaEffect]),
			Operation: info.GetMetadata()[MetaOperation],
			Record:    info.GetMetadata()[MetaRecord],
			Entry:     info.GetMetadata()[MetaEntry],
		}
		if !r.Nested {
			return r, true
		}
		if !ok {
			found, ok = r, true
		}
	}
	return found, ok
}

// ReasonName is how a reason is written on the wire, without its prefix.
func ReasonName(r dedupv1.Reason) string { return strings.TrimPrefix(r.String(), reasonPrefix) }

// ReasonNamed returns the reason of that name; unspecified for one that this
// build does not know.
func ReasonNamed(name string) dedupv1.Reason {
	return dedupv1.Reason(dedupv1.Reason_value[reasonPrefix+name])
}

// EffectNamed returns the effect that a refusal states by a word; EffectAsTable
// for none, unknown for a word of a later version.
func EffectNamed(word string) Effect {
	switch word {
	case EffectNone.String():
		return EffectNone
	case EffectApplied.String():
		return EffectApplied
	case "":
		return EffectAsTable
	default: // no promise
		return EffectUnknown
	}
}

func retryAfterIn(s *statuspb.Status) (time.Duration, bool) {
	for _, d := range s.GetDetails() {
		var info errdetails.RetryInfo
		if !d.MessageIs(&info) || proto.Unmarshal(d.GetValue(), &info) != nil {
			continue
		}
		delay := info.GetRetryDelay()
		if delay.CheckValid() != nil || delay.AsDuration() < 0 {
			continue
		}
		return delay.AsDuration(), true
	}
	return 0, false
}

// replaceInvalid does what gRPC's percent-encoding does: one U+FFFD for each
// byte that is not part of valid UTF-8.
func replaceInvalid(s string) string {
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}
