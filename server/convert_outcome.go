package server

import (
	"fmt"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// keptOf is the error that a Release asks to keep.
func keptOf(req *dedupv1.ReleaseRequest, limit int) (*storage.Outcome, error) {
	if req.GetError() == nil {
		return nil, nil //nolint:nilnil // none was sent
	}
	if req.GetEffect() == dedupv1.Effect_EFFECT_UNKNOWN {
		return nil, invalid("error", "no error can be kept with EFFECT_UNKNOWN: it settles nothing")
	}
	kept, err := outcomeOf(req.GetError(), "error", limit)
	if err == nil && kept.Success() {
		return nil, invalid("error.status", "the error to keep has status OK")
	}
	return kept, err
}

// outcomeOf checks what the proto's rules cannot, and keeps the status byte for
// byte.
func outcomeOf(o *dedupv1.Outcome, field string, limit int) (*storage.Outcome, error) {
	out := &storage.Outcome{Status: o.GetStatus()}
	if len(out.Status) > 0 {
		var st spb.Status
		if proto.Unmarshal(out.Status, &st) != nil {
			return nil, invalid(field+".status", "status is not a serialised google.rpc.Status")
		}
		out.Code = st.GetCode()
	}
	if r := o.GetResponse(); r != nil {
		if n := len(r.GetValue()); n > limit {
			return nil, invalid(field+".response.value", fmt.Sprintf(
				"response is %d bytes, at most %d are kept; leave it out and send its size and hash", n, limit))
		}
		out.HasResponse, out.TypeURL, out.Response = true, r.GetTypeUrl(), r.GetValue()
	}
	if r := o.GetOmitted(); r != nil {
		out.Omitted, out.TypeURL, out.Size = true, r.GetTypeUrl(), r.GetSize()
		copy(out.Sum[:], r.GetSha256())
	}
	var err error
	if out.Headers, err = metadataOf(o.GetHeaders(), field+".headers"); err != nil {
		return nil, err
	}
	out.Trailers, err = metadataOf(o.GetTrailers(), field+".trailers")
	return out, err
}

func metadataOf(entries []*dedupv1.MetadataEntry, field string) ([]storage.MetadataEntry, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	out := make([]storage.MetadataEntry, len(entries))
	for i, e := range entries {
		if msg := metadataFault(e.GetKey(), e.GetValue()); msg != "" {
			return nil, invalid(fmt.Sprintf("%s[%d]", field, i), msg)
		}
		out[i] = storage.MetadataEntry{Key: e.GetKey(), Value: e.GetValue()}
	}
	return out, nil
}

// metadataFault says why an entry cannot be replayed: it is one caller's own, or
// gRPC could not send it.
func metadataFault(key string, value []byte) string {
	switch {
	case key == "set-cookie", key == "authorization", key == "www-authenticate":
		return key + " belongs to one caller and is never kept"
	case strings.HasPrefix(key, "grpc-"):
		return "grpc-* belongs to the transport and is never kept"
	}
	for i := range len(key) {
		c := key[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return "metadata keys hold a-z 0-9 - _ . only"
		}
	}
	if strings.HasSuffix(key, "-bin") {
		return ""
	}
	for _, c := range value {
		if c < ' ' || c > '~' {
			return "a value that is not printable ASCII needs a key that ends in -bin"
		}
	}
	return ""
}

func outcomeTo(o *storage.Outcome) *dedupv1.Outcome {
	if o == nil {
		return nil
	}
	out := &dedupv1.Outcome{Status: o.Status, Headers: metadataTo(o.Headers), Trailers: metadataTo(o.Trailers)}
	switch {
	case o.Omitted:
		out.Result = &dedupv1.Outcome_Omitted{Omitted: &dedupv1.OmittedResponse{
			Size: o.Size, Sha256: o.Sum[:], TypeUrl: o.TypeURL,
		}}
	case o.HasResponse:
		out.Result = &dedupv1.Outcome_Response{Response: &dedupv1.Response{TypeUrl: o.TypeURL, Value: o.Response}}
	}
	return out
}

func metadataTo(entries []storage.MetadataEntry) []*dedupv1.MetadataEntry {
	if len(entries) == 0 {
		return nil
	}
	out := make([]*dedupv1.MetadataEntry, len(entries))
	for i, e := range entries {
		out[i] = &dedupv1.MetadataEntry{Key: e.Key, Value: e.Value}
	}
	return out
}
