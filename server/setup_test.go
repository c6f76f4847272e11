package server

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// validator is shared: compiling the limits for every test takes most of the time.
var validator = sync.OnceValues(newValidator)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is a server over a fake store, and clients of it.
type bundle struct {
	*Server
	store *fakeStore
	logs  *logBuffer
	reg   *prometheus.Registry
	dedup dedupv1.DedupServiceClient
	dead  dedupv1.DeadLetterServiceClient
	admin dedupv1.AdminServiceClient
}

func setup(t *testing.T, change ...func(*Config)) *bundle {
	t.Helper()
	b := &bundle{store: newFakeStore(), logs: &logBuffer{}, reg: prometheus.NewRegistry()}
	cfg := Config{
		Store:    b.store,
		Registry: b.reg,
		Logger:   slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Version:  "test",
	}
	var err error
	cfg.validator, err = validator()
	require.NoError(t, err)
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	b.Server = s
	b.use(s.Conn())
	return b
}

func (b *bundle) use(cc grpc.ClientConnInterface) {
	b.dedup, b.admin = dedupv1.NewDedupServiceClient(cc), dedupv1.NewAdminServiceClient(cc)
	b.dead = dedupv1.NewDeadLetterServiceClient(cc)
}

// running is a server on listeners of its own.
type running struct {
	cc   *grpc.ClientConn
	web  *bufconn.Listener
	stop context.CancelFunc // begins the drain
	done chan struct{}      // closes when Run has returned
	err  error              // of Run
}

// serve runs the server until the test ends, or stop.
func (b *bundle) serve(t *testing.T) *running {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	r := &running{web: bufconn.Listen(1 << 20), done: make(chan struct{})}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(r.done)
		r.err = b.Run(ctx, lis, r.web)
	}()
	cc, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(2*MaxMessage)))
	require.NoError(t, err)
	r.cc = cc
	t.Cleanup(func() {
		require.NoError(t, cc.Close())
		r.stop()
		<-r.done
	})
	return r
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

const (
	testNamespace = "billing"
	testOperation = "/payments.v1.Payments/Charge"
	secretKey     = "order-4471-key"
)

func identity() *dedupv1.Identity {
	return &dedupv1.Identity{Namespace: testNamespace, Operation: testOperation, Caller: []byte("customer-7"), Key: []byte(secretKey)}
}

func attempt(n byte) []byte { return bytes.Repeat([]byte{n}, 16) }

func prints(digest string) []*dedupv1.Fingerprint {
	return []*dedupv1.Fingerprint{{Version: 1, Digest: []byte(digest)}}
}

func reserveReq(n byte) *dedupv1.ReserveRequest {
	return &dedupv1.ReserveRequest{Identity: identity(), Fingerprints: prints("request"), AttemptId: attempt(n)}
}

func waiting(n byte, wait time.Duration) *dedupv1.ReserveRequest {
	req := reserveReq(n)
	req.Wait = durationpb.New(wait)
	return req
}

func completeReq(n byte, fence int64, response string) *dedupv1.CompleteRequest {
	return &dedupv1.CompleteRequest{Identity: identity(), AttemptId: attempt(n), Fence: fence, Outcome: &dedupv1.Outcome{
		Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{TypeUrl: "type.googleapis.com/x.Y", Value: []byte(response)}},
	}}
}

func releaseReq(n byte, fence int64, effect dedupv1.Effect) *dedupv1.ReleaseRequest {
	return &dedupv1.ReleaseRequest{Identity: identity(), AttemptId: attempt(n), Fence: fence, Effect: effect}
}

// grant reserves the test's key, which must be free.
func (b *bundle) grant(t *testing.T, n byte) *dedupv1.Granted {
	t.Helper()
	res, err := b.dedup.Reserve(t.Context(), reserveReq(n))
	require.NoError(t, err)
	require.NotNil(t, res.GetGranted(), "got %v", res)
	return res.GetGranted()
}

// details are what every refusal carries.
type details struct {
	code  codes.Code
	info  *errdetails.ErrorInfo
	retry *errdetails.RetryInfo
	bad   *errdetails.BadRequest
}

func detailsOf(t *testing.T, err error) details {
	t.Helper()
	st, ok := status.FromError(err)
	require.True(t, ok, "%v", err)
	d := details{code: st.Code()}
	for _, any := range st.Details() {
		switch v := any.(type) {
		case *errdetails.ErrorInfo:
			d.info = v
		case *errdetails.RetryInfo:
			d.retry = v
		case *errdetails.BadRequest:
			d.bad = v
		}
	}
	return d
}

// requireRefused checks the code, the reason and what every refusal names.
func requireRefused(t *testing.T, err error, code codes.Code, reason dedupv1.Reason) details {
	t.Helper()
	require.Error(t, err)
	d := detailsOf(t, err)
	require.Equal(t, code, d.code, "%v", err)
	require.NotNil(t, d.info, "%v", err)
	require.Equal(t, "dedup.v1", d.info.GetDomain())
	require.Equal(t, reason.String(), "REASON_"+d.info.GetReason())
	return d
}

// metric is the value of a counter or gauge by its full name, over all labels.
func (b *bundle) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := b.reg.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for i := 0; i+1 < len(labels); i += 2 {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !found {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func TestMetricNamesFollowTheRules(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.grant(t, 1)
	b.park(t, "a")
	b.core.census.setOverdue(map[string]int64{testNamespace: 1})
	b.core.census.count(t.Context())
	require.InDelta(t, 1, b.metric(t, "dedupd_overdue_records"), 0)
	problems, err := testutil.GatherAndLint(b.reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}
