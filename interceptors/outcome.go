package interceptors

import (
	"crypto/sha256"
	"fmt"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/headerlist"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Limits of an outcome, beside the response's, which the grant tells.
const (
	maxStatusBytes = 64 << 10

	typeURLPrefix = "type.googleapis.com/"
)

// allowList names the response headers and trailers of a method that a replay
// repeats.
type allowList struct {
	headers, trailers []string // lower case, sorted, no doubles
}

// newAllowList refuses names that are no metadata names, or that must never
// reach a later caller.
func newAllowList(headers, trailers []string) (allowList, error) {
	h, err := headerlist.Names("header", headers)
	if err != nil {
		return allowList{}, err
	}
	t, err := headerlist.Names("trailer", trailers)
	if err != nil {
		return allowList{}, err
	}
	return allowList{headers: h, trailers: t}, nil
}

// newOutcome returns what a handler's end is stored as: the status that the
// caller is sent (policy.StatusOf), the response of a success, and the allowed
// metadata.
//
// A response over maxBytes is left out whole; its size and hash stay. A status
// over 64 KiB becomes an OUTCOME_NOT_STORED refusal that names the code. An
// allowed header or trailer that breaks a limit (64 entries, 8 KiB a value) is
// left out whole, never cut. A nil response without an error is a response
// without a type. It fails only for a response that cannot be encoded, which
// gRPC could not send either.
func newOutcome(resp proto.Message, err error, headers, trailers metadata.MD, allow allowList, maxBytes int64) (*dedupv1.Outcome, error) {
	o := &dedupv1.Outcome{
		Headers:  headerlist.Metadata(headers, allow.headers),
		Trailers: headerlist.Metadata(trailers, allow.trailers),
	}
	if err != nil {
		o.Status, err = encodeStatus(policy.StatusOf(err))
		return o, err
	}
	if resp == nil {
		o.Result = &dedupv1.Outcome_Response{Response: &dedupv1.Response{}}
		return o, nil
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(resp)
	if err != nil {
		return nil, fmt.Errorf("response cannot be encoded: %w", err)
	}
	typeURL := typeURLPrefix + string(resp.ProtoReflect().Descriptor().FullName())
	if int64(len(value)) > maxBytes {
		sum := sha256.Sum256(value)
		o.Result = &dedupv1.Outcome_Omitted{Omitted: &dedupv1.OmittedResponse{
			Size: int64(len(value)), Sha256: sum[:], TypeUrl: typeURL,
		}}
		return o, nil
	}
	o.Result = &dedupv1.Outcome_Response{Response: &dedupv1.Response{TypeUrl: typeURL, Value: value}}
	return o, nil
}

func encodeStatus(s *status.Status) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Proto())
	if err != nil {
		return nil, fmt.Errorf("status cannot be encoded: %w", err)
	}
	if len(b) <= maxStatusBytes {
		return b, nil
	}
	return encodeStatus(status.Convert(refusal{
		reason:  dedupv1.Reason_REASON_OUTCOME_NOT_STORED,
		message: fmt.Sprintf("the first answer was an error with code %v whose status of %d bytes is over the limit of %d and was not stored", s.Code(), len(b), maxStatusBytes),
	}.err()))
}

// replayOutcome returns what a repeat of a call of method gets: the same status,
// details byte for byte and in order, the same response and metadata. A nil
// outcome is one that an operator settled without an answer.
//
// Where the answer is not there to be given, err is a refusal with
// OUTCOME_NOT_STORED: the work was done, and is not done again.
func replayOutcome(o *dedupv1.Outcome, method string) (resp proto.Message, headers, trailers metadata.MD, err error) {
	notStored := func(message string) (proto.Message, metadata.MD, metadata.MD, error) {
		return nil, nil, nil, refusal{
			reason:    dedupv1.Reason_REASON_OUTCOME_NOT_STORED,
			message:   message,
			operation: method,
		}.err()
	}
	if o == nil {
		return notStored("the work was done; an operator settled it without storing its answer")
	}
	headers, trailers = replayedMetadata(o.GetHeaders()), replayedMetadata(o.GetTrailers())
	if len(o.GetStatus()) > 0 {
		var s statuspb.Status
		if err := proto.Unmarshal(o.GetStatus(), &s); err != nil {
			return notStored("the work was done; its stored status cannot be read")
		}
		if codes.Code(s.GetCode()) != codes.OK { //nolint:gosec // any number is a code to gRPC
			return nil, headers, trailers, status.FromProto(&s).Err()
		}
	}
	switch result := o.GetResult().(type) {
	case *dedupv1.Outcome_Response:
		resp, err := decodeResponse(result.Response)
		if err != nil {
			return notStored("the work was done; its stored response cannot be read by this build: " + err.Error())
		}
		return resp, headers, trailers, nil
	case *dedupv1.Outcome_Omitted:
		return notStored(fmt.Sprintf("the work was done; its response of %d bytes was too large to store", result.Omitted.GetSize()))
	default:
		return notStored("the work was done; its response was not stored")
	}
}

func decodeResponse(r *dedupv1.Response) (proto.Message, error) {
	if r.GetTypeUrl() == "" {
		if len(r.GetValue()) > 0 {
			return nil, errNoType
		}
		return nil, nil //nolint:nilnil // the handler's own answer was a nil response
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByURL(r.GetTypeUrl())
	if err != nil {
		return nil, errUnknownType
	}
	m := kind.New().Interface()
	if err := proto.Unmarshal(r.GetValue(), m); err != nil {
		return nil, errBadBytes
	}
	return m, nil
}

// decodeError never quotes the stored bytes.
type decodeError string

func (e decodeError) Error() string { return string(e) }

const (
	errNoType      = decodeError("it has no type")
	errUnknownType = decodeError("its type is not linked in")
	errBadBytes    = decodeError("its bytes do not fit its type")
)

func replayedMetadata(entries []*dedupv1.MetadataEntry) metadata.MD {
	if len(entries) == 0 {
		return nil
	}
	md := make(metadata.MD, len(entries))
	for _, e := range entries {
		if name := e.GetKey(); !headerlist.Denied(name) {
			md[name] = append(md[name], string(e.GetValue()))
		}
	}
	return md
}
