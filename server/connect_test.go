package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// web is a running server's HTTP port.
type web struct {
	url    string
	dedup  dedupv1.DedupServiceClient
	client *http.Client
	log    *lockedBuffer
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newWeb(t *testing.T) *web {
	t.Helper()
	store, err := embedded.OpenMemory(embedded.Options{})
	require.NoError(t, err)
	w := &web{client: &http.Client{Transport: &http.Transport{}}, log: &lockedBuffer{}}
	s, err := server.New(server.Config{Store: store, Logger: slog.New(slog.NewTextHandler(w.log, nil))})
	require.NoError(t, err)
	lis, httpLis := listen(t), listen(t)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, lis, httpLis) }()
	w.url, w.dedup = "http://"+httpLis.Addr().String(), dial(t, lis)
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		stop()
		require.NoError(t, <-done)
		require.NoError(t, store.Close())
	})
	return w
}

// post sends JSON as curl would.
func (w *web) post(t *testing.T, path, body string, header ...string) (int, string) {
	t.Helper()
	return w.send(t, http.MethodPost, path, body, append([]string{"Content-Type", "application/json"}, header...)...)
}

func (w *web) send(t *testing.T, method, path, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	res, err := w.client.Do(req)
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode, string(text)
}

func TestPlainJSONGetsTheAnswersOfTheWire(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	req := reserveOf(1)
	text, err := protojson.Marshal(req)
	require.NoError(t, err)
	code, body := w.post(t, dedupv1.DedupService_Reserve_FullMethodName, string(text))
	require.Equal(t, http.StatusOK, code, body)
	var overHTTP dedupv1.ReserveResponse
	require.NoError(t, protojson.Unmarshal([]byte(body), &overHTTP))
	require.NotNil(t, overHTTP.GetGranted())

	onWire, err := w.dedup.Reserve(t.Context(), req) // the same attempt: the same grant
	require.NoError(t, err)
	overHTTP.GetGranted().LeaseLeft, onWire.GetGranted().LeaseLeft = nil, nil
	require.Empty(t, cmp.Diff(&overHTTP, onWire, protocmp.Transform()))
}

func TestRefusalsKeepTheirCodeReasonAndDetailsOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	code, body := w.post(t, dedupv1.DedupService_Reserve_FullMethodName, `{"identity":{"namespace":"NOT ALLOWED"}}`)
	require.Equal(t, http.StatusBadRequest, code)
	var told struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Details []struct {
			Type string `json:"type"`
		} `json:"details"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &told), body)
	require.Equal(t, "invalid_argument", told.Code)
	require.Equal(t, "google.rpc.ErrorInfo", told.Details[0].Type)

	code, body = w.post(t, dedupv1.DedupService_Reserve_FullMethodName, `{"identity":`)
	require.Equal(t, http.StatusBadRequest, code, "broken JSON is the caller's fault")
	require.Contains(t, body, "invalid_argument")
	for _, misspelt := range []string{`{"selector":{"namespace":"n"},"note":"x","dryrun":true}`, ``} {
		code, body = w.post(t, dedupv1.AdminService_Forget_FullMethodName, misspelt)
		require.Equal(t, http.StatusBadRequest, code, "what is misspelt erases nothing: %s", body)
	}
	code, _ = w.post(t, "/dedup.v1.DedupService/Nothing", `{}`)
	require.Equal(t, http.StatusNotFound, code)
}

// curl sends a form unless it is told otherwise.
func TestAWrongContentTypeIsToldWhichToSend(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	for _, kind := range []string{"application/x-www-form-urlencoded", "text/plain", ""} {
		code, body := w.post(t, dedupv1.AdminService_Stats_FullMethodName, `{}`, "Content-Type", kind)
		require.Equal(t, http.StatusUnsupportedMediaType, code, kind)
		require.Contains(t, body, "'Content-Type: application/json'", kind)
	}
}

// 64 MiB of zeros are 64 KiB on the wire. What is unpacked of them is bounded, and a
// body that is packed and small is read.
func TestAPackedBodyIsUnpackedNoFurtherThanItMayBe(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	pack := func(text []byte) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(text)
		require.NoError(t, err)
		require.NoError(t, z.Close())
		return b.String()
	}
	code, body := w.post(t, dedupv1.AdminService_Stats_FullMethodName, pack([]byte(`{}`)), "Content-Encoding", "gzip")
	require.Equal(t, http.StatusOK, code, body)
	const small = 8<<20 + 1000
	for _, size := range []int{small, 64 << 20} {
		code, body = w.post(t, dedupv1.AdminService_Stats_FullMethodName, pack(make([]byte, size)), "Content-Encoding", "gzip")
		require.Equal(t, http.StatusTooManyRequests, code)
		require.Contains(t, body, "8388609", "no more than one byte too many is looked at, of %d", size)
	}
}

func TestConnectAndGRPCWebClientsGetErrorDetails(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	for name, opts := range map[string][]connect.ClientOption{
		"connect": nil, "connect json": {connect.WithProtoJSON()}, "grpc-web": {connect.WithGRPCWeb()},
	} {
		client := connect.NewClient[dedupv1.ReserveRequest, dedupv1.ReserveResponse](
			w.client, w.url+dedupv1.DedupService_Reserve_FullMethodName, opts...)
		res, err := client.CallUnary(t.Context(), connect.NewRequest(reserveOf(2)))
		require.NoError(t, err, name)
		require.NotNil(t, res.Msg.GetGranted(), name)

		other := reserveOf(2)
		other.Fingerprints[0].Digest, other.AttemptId = []byte("another request"), bytes.Repeat([]byte{9}, 16)
		_, err = client.CallUnary(t.Context(), connect.NewRequest(other))
		var refused *connect.Error
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, connect.CodeFailedPrecondition, refused.Code(), name)
		detail, err := refused.Details()[0].Value()
		require.NoError(t, err, name)
		info, ok := detail.(*errdetails.ErrorInfo)
		require.True(t, ok, name)
		require.Equal(t, "KEY_REUSED", info.GetReason(), name)
	}
}

// Whatever is served by gRPC is served here too.
func TestEveryMethodIsServedOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	for _, service := range []grpc.ServiceDesc{
		dedupv1.DedupService_ServiceDesc, dedupv1.DeadLetterService_ServiceDesc, dedupv1.AdminService_ServiceDesc,
	} {
		for _, m := range service.Methods {
			code, body := w.post(t, "/"+service.ServiceName+"/"+m.MethodName, `{}`)
			require.Contains(t, []int{http.StatusOK, http.StatusBadRequest}, code, "%s: %s", m.MethodName, body)
		}
	}
}

// A page of another site, open in an operator's browser, must not settle records.
func TestOtherSitesPagesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	for _, path := range []string{dedupv1.AdminService_ListRecords_FullMethodName, "/console/dead-letters/act"} {
		code, body := w.post(t, path, `{}`, "Origin", "https://elsewhere.example", "Sec-Fetch-Site", "cross-site")
		require.Equal(t, http.StatusForbidden, code, body)
		code, body = w.post(t, path, `{}`, "Host", "rebound.example:7481")
		require.Equal(t, http.StatusMisdirectedRequest, code, body)
	}
	code, _ := w.post(t, dedupv1.AdminService_ListRecords_FullMethodName, `{}`, "Host", "localhost:7481")
	require.Equal(t, http.StatusOK, code)
}

// A scraper and a prober come by address or by a service's name, also through a proxy
// beside dedupd; what they are told holds no key and changes nothing.
func TestMetricsAndHealthAnswerUnderAnyName(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	_, err := w.dedup.Reserve(t.Context(), reserveOf(1))
	require.NoError(t, err)
	for _, path := range []string{"/metrics", "/healthz"} {
		for _, name := range []string{"10.0.0.7:7481", "dedupd.prod.svc:7481", "localhost"} {
			code, body := w.send(t, http.MethodGet, path, "", "Host", name)
			require.Equal(t, http.StatusOK, code, "%s as %s", path, name)
			require.NotContains(t, body, string(reserveOf(1).GetIdentity().GetKey()))
		}
	}
	code, _ := w.send(t, http.MethodGet, "/console/", "", "Host", "dedupd.prod.svc:7481")
	require.Equal(t, http.StatusMisdirectedRequest, code)
}

func TestTheAuditLogTellsWhoCameOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	req := &dedupv1.ForgetRequest{Note: "asked", Selector: &dedupv1.RecordSelector{
		Choice: &dedupv1.RecordSelector_Identity{Identity: proto.CloneOf(reserveOf(3).GetIdentity())},
	}}
	text, err := protojson.Marshal(req)
	require.NoError(t, err)
	code, body := w.post(t, dedupv1.AdminService_Forget_FullMethodName, string(text))
	require.Equal(t, http.StatusOK, code, body)
	require.Regexp(t, `audit.*from="127\.0\.0\.1:\d+ over http"`, w.log.String())
}
