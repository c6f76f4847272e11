package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

func TestADrainLetsCallsFinishAndTurnsNewWorkAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		r := b.serve(t)
		b.use(r.cc)
		g := b.grant(t, 1)

		entered, finish := make(chan struct{}), make(chan struct{})
		b.store.hook(func(_ context.Context, call string) error {
			if call == "Complete" {
				close(entered)
				<-finish
			}
			return nil
		})
		completed := make(chan error, 1)
		go func() {
			_, err := b.dedup.Complete(context.WithoutCancel(t.Context()), completeReq(1, g.GetFence(), "x"))
			completed <- err
		}()
		<-entered
		held := make(chan *dedupv1.ReserveResponse, 1)
		go func() {
			res, _ := b.dedup.Reserve(context.WithoutCancel(t.Context()), waiting(2, 30*time.Second))
			held <- res
		}()
		synctest.Wait()
		r.stop()
		require.NotNil(t, (<-held).GetInProgress(), "held callers are answered")

		d := requireRefused(t, b.reserve(t, 3), codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		require.NotNil(t, d.retry)
		_, err := b.dedup.Extend(t.Context(), &dedupv1.ExtendRequest{Identity: identity(), AttemptId: attempt(1), Fence: g.GetFence()})
		require.NoError(t, err, "holders are served")
		health, err := grpc_health_v1.NewHealthClient(r.cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, health.GetStatus())

		close(finish)
		require.NoError(t, <-completed)
		<-r.done
		require.NoError(t, r.err)
		require.Contains(t, b.logs.String(), "stopped: every call was answered")
		_, err = dedupv1.NewDedupServiceClient(b.Conn()).Lookup(t.Context(), lookupReq(0))
		requireRefused(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		require.ErrorContains(t, b.Run(t.Context(), bufconn.Listen(1), nil), "before")
	})
}

func TestACallThatDoesNotEndIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, func(c *Config) { c.DrainTimeout = 5 * time.Second })
		r := b.serve(t)
		finish := make(chan struct{})
		b.store.hook(func(_ context.Context, call string) error {
			if call == "Reserve" {
				<-finish // whatever its context says
			}
			return nil
		})
		failed := make(chan error, 1)
		go func() {
			_, err := dedupv1.NewDedupServiceClient(b.Conn()).Reserve(context.WithoutCancel(t.Context()), reserveReq(1))
			failed <- err
		}()
		synctest.Wait()
		began := time.Now()
		r.stop()
		<-r.done
		require.ErrorContains(t, r.err, "1 calls were cut off")
		require.NotContains(t, b.logs.String(), "stopped: every call was answered")
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Equal(t, codes.Unavailable, status.Code(<-failed))
		close(finish)
	})
}

func TestAListenerThatFailsEndsRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lis, web := bufconn.Listen(1), bufconn.Listen(1)
	require.NoError(t, web.Close())
	require.ErrorContains(t, b.Run(t.Context(), lis, web), "serve http")
}

func TestHealthFollowsTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		inProcess := grpc_health_v1.NewHealthClient(b.Conn())
		requireHealth := func(c grpc_health_v1.HealthClient, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for _, service := range []string{"", "dedup.v1.DedupService", "dedup.v1.DeadLetterService", "dedup.v1.AdminService"} {
				res, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
				require.NoError(t, err)
				require.Equal(t, want, res.GetStatus(), service)
			}
		}
		const up, down = grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING
		requireHealth(inProcess, down)
		r := b.serve(t)
		health := grpc_health_v1.NewHealthClient(r.cc)
		watch, err := health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		synctest.Wait()
		requireHealth(health, up)
		requireGet(t, r, "/readyz", http.StatusOK, "ready\n")

		b.store.fail(errDown, "Check", "Reserve")
		requireRefused(t, b.reserve(t, 1), codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		time.Sleep(healthPause) //nolint:forbidigo // inside a bubble
		synctest.Wait()
		requireHealth(health, down) // before its turn: a call has failed
		requireGet(t, r, "/readyz", http.StatusServiceUnavailable, "the store cannot be reached\n")
		requireGet(t, r, "/healthz", http.StatusOK, "alive\n")
		time.Sleep(5 * time.Second) //nolint:forbidigo // inside a bubble
		require.Equal(t, 1, strings.Count(b.logs.String(), "not ready"), "only changes are logged")

		b.store.fail(nil)
		time.Sleep(healthEvery) //nolint:forbidigo // inside a bubble
		synctest.Wait()
		requireHealth(health, up)

		block := make(chan struct{})
		b.store.hook(func(_ context.Context, call string) error {
			if call == "Check" {
				<-block // a store that hangs, whatever its context says
			}
			return nil
		})
		time.Sleep(healthEvery + healthTimeout) //nolint:forbidigo // inside a bubble
		synctest.Wait()
		requireHealth(health, down)
		close(block)

		r.stop()
		<-r.done
		require.NoError(t, r.err, "a watch does not hold the drain up")
		requireHealth(inProcess, down)
		for {
			if _, err = watch.Recv(); err != nil {
				break
			}
		}
	})
}

func requireGet(t *testing.T, r *running, path string, code int, body string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.web.DialContext(ctx) }}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://dedupd"+path, nil)
	require.NoError(t, err)
	res, err := transport.RoundTrip(req)
	require.NoError(t, err)
	defer res.Body.Close() //nolint:errcheck // read to its end
	got, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, code, res.StatusCode)
	require.Contains(t, string(got), body)
}

func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.serve(t)
	b.grant(t, 1)
	requireGet(t, r, "/metrics", http.StatusOK, `dedupd_reserves_total{namespace="billing",operation="`+testOperation+`",verdict="granted"} 1`)
	requireGet(t, r, "/metrics", http.StatusOK, `dedupd_build_info{version="test"} 1`)
	requireGet(t, r, "/nothing", http.StatusNotFound, "")
}

func TestLabelsThatCallersChooseAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n := range maxOperations + 50 {
		b.metrics.operation(storage.Identity{Namespace: "n", Operation: string(rune('a' + n))}).reserved(storage.Answer{Verdict: storage.VerdictGranted, Record: &storage.Record{Grants: 1}})
	}
	require.Len(t, b.metrics.operations, maxOperations+1)
	require.InDelta(t, 50, b.metric(t, "dedupd_reserves_total", "operation", otherLabel), 0)
}

func TestOldRecordsAreSweptInBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, func(c *Config) { c.SweepEvery = time.Minute })
		for n := range 2*sweepBatch + 1 {
			b.store.rows[storage.RecordID{byte(n), byte(n >> 8)}] = &storage.Record{DropAt: 1}
		}
		b.serve(t)
		b.store.fail(errBroken, "Sweep")
		time.Sleep(time.Minute + time.Second) //nolint:forbidigo // inside a bubble
		require.Contains(t, b.logs.String(), "deleting old records failed")
		b.store.fail(nil)
		time.Sleep(time.Minute) //nolint:forbidigo // inside a bubble
		require.Zero(t, b.store.size())
		require.Equal(t, 1+3, b.store.calls("Sweep"))
		require.InDelta(t, 2*sweepBatch+1, b.metric(t, "dedupd_swept_records_total"), 0)
	})
}

func TestReflectionListsTheServices(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.serve(t)
	var names []string
	v1, err := reflectionv1.NewServerReflectionClient(r.cc).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, v1.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	res, err := v1.Recv()
	require.NoError(t, err)
	for _, s := range res.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	require.Subset(t, names, []string{"dedup.v1.DedupService", "dedup.v1.DeadLetterService", "dedup.v1.AdminService", "grpc.health.v1.Health"})
	require.NoError(t, v1.CloseSend())

	alpha, err := reflectionv1alpha.NewServerReflectionClient(r.cc).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, alpha.Send(&reflectionv1alpha.ServerReflectionRequest{ //nolint:staticcheck // as above
		MessageRequest: &reflectionv1alpha.ServerReflectionRequest_ListServices{},
	}))
	_, err = alpha.Recv()
	require.NoError(t, err)
	require.NoError(t, alpha.CloseSend())
}

func TestCallsAreLoggedByRecordAndNeverByContent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.grant(t, 1)
	req := reserveReq(2)
	req.Fingerprints = prints("another")
	_, err := b.dedup.Reserve(t.Context(), req)
	require.Error(t, err)
	for _, want := range []string{
		"record=" + storageIdentity().RecordID().Short(), "operation=" + testOperation, "namespace=" + testNamespace,
		"grpc.code=OK", "grpc.code=FailedPrecondition", "reason=KEY_REUSED", "duration=",
	} {
		require.Contains(t, b.logs.String(), want)
	}
	require.NotContains(t, b.logs.String(), secretKey)
	require.NotContains(t, b.logs.String(), "customer-7")
}

// spanNames is a tracer provider that only notes names.
type spanNames struct {
	noop.TracerProvider
	names chan string
}

type nameTracer struct {
	noop.Tracer
	names chan string
}

func (s *spanNames) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return &nameTracer{names: s.names}
}

func (n *nameTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	n.names <- name
	return n.Tracer.Start(ctx, name, opts...)
}

func TestCallsAreTracedWhereATracerIsGiven(t *testing.T) {
	t.Parallel()
	spans := &spanNames{names: make(chan string, 10)}
	b := setup(t, func(c *Config) { c.TracerProvider = spans })
	b.use(b.serve(t).cc)
	b.grant(t, 1)
	require.Equal(t, "dedup.v1.DedupService/Reserve", <-spans.names)
}
