package server

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// connectHandlers serves the very services of the gRPC port to those who speak
// HTTP: Connect's protocol, gRPC-Web, and plain JSON by POST. Every call goes
// through the connection in process, so it meets the same chain.
func connectHandlers(cc grpc.ClientConnInterface) http.Handler {
	mux := http.NewServeMux()
	dedup, letters, admin := dedupv1.NewDedupServiceClient(cc), dedupv1.NewDeadLetterServiceClient(cc), dedupv1.NewAdminServiceClient(cc)

	serveRPC(mux, dedupv1.DedupService_Reserve_FullMethodName, dedup.Reserve)
	serveRPC(mux, dedupv1.DedupService_BeginRun_FullMethodName, dedup.BeginRun)
	serveRPC(mux, dedupv1.DedupService_Complete_FullMethodName, dedup.Complete)
	serveRPC(mux, dedupv1.DedupService_Extend_FullMethodName, dedup.Extend)
	serveRPC(mux, dedupv1.DedupService_Release_FullMethodName, dedup.Release)
	serveRPC(mux, dedupv1.DedupService_Lookup_FullMethodName, dedup.Lookup)

	serveRPC(mux, dedupv1.DeadLetterService_Park_FullMethodName, letters.Park)
	serveRPC(mux, dedupv1.DeadLetterService_List_FullMethodName, letters.List)
	serveRPC(mux, dedupv1.DeadLetterService_Get_FullMethodName, letters.Get)
	serveRPC(mux, dedupv1.DeadLetterService_Groups_FullMethodName, letters.Groups)
	serveRPC(mux, dedupv1.DeadLetterService_Claim_FullMethodName, letters.Claim)
	serveRPC(mux, dedupv1.DeadLetterService_Settle_FullMethodName, letters.Settle)
	serveRPC(mux, dedupv1.DeadLetterService_Requeue_FullMethodName, letters.Requeue)
	serveRPC(mux, dedupv1.DeadLetterService_Discard_FullMethodName, letters.Discard)

	serveRPC(mux, dedupv1.AdminService_ListRecords_FullMethodName, admin.ListRecords)
	serveRPC(mux, dedupv1.AdminService_Resolve_FullMethodName, admin.Resolve)
	serveRPC(mux, dedupv1.AdminService_Stats_FullMethodName, admin.Stats)
	serveRPC(mux, dedupv1.AdminService_Redact_FullMethodName, admin.Redact)
	serveRPC(mux, dedupv1.AdminService_Forget_FullMethodName, admin.Forget)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mux.ServeHTTP(mediaHint{w}, r) })
}

// mediaHint says which content type to send where Connect's answer to another one,
// or to none, has no words: curl sends a form unless it is told.
type mediaHint struct{ http.ResponseWriter }

// WriteHeader adds the words.
func (w mediaHint) WriteHeader(code int) {
	if code == http.StatusUnsupportedMediaType {
		writeLine(w.ResponseWriter, code,
			"the content type is missing or not one of those served here: for JSON send the header 'Content-Type: application/json'; Accept-Post names the others")
		return
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (w mediaHint) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serveRPC adds one method.
func serveRPC[Req, Res any](mux *http.ServeMux, name string, call func(context.Context, *Req, ...grpc.CallOption) (*Res, error)) {
	handle := func(ctx context.Context, req *connect.Request[Req]) (*connect.Response[Res], error) {
		var header, trailer metadata.MD
		ctx = metadata.NewOutgoingContext(ctx, callMetadata(req.Header()))
		msg, err := call(ctx, req.Msg, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil {
			return nil, connectError(err, header, trailer)
		}
		res := connect.NewResponse(msg)
		addMetadata(res.Header(), header)
		addMetadata(res.Trailer(), trailer)
		return res, nil
	}
	mux.Handle("POST "+name, connect.NewUnaryHandler(name, handle,
		connect.WithReadMaxBytes(MaxMessage), connect.WithSendMaxBytes(MaxMessage), connect.WithCodec(strictJSON{}),
		connect.WithCompression("gzip", newBoundedGzip, func() connect.Compressor { return gzip.NewWriter(io.Discard) })))
}

// boundedGzip ends a body soon after it has become too large. Connect would unpack the
// rest of it to tell how large it is: 8 MiB can be 8 GiB, and a minute's work.
type boundedGzip struct {
	*gzip.Reader
	left int64
}

func newBoundedGzip() connect.Decompressor { return &boundedGzip{Reader: new(gzip.Reader)} }

// Read ends past the largest message.
func (b *boundedGzip) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, io.EOF
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// Reset begins another body.
func (b *boundedGzip) Reset(r io.Reader) error {
	b.left = MaxMessage + 1 // one more, so that it is seen to be too large
	return b.Reader.Reset(r)
}

// strictJSON refuses fields that are not the message's: a misspelt dry_run must
// not erase, a misspelt filter not choose everything.
type strictJSON struct{}

// Name is the codec's in a content type.
func (strictJSON) Name() string { return "json" }

// Marshal writes protobuf's JSON.
func (strictJSON) Marshal(msg any) ([]byte, error) {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil, errNoMessage
	}
	return protojson.Marshal(m)
}

// Unmarshal reads it.
func (strictJSON) Unmarshal(text []byte, msg any) error {
	m, ok := msg.(proto.Message)
	if !ok {
		return errNoMessage
	}
	if len(text) == 0 {
		return errors.New("no JSON was sent; the smallest request is {}")
	}
	return protojson.Unmarshal(text, m)
}

var errNoMessage = errors.New("not a protobuf message")

// callMetadata is what of a request's headers a gRPC call would carry: not those
// that HTTP and the protocols on it use themselves.
func callMetadata(h http.Header) metadata.MD {
	md := metadata.MD{}
	for key, values := range h {
		key = strings.ToLower(key)
		switch key {
		case "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie",
			"host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent":
			continue
		}
		if strings.HasPrefix(key, "connect-") || strings.HasPrefix(key, "grpc-") || strings.HasPrefix(key, "sec-") {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(key, "-bin") {
				raw, err := connect.DecodeBinaryHeader(v)
				if err != nil {
					continue
				}
				v = string(raw)
			}
			md.Append(key, v)
		}
	}
	return md
}

func addMetadata(h http.Header, md metadata.MD) {
	for key, values := range md {
		for _, v := range values {
			if strings.HasSuffix(key, "-bin") {
				v = connect.EncodeBinaryHeader([]byte(v))
			}
			h.Add(key, v)
		}
	}
}

// connectError is err with its code, message and details: Connect's codes are
// gRPC's.
func connectError(err error, header, trailer metadata.MD) error {
	st := status.Convert(err)
	if st.Code() == codes.OK {
		return nil
	}
	out := connect.NewError(connect.Code(st.Code()), errors.New(st.Message()))
	for _, packed := range st.Proto().GetDetails() {
		detail, err := connect.NewErrorDetail(packed)
		if err == nil {
			out.AddDetail(detail)
		}
	}
	addMetadata(out.Meta(), header)
	addMetadata(out.Meta(), trailer)
	return out
}
