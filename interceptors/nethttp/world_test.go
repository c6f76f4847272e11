package nethttp_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const namespace = "test"

// world is a dedupd in process, an engine that reaches it unless it is down, and a
// handler whose runs are counted.
type world struct {
	engine *guard.Engine
	dedupd *server.Server
	down   atomic.Bool
	mute   atomic.Bool // only what ends a run is not heard

	// handle answers run n, counted from 1.
	handle func(w http.ResponseWriter, r *http.Request, n int)

	mu   sync.Mutex
	runs int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store, err := embedded.OpenMemory(embedded.Options{CacheBytes: 1 << 20, MemtableBytes: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w := &world{handle: func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"order":1}`)
	}}
	w.dedupd, err = server.New(server.Config{Store: store, Retention: time.Hour})
	require.NoError(t, err)
	w.engine = w.join(t)
	return w
}

// join makes one more engine, as another process would have it.
func (w *world) join(t *testing.T) *guard.Engine {
	t.Helper()
	engine, err := guard.New(guard.Config{Dedup: dedupv1.NewDedupServiceClient(w), Namespace: namespace, CloseTime: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(engine.Close)
	return engine
}

func (w *world) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ends := strings.HasSuffix(method, "Complete") || strings.HasSuffix(method, "Release")
	if w.down.Load() || w.mute.Load() && ends {
		return status.Error(codes.Unavailable, "no way to dedupd")
	}
	return w.dedupd.Conn().Invoke(ctx, method, args, reply, opts...)
}

func (w *world) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.runs++
	n := w.runs
	w.mu.Unlock()
	w.handle(rw, r, n)
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs
}

// wrap returns the world's handler behind a middleware.
func (w *world) wrap(t *testing.T, opts ...nethttp.Option) http.Handler {
	t.Helper()
	m, err := nethttp.New(w.engine, append([]nethttp.Option{nethttp.WithCaller(bearer)}, opts...)...)
	require.NoError(t, err)
	return m.Wrap(w)
}

// bearer stands for authentication.
func bearer(r *http.Request) (string, error) {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), nil
}

// request is what a test sends: an order by ada under a key, unless changed.
type request struct {
	method, target, body string
	header               http.Header
}

func order(key string, change ...func(*request)) request {
	q := request{method: http.MethodPost, target: "/orders", body: `{"item":"book"}`, header: http.Header{
		"Authorization": {"Bearer ada"}, "Content-Type": {"application/json"},
	}}
	if key != "" {
		q.header.Set(nethttp.HeaderKey, key)
	}
	for _, f := range change {
		f(&q)
	}
	return q
}

func with(name string, values ...string) func(*request) {
	return func(q *request) { q.header[http.CanonicalHeaderKey(name)] = values }
}

func saying(body string) func(*request) { return func(q *request) { q.body = body } }

func at(method, target string) func(*request) {
	return func(q *request) { q.method, q.target = method, target }
}

// send asks the handler on ctx, and reads the whole response.
func send(ctx context.Context, h http.Handler, q request) *httptest.ResponseRecorder {
	r := httptest.NewRequest(q.method, q.target, strings.NewReader(q.body)).WithContext(ctx)
	r.Header = q.header.Clone()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

type problem struct {
	Type, Title, Detail, Reason, Record, Effect string
	Status                                      int
	Age                                         int64
}

func requireProblem(t *testing.T, rec *httptest.ResponseRecorder, httpStatus int, word string) problem {
	t.Helper()
	require.Equal(t, httpStatus, rec.Code, rec.Body.String())
	require.Equal(t, "application/problem+json", rec.Header().Get("Content-Type"))
	var p problem
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &p))
	require.Equal(t, httpStatus, p.Status)
	require.NotEmpty(t, p.Title)
	if word != "" {
		require.Equal(t, nethttp.ProblemBase+word, p.Type)
	}
	require.Empty(t, rec.Header().Get(nethttp.HeaderReplayed))
	return p
}

func requireReplayed(t *testing.T, first, repeat *httptest.ResponseRecorder) {
	t.Helper()
	require.Equal(t, first.Code, repeat.Code)
	require.Equal(t, first.Body.String(), repeat.Body.String())
	require.Equal(t, first.Header().Get("Content-Type"), repeat.Header().Get("Content-Type"))
	require.Equal(t, first.Header().Get(nethttp.HeaderRecord), repeat.Header().Get(nethttp.HeaderRecord))
	require.Empty(t, first.Header().Get(nethttp.HeaderReplayed))
	require.Equal(t, "true", repeat.Header().Get(nethttp.HeaderReplayed))
}

// lookup tells the record of a key of ada's.
func (w *world) lookup(t *testing.T, operation, key string) *dedupv1.RecordInfo {
	t.Helper()
	resp, err := dedupv1.NewDedupServiceClient(w.dedupd.Conn()).Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_Identity{Identity: &dedupv1.Identity{
			Namespace: namespace, Operation: operation, Caller: []byte("ada"), Key: []byte(key),
		}},
	})
	require.NoError(t, err)
	return resp.GetRecord()
}

// pass lets time go by; only called in synctest bubbles.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // only called in bubbles
}
