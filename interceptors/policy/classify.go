package policy

import (
	"strconv"
	"strings"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// Sent says how much of a request left the client, as gRPC told of it.
type Sent uint8

const (
	// SentUnseen is the zero value: nobody watched, so all of it may have.
	SentUnseen Sent = iota
	// SentNothing means that no header was sent, as gRPC said of this very try.
	SentNothing
	// SentHeader means that a header was sent, but no message: no unary handler
	// started.
	SentHeader
	// SentMessage means that the message may have been sent.
	SentMessage
)

// String returns the lower-case name of s.
func (s Sent) String() string { return name(int(s), "unseen", "nothing", "header", "message") }

// Try is how one try of a call ended.
type Try struct {
	// Err is what the call returned; nil is success.
	Err error
	// Sent is how much of the request left the client.
	Sent Sent
	// CallerDone: the caller's own context has ended. A deadline of the single
	// try is not the caller's.
	CallerDone bool
	// Pushback holds the values of the trailer grpc-retry-pushback-ms.
	Pushback []string
}

// Answer is what a try's end means.
type Answer struct {
	// Retry is whether to try again.
	Retry Retry
	// Effect is what the try may have applied.
	Effect Effect
	// Reason is dedupd's reason, where the error is its own; else unspecified.
	Reason dedupv1.Reason
	// Hint is the least wait that the server asks for; HasHint tells an asked-for
	// zero from none.
	Hint    time.Duration
	HasHint bool
}

// Classify says what the end of a try means to the client that made it.
func (t Table) Classify(try Try) Answer {
	if try.Err == nil { // nearly every call ends here
		row := t.rows[codes.OK]
		return Answer{Retry: row.Retry, Effect: row.Effect}
	}
	s := StatusOf(try.Err)
	row := t.Row(s.Code())
	answer := Answer{Retry: row.Retry, Effect: row.Effect}
	p := s.Proto()
	answer.Hint, answer.HasHint = retryAfterIn(p)
	if refusal, ours := refusalIn(p); ours {
		answer.applyRefusal(refusal)
	} else {
		answer.applyWording(p, try.Sent)
		if try.Sent == SentNothing {
			answer.Effect = EffectNone
		}
	}
	answer.applyPushback(try.Pushback)
	if try.CallerDone && answer.Retry != Permanent {
		answer.Retry = Stop
	}
	return answer
}

// Ending says what a handler's return means for its record, by the error alone.
// It is no more than Unknown wherever the error tells of a further call whose
// outcome is not known to be nothing.
func (t Table) Ending(err error) Ending {
	s := StatusOf(err)
	ending := t.Row(s.Code()).Ending
	if ending == Completed {
		return ending
	}
	p := s.Proto()
	if refusal, ours := refusalIn(p); ours && refusalEffect(refusal) != EffectNone {
		return Unknown
	}
	if tooLarge(p) != sizeFine || byTransport(p) {
		return Unknown
	}
	return ending
}

func (a *Answer) applyRefusal(r Refusal) {
	effect := refusalEffect(r)
	if r.Nested {
		// The plain code of the application, except that "unknown" further down
		// is no less unknown up here.
		a.Effect = max(a.Effect, effect)
		return
	}
	a.Reason, a.Effect = r.Reason, effect
	switch r.Reason {
	case dedupv1.Reason_REASON_IN_PROGRESS:
		a.Retry = Wait
	case dedupv1.Reason_REASON_OUTCOME_UNKNOWN:
		a.Retry = Permanent
		if a.HasHint {
			a.Retry = Wait
		}
	case dedupv1.Reason_REASON_STORE_UNAVAILABLE, dedupv1.Reason_REASON_BREAKER_OPEN:
		a.Retry = Transient
	case dedupv1.Reason_REASON_KEY_REUSED, dedupv1.Reason_REASON_KEY_EXPIRED,
		dedupv1.Reason_REASON_KEY_REQUIRED, dedupv1.Reason_REASON_KEY_INVALID,
		dedupv1.Reason_REASON_INPUT_INVALID, dedupv1.Reason_REASON_OUTCOME_NOT_STORED,
		dedupv1.Reason_REASON_STALE_HOLDER, dedupv1.Reason_REASON_NOT_RECONCILED,
		dedupv1.Reason_REASON_RECORD_CHANGED, dedupv1.Reason_REASON_ENTRY_NOT_FOUND,
		dedupv1.Reason_REASON_ENTRY_CHANGED:
		a.Retry = Permanent
	case dedupv1.Reason_REASON_QUOTA_EXCEEDED:
		a.Retry = Transient
	case dedupv1.Reason_REASON_BUDGET_SPENT, // names a counter: no error has it
		dedupv1.Reason_REASON_UNSPECIFIED: // of a later version: its code says it
	}
}

// refusalEffect says what a refused call may have left behind.
func refusalEffect(r Refusal) Effect {
	if r.Effect != EffectAsTable {
		return r.Effect
	}
	switch r.Reason {
	case dedupv1.Reason_REASON_KEY_REUSED, dedupv1.Reason_REASON_KEY_EXPIRED,
		dedupv1.Reason_REASON_KEY_REQUIRED, dedupv1.Reason_REASON_KEY_INVALID,
		dedupv1.Reason_REASON_INPUT_INVALID, dedupv1.Reason_REASON_NOT_RECONCILED,
		dedupv1.Reason_REASON_RECORD_CHANGED, dedupv1.Reason_REASON_BREAKER_OPEN,
		dedupv1.Reason_REASON_QUOTA_EXCEEDED, dedupv1.Reason_REASON_ENTRY_NOT_FOUND,
		dedupv1.Reason_REASON_ENTRY_CHANGED:
		return EffectNone
	case dedupv1.Reason_REASON_OUTCOME_NOT_STORED:
		return EffectApplied
	case dedupv1.Reason_REASON_IN_PROGRESS, // somebody is at it right now
		dedupv1.Reason_REASON_OUTCOME_UNKNOWN,
		dedupv1.Reason_REASON_STALE_HOLDER,      // a run that lost its record has run
		dedupv1.Reason_REASON_STORE_UNAVAILABLE, // before or after the handler: it does not say
		dedupv1.Reason_REASON_BUDGET_SPENT,      // names a counter: no error has it
		dedupv1.Reason_REASON_UNSPECIFIED:
	}
	return EffectUnknown
}

// applyWording corrects what a code says by gRPC's own wordings.
func (a *Answer) applyWording(s *statuspb.Status, sent Sent) {
	switch tooLarge(s) {
	case sizeSend:
		// A server whose answer is too large uses the very words of a client
		// whose request is. Only "no message was seen" tells them apart.
		a.Retry, a.Effect = Permanent, EffectUnknown
		if sent == SentNothing || sent == SentHeader {
			a.Effect = EffectNone
		}
	case sizeOther:
		a.Retry, a.Effect = Permanent, EffectUnknown
	case sizeFine:
		if byTransport(s) {
			a.Effect = max(a.Effect, EffectUnknown)
		}
	}
}

// applyPushback reads grpc-retry-pushback-ms as gRPC defines it: the wait before
// the next try in milliseconds; negative, unreadable or repeated: no next try.
func (a *Answer) applyPushback(values []string) {
	if len(values) == 0 {
		return
	}
	ms, err := strconv.ParseInt(values[0], 10, 32)
	if len(values) > 1 || err != nil || ms < 0 {
		if a.Retry != Permanent {
			a.Retry = Stop
		}
		return
	}
	a.Hint, a.HasHint = max(a.Hint, time.Duration(ms)*time.Millisecond), true
}

// size is what a status says about the size of a message.
type size uint8

const (
	sizeFine  size = iota
	sizeSend       // the sender's own limit, on either side
	sizeOther      // any other limit
)

// tooLarge recognises the wordings by which gRPC libraries refuse a message for
// its size, wrapped or not. None of them tells a request from an answer.
func tooLarge(s *statuspb.Status) size {
	msg := strings.ToLower(s.GetMessage())
	contains := func(words string) bool { return strings.Contains(msg, words) }
	switch codes.Code(s.GetCode()) { //nolint:exhaustive,gosec // the codes that libraries use for it
	case codes.ResourceExhausted:
		if contains("trying to send message larger than max") { // grpc-go
			return sizeSend
		}
		if contains("message larger than max") || // grpc-go, C core, grpc-js
			contains("message after decompression larger than max") || // grpc-go
			contains("grpc: message too large") || // grpc-go, over 4 GiB
			contains("grpc message exceeds maximum size") || // grpc-java
			contains("message exceeds the maximum configured message size") || // grpc-dotnet
			contains("is larger than configured max") || contains("exceeds sendmaxbytes") { // connect
			return sizeOther
		}
	case codes.OutOfRange:
		if contains("message length too large: found") { // tonic
			return sizeOther
		}
	}
	return sizeFine
}

// byTransport reports whether the status was made from a reset stream or from
// something in between that speaks plain HTTP: its code is not the handler's,
// and the handler may have run.
func byTransport(s *statuspb.Status) bool {
	msg := s.GetMessage()
	return strings.Contains(msg, "stream terminated by RST_STREAM") ||
		strings.Contains(msg, "unexpected HTTP status code received from server")
}
