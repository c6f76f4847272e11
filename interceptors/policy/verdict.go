package policy

import (
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// Verdict is what the end of a try says about the server.
type Verdict uint8

const (
	// Neutral says nothing about it: the try counts neither way and gives a probe's place
	// back. It is the zero value.
	Neutral Verdict = iota
	// Well means that it answered, whether or not the caller likes the answer.
	Well
	// Ill means that it could not be reached, did not answer in time, or failed.
	Ill
)

// String returns the lower-case name of v.
func (v Verdict) String() string { return name(int(v), "neutral", "well", "ill") }

// VerdictOf says what a try's end tells about the server, by the same rules in
// every state of the breaker.
//
//   - Ill: UNAVAILABLE; of a request that was sent, DEADLINE_EXCEEDED, INTERNAL
//     and UNKNOWN.
//   - Neutral: the caller's cancel and every other CANCELLED, a deadline that
//     passed before anything was sent, INTERNAL and UNKNOWN after the caller had
//     left, a message too large, DATA_LOSS, a business code that the transport
//     made up (a reset stream, a gateway's 403), and whatever was made on this
//     side before anything was sent.
//   - Well: success and every other answer: business errors, quota, and the
//     refusals of dedupd that came over the wire.
//
// A deadline that passes after the request was sent is Ill, whosever deadline
// it is: the server had the call and did not answer. Where nobody watched what
// was sent, a request counts as sent, so look at the context before a try.
func VerdictOf(t Try) Verdict {
	if t.Err == nil {
		return Well
	}
	s := StatusOf(t.Err)
	unsent := t.Sent == SentNothing
	p := s.Proto()
	if r, ours := refusalIn(p); ours && !r.Nested {
		// Only what came over the wire tells of the server: the breaker and a
		// guard on this side refuse too.
		if t.Sent == SentHeader || t.Sent == SentMessage {
			return Well
		}
		return Neutral
	}
	if tooLarge(p) != sizeFine {
		return Neutral
	}
	switch s.Code() {
	case codes.Unavailable:
		return Ill
	case codes.DeadlineExceeded:
		return unless(unsent, Ill)
	case codes.Canceled, codes.DataLoss:
		return Neutral
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted, codes.OutOfRange,
		codes.Unimplemented, codes.Unauthenticated:
		return unless(unsent || byTransport(p), Well)
	case codes.Internal, codes.Unknown:
	}
	return unless(unsent || t.CallerDone, Ill) // a code that gRPC does not define means UNKNOWN
}

func unless(silent bool, v Verdict) Verdict {
	if silent {
		return Neutral
	}
	return v
}

// openError is what a call gets that a breaker holds back.
func openError(service, method string, left time.Duration) error {
	s := status.New(codes.Unavailable, fmt.Sprintf(
		"nothing was sent: too many calls of %s failed; try again in %v", service, left.Round(time.Millisecond)))
	detailed, err := s.WithDetails(
		&errdetails.ErrorInfo{
			Reason:   ReasonName(dedupv1.Reason_REASON_BREAKER_OPEN),
			Domain:   Domain,
			Metadata: map[string]string{MetaOperation: method, MetaEffect: EffectNone.String()},
		},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(left)},
	)
	if err != nil { // a method name that is not UTF-8: the code is better than nothing
		return s.Err()
	}
	return detailed.Err()
}
