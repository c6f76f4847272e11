package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// Domain is the domain of every ErrorInfo that dedupd sends.
const Domain = "dedup.v1"

// Retry hints: floors under a client's own backoff.
const (
	storeRetryAfter = time.Second
	quotaRetryAfter = time.Minute // a cap is lifted by people
	minRetryAfter   = 10 * time.Millisecond
	maxRetryAfter   = time.Second
)

// errDraining turns new work away; errStopped anything.
var (
	errDraining = errors.New("dedupd is stopping")
	errStopped  = errors.New("dedupd has stopped")
)

// row is a line of the table of semantics.md section 7.
type row struct {
	code    codes.Code
	reason  dedupv1.Reason
	message string
}

// refused is the table's part for what the rules answer.
func refused(v storage.Verdict) row {
	switch v {
	case storage.VerdictInProgress:
		return row{codes.Aborted, dedupv1.Reason_REASON_IN_PROGRESS, "an effect of this key may still be on its way; wait and ask again"}
	case storage.VerdictOutcomeUnknown:
		return row{codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, "an earlier run may or may not have applied its effect; it must be settled first"}
	case storage.VerdictKeyReused:
		return row{codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED, "the key was used for another request; use a new key for a new intent"}
	case storage.VerdictKeyExpired:
		return row{codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_EXPIRED, "the key's record is past its retention; it is not run again"}
	case storage.VerdictStaleHolder:
		return row{codes.FailedPrecondition, dedupv1.Reason_REASON_STALE_HOLDER, "the record is no longer this holder's; stop"}
	case storage.VerdictNotReconciled:
		return row{codes.FailedPrecondition, dedupv1.Reason_REASON_NOT_RECONCILED, "this grant must find out first; call BeginRun before"}
	case storage.VerdictRecordChanged:
		return row{codes.FailedPrecondition, dedupv1.Reason_REASON_RECORD_CHANGED, "the record has changed since it was looked at, and nothing was written; look at it again before you decide"}
	case storage.VerdictNotFound:
		return row{codes.NotFound, dedupv1.Reason_REASON_ENTRY_NOT_FOUND, "there is no such dead letter, or no record to park one for"}
	case storage.VerdictEntryChanged:
		return row{codes.FailedPrecondition, dedupv1.Reason_REASON_ENTRY_CHANGED, "the dead letter's state, or its claim, does not allow this, and nothing was written; look at it again before you decide"}
	case storage.VerdictClaimInvalid:
		return row{codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID, "the replay's claim has ended, or the call's namespace, operation or key is not the dead letter's: claim it anew, and check that this is its service"}
	case storage.VerdictFull:
		return row{codes.ResourceExhausted, dedupv1.Reason_REASON_QUOTA_EXCEEDED, "the namespace is at its cap of open dead letters; settle some, and keep this one until then"}
	case storage.VerdictOK, storage.VerdictGranted, storage.VerdictCompleted: // no refusals
	}
	return unavailable("the store gave no answer that fits the call; try again")
}

func unavailable(message string) row {
	return row{codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE, message}
}

// refusal is an answer of the rules that travels as an error.
type refusal struct{ ans storage.Answer }

func refusalOf(ans storage.Answer) error { return &refusal{ans: ans} }

// Error returns the verdict's name.
func (r *refusal) Error() string { return r.ans.Verdict.String() }

func invalid(field, message string) error {
	return &storage.InvalidError{Field: field, Message: message}
}

// wireError is a status with its reason at hand for the metrics.
type wireError struct {
	status *status.Status
	reason string
}

// Error returns the status as text.
func (e *wireError) Error() string { return e.status.String() }

// GRPCStatus is what gRPC sends.
func (e *wireError) GRPCStatus() *status.Status { return e.status }

// statuses is the interceptor that makes statuses, the only one.
type statuses struct {
	log     *slog.Logger
	metrics *metrics
	failed  func() // told of a store that is out of reach
	lastLog atomic.Int64
	muted   atomic.Int64
}

func (s *statuses) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	res, err := handler(ctx, req)
	if err == nil {
		return res, nil
	}
	return nil, s.wire(ctx, req, info.FullMethod, err)
}

func (s *statuses) wire(ctx context.Context, req any, method string, err error) error {
	meta := map[string]string{}
	if by, ok := req.(interface{ GetEntryId() []byte }); ok && len(by.GetEntryId()) == len(storage.EntryID{}) {
		meta["entry"] = hex.EncodeToString(by.GetEntryId())
	}
	if id, operation, ok := namedBy(req); ok {
		meta["record"] = id.Short()
		if operation != "" {
			meta["operation"] = operation
		}
	}
	var (
		denied  *refusal
		invalid *storage.InvalidError
	)
	switch {
	case errors.As(err, &denied):
		describe(meta, denied.ans)
		return refuseAnswer(denied.ans, meta)
	case errors.As(err, &invalid):
		return malformed(invalid, meta)
	case errors.Is(err, errDraining), errors.Is(err, errStopped):
		return refuse(unavailable(err.Error()+"; try again"), meta, storeRetryAfter)
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err() // nobody reads the details
	}
	if st, ok := status.FromError(err); ok && st.Code() == codes.InvalidArgument {
		return malformed(violationOf(st), meta)
	}
	s.storeFault(ctx, method, meta, err)
	return refuse(unavailable("the store cannot be reached; try again"), meta, storeRetryAfter)
}

// describe adds what an answer tells of its record and its dead letter.
func describe(meta map[string]string, ans storage.Answer) {
	if e := ans.Entry; e != nil {
		meta["entry"] = hex.EncodeToString(e.ID[:])
		meta["record"], meta["operation"] = e.Record.Short(), e.Identity.Operation
	}
	if rec := ans.Record; rec != nil {
		meta["operation"] = rec.Identity.Operation
	}
	if ans.Verdict == storage.VerdictRecordChanged {
		meta["state"] = ans.State.String()
	}
	if ans.Verdict == storage.VerdictEntryChanged && ans.Entry != nil {
		meta["state"] = ans.Entry.StateAt(ans.Now).String()
	}
	if tp := traceparentOf(ans.Record); tp != "" && ans.Verdict == storage.VerdictOutcomeUnknown {
		meta[traceparentHeader] = tp
	}
}

// refuseAnswer makes the status of what the rules refused.
func refuseAnswer(ans storage.Answer, meta map[string]string) error {
	r, wait := refused(ans.Verdict), ans.RetryAfter
	if ans.Verdict == storage.VerdictClaimInvalid {
		return refuse(r, meta, 0, violation("replay", r.message))
	}
	if ans.Verdict == storage.VerdictFull {
		wait = cmp.Or(wait, quotaRetryAfter)
	}
	return refuse(r, meta, wait)
}

// storeFault tells the operator why, once a second at most: an outage fails
// every call.
func (s *statuses) storeFault(ctx context.Context, method string, meta map[string]string, err error) {
	s.metrics.storeErrors.Inc()
	s.failed()
	now, last := time.Now().UnixNano(), s.lastLog.Load()
	if now-last < int64(time.Second) || !s.lastLog.CompareAndSwap(last, now) {
		s.muted.Add(1)
		return
	}
	s.log.LogAttrs(ctx, slog.LevelError, "the store failed",
		slog.String("method", method),
		slog.String("record", meta["record"]),
		slog.String("operation", meta["operation"]),
		slog.Int64("like_it_before", s.muted.Swap(0)),
		slog.Any("error", err),
	)
}

// refuse makes the status of a row. A hint of zero means that waiting does not
// help.
func refuse(r row, meta map[string]string, retryAfter time.Duration, more ...protoadapt.MessageV1) error {
	reason := strings.TrimPrefix(r.reason.String(), "REASON_")
	details := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: meta}}, more...)
	if retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	st, err := status.New(r.code, r.message).WithDetails(details...)
	if err != nil { // details of these types always marshal
		st = status.New(r.code, r.message)
	}
	return &wireError{status: st, reason: reason}
}

// malformed makes the status of input that breaks a limit.
func malformed(e *storage.InvalidError, meta map[string]string) error {
	r := row{codes.InvalidArgument, dedupv1.Reason_REASON_INPUT_INVALID, e.Message}
	if e.Key {
		r.reason = dedupv1.Reason_REASON_KEY_INVALID
	}
	return refuse(r, meta, 0, violation(e.Field, e.Message))
}

func violation(field, message string) protoadapt.MessageV1 {
	return &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: message}},
	}
}

// violationOf reads the first of the proto's rules that was broken.
func violationOf(st *status.Status) *storage.InvalidError {
	for _, d := range st.Details() {
		if vs, ok := d.(*validate.Violations); ok && len(vs.GetViolations()) > 0 {
			v := vs.GetViolations()[0]
			field := protovalidate.FieldPathString(v.GetField())
			if field == "" {
				return &storage.InvalidError{Message: v.GetMessage()}
			}
			message := v.GetMessage()
			if !strings.HasPrefix(message, field+" ") { // some rules of the proto name it themselves
				message = field + ": " + message
			}
			return &storage.InvalidError{Field: field, Message: message}
		}
	}
	return &storage.InvalidError{Message: "the request is malformed"}
}

// namedBy is the record that a request names, if it names one within the limits.
func namedBy(req any) (storage.RecordID, string, bool) {
	if by, ok := req.(interface{ GetRecordId() []byte }); ok && len(by.GetRecordId()) == len(storage.RecordID{}) {
		return storage.RecordID(by.GetRecordId()), "", true
	}
	by, ok := req.(interface{ GetIdentity() *dedupv1.Identity })
	if !ok {
		return storage.RecordID{}, "", false
	}
	id, err := identityOf(by.GetIdentity())
	return id.RecordID(), id.Operation, err == nil
}
