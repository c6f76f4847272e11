package interceptors

import (
	"errors"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ReasonOf returns why dedupd, or an interceptor in front of the called handler,
// refused a call. It is false for the application's own errors, whatever their
// code, and for refusals that a handler handed on from a call of its own. The
// reason is REASON_UNSPECIFIED where it is of a later version.
func ReasonOf(err error) (dedupv1.Reason, bool) { return policy.ReasonOf(err) }

// RetryAfter returns how long a server asks to wait before the next try (its
// google.rpc.RetryInfo), and whether it asks.
func RetryAfter(err error) (time.Duration, bool) { return policy.RetryAfter(err) }

// refusal is an error of our own, made on either side of a call.
type refusal struct {
	reason    dedupv1.Reason
	message   string // never holds a key, a request or a response
	operation string // may be empty: not known yet
	record    []byte // the whole record id; may be empty
	entry     string // the dead letter's id in hexadecimal; may be empty
	// retryAfter, where hint is set, becomes RetryInfo.
	retryAfter time.Duration
	hint       bool
	// field, for INVALID_ARGUMENT, becomes a BadRequest violation.
	field string
	// age, if more than zero, is how long ago the run began that has the key.
	age time.Duration
	// effect is told where the reason alone does not tell what is left behind.
	effect policy.Effect
}

// code returns the status code that a reason travels with.
func (r refusal) code() codes.Code {
	switch r.reason {
	case dedupv1.Reason_REASON_IN_PROGRESS:
		return codes.Aborted
	case dedupv1.Reason_REASON_OUTCOME_UNKNOWN, dedupv1.Reason_REASON_KEY_REUSED,
		dedupv1.Reason_REASON_KEY_EXPIRED, dedupv1.Reason_REASON_STALE_HOLDER,
		dedupv1.Reason_REASON_NOT_RECONCILED, dedupv1.Reason_REASON_RECORD_CHANGED:
		return codes.FailedPrecondition
	case dedupv1.Reason_REASON_KEY_REQUIRED, dedupv1.Reason_REASON_KEY_INVALID,
		dedupv1.Reason_REASON_INPUT_INVALID:
		return codes.InvalidArgument
	case dedupv1.Reason_REASON_OUTCOME_NOT_STORED:
		return codes.DataLoss
	case dedupv1.Reason_REASON_STORE_UNAVAILABLE, dedupv1.Reason_REASON_BREAKER_OPEN:
		return codes.Unavailable
	case dedupv1.Reason_REASON_QUOTA_EXCEEDED:
		return codes.ResourceExhausted
	case dedupv1.Reason_REASON_ENTRY_NOT_FOUND:
		return codes.NotFound
	case dedupv1.Reason_REASON_ENTRY_CHANGED:
		return codes.FailedPrecondition
	case dedupv1.Reason_REASON_BUDGET_SPENT, // names a counter: no error has it
		dedupv1.Reason_REASON_UNSPECIFIED:
	}
	return codes.Unknown
}

// err returns r as a status error.
func (r refusal) err() error {
	info := &errdetails.ErrorInfo{
		Reason:   policy.ReasonName(r.reason),
		Domain:   policy.Domain,
		Metadata: map[string]string{},
	}
	if r.operation != "" {
		info.Metadata[policy.MetaOperation] = r.operation
	}
	if len(r.record) > 0 {
		info.Metadata[policy.MetaRecord] = guard.ShortRecordID(r.record)
	}
	if r.entry != "" {
		info.Metadata[policy.MetaEntry] = r.entry
	}
	if r.age > 0 {
		info.Metadata[policy.MetaAge] = strconv.FormatInt(int64(r.age/time.Second), 10) + "s"
	}
	if r.effect != policy.EffectAsTable {
		info.Metadata[policy.MetaEffect] = r.effect.String()
	}
	s := &statuspb.Status{Code: int32(r.code()), Message: r.message} //nolint:gosec // one of 17 codes
	s.Details = appendDetail(s.Details, info)
	if r.hint {
		s.Details = appendDetail(s.Details, &errdetails.RetryInfo{RetryDelay: durationpb.New(max(r.retryAfter, 0))})
	}
	if r.field != "" {
		s.Details = appendDetail(s.Details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: r.field, Description: r.message},
		}})
	}
	return status.FromProto(s).Err()
}

func appendDetail(details []*anypb.Any, m proto.Message) []*anypb.Any {
	d := new(anypb.Any)
	// It fails for text that is not UTF-8 only; a refusal without one of its
	// details is better than none.
	if err := anypb.MarshalFrom(d, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return details
	}
	return append(details, d)
}

// markNested marks every refusal in err, which a handler returns, as one from
// further down, so that no caller takes it for a refusal of the call itself.
// Other details stay as they are, byte for byte. Without a refusal in it, err
// comes back unchanged.
func markNested(err error) error {
	if err == nil {
		return nil
	}
	p := policy.StatusOf(err).Proto() // a copy
	marked := false
	for i, d := range p.GetDetails() {
		var info errdetails.ErrorInfo
		if !d.MessageIs(&info) || proto.Unmarshal(d.GetValue(), &info) != nil ||
			info.GetDomain() != policy.Domain || info.GetMetadata()[policy.MetaNested] == "true" {
			continue
		}
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata[policy.MetaNested] = "true"
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(&info)
		if err != nil {
			continue
		}
		p.Details[i] = &anypb.Any{TypeUrl: d.GetTypeUrl(), Value: value}
		marked = true
	}
	if !marked {
		return err
	}
	return status.FromProto(p).Err()
}

// refusalStatus turns the engine's error into what the caller gets: dedupd's own
// refusal as it came, or one made here: for an unknown outcome always, whose text
// names the record, whoever found it so.
func refusalStatus(err error) error {
	r, ok := errors.AsType[*guard.RefusalError](err)
	if !ok {
		if errors.Is(err, guard.ErrClosed) {
			return status.Error(codes.Unavailable, "the server is stopping")
		}
		return err
	}
	if _, ours := policy.RefusalOf(r.Err); ours && !r.Unknown && r.Reason != dedupv1.Reason_REASON_STORE_UNAVAILABLE && r.Reason == reasonIn(r.Err) {
		return r.Err
	}
	return refusal{
		reason: r.Reason, message: r.Error(), operation: r.Operation, record: r.RecordID, entry: r.Entry,
		retryAfter: r.RetryAfter, hint: r.RetryAfter > 0, age: r.Age, effect: r.Effect(),
	}.err()
}

func reasonIn(err error) dedupv1.Reason {
	reason, _ := policy.ReasonOf(err)
	return reason
}
