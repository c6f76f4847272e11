package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/apt"
)

// These tests run what is in deploy/ with the programs that it is for.

const deployDir = "../../deploy"

func TestAlertRulesDoWhatTheirTestsSay(t *testing.T) {
	t.Parallel()
	promtool, err := apt.Command("prometheus", "promtool")
	require.NoError(t, err)
	cmd := exec.Command(promtool, "test", "rules", "dedupd.rules.test.yaml")
	cmd.Dir = filepath.Join(deployDir, "prometheus")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	rules, err := os.ReadFile(filepath.Join(deployDir, "prometheus", "dedupd.rules.yaml"))
	require.NoError(t, err)
	tests, err := os.ReadFile(filepath.Join(deployDir, "prometheus", "dedupd.rules.test.yaml"))
	require.NoError(t, err)
	names := regexp.MustCompile(`- alert: (\w+)`).FindAllSubmatch(rules, -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Regexp(t, `alertname: `+string(name[1])+`\n\s+exp_alerts:\n\s+- exp_labels`, string(tests), "no test lets %s fire", name[1])
	}
}

// Every query of the dashboard, and every metric of the rules, is there in a
// Prometheus that scrapes a dedupd at work.
func TestTheDashboardShowsARunningDedupd(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	prom := startPrometheus(t, strings.TrimPrefix(s.http, "http://"))
	keepBusy(t, s)

	var board struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	text, err := os.ReadFile(filepath.Join(deployDir, "grafana", "dedupd.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &board))
	queries := map[string]string{}
	fill := strings.NewReplacer("$__rate_interval", "10s", "$namespace", ".*")
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			queries[p.Title+": "+q.Expr] = fill.Replace(q.Expr)
		}
	}
	require.Greater(t, len(queries), 20)
	all := func() bool {
		for name, q := range queries {
			if prom.has(t, q) {
				delete(queries, name)
			}
		}
		return len(queries) == 0
	}
	for end := time.Now().Add(3 * time.Minute); !all() && time.Now().Before(end); {
		<-time.After(time.Second) // the next scrape
	}
	require.Empty(t, queries, "these give no data")

	rules, err := os.ReadFile(filepath.Join(deployDir, "prometheus", "dedupd.rules.yaml"))
	require.NoError(t, err)
	for _, metric := range regexp.MustCompile(`dedupd_[a-z_]+`).FindAllString(string(rules), -1) {
		if !strings.HasPrefix(metric, "dedupd_sql_") && !lateOnes[metric] {
			require.True(t, prom.has(t, metric), "there is no metric %s", metric)
		}
	}
}

// lateOnes exist from their first event on, which this test does not make.
var lateOnes = map[string]bool{
	"dedupd_conflicts_total": true, "dedupd_dead_letters_refused_total": true, "dedupd_overdue_records": true,
	"dedupd_alert_messages_total": true,
}

// A receiver made for Alertmanager takes dedupd's own messages: both are read by
// one strict decoder.
func TestTheWebhookSpeaksAsTheRealAlertmanagerDoes(t *testing.T) {
	t.Parallel()
	program, err := apt.Command("prometheus-alertmanager", "prometheus-alertmanager", "alertmanager")
	require.NoError(t, err)
	got := make(chan string, 64)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		got <- body.String()
	}))
	t.Cleanup(hook.Close)

	dir, addr := t.TempDir(), freeAddress(t)
	config := filepath.Join(dir, "alertmanager.yaml")
	text, err := os.ReadFile(filepath.Join(deployDir, "alertmanager", "alertmanager.yaml"))
	require.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("http://receiver.example:8080/alerts"), []byte(hook.URL))
	text = bytes.ReplaceAll(text, []byte("group_wait: 30s"), []byte("group_wait: 100ms"))
	require.NoError(t, os.WriteFile(config, text, 0o600))
	start(t, program, "--config.file="+config, "--storage.path="+dir, "--web.listen-address="+addr, "--cluster.listen-address=")
	alert := `[{"labels":{"alertname":"DedupdDeadLettersParked","namespace":"shop"},"annotations":{"summary":"s"}}]`
	require.Eventually(t, func() bool {
		res, err := http.Post("http://"+addr+"/api/v2/alerts", "application/json", strings.NewReader(alert)) //nolint:noctx // loopback
		if err != nil {
			return false
		}
		return res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}, time.Minute, 100*time.Millisecond)
	theirs := decodeWebhook(t, <-got)

	s := serve(t, "--in-memory", "--alert-webhook", hook.URL, "--alert-every", "1s")
	parkOne(t, s, "k", 1)
	ours := decodeWebhook(t, <-got)
	for _, m := range []webhookPayload{theirs, ours} {
		require.Equal(t, "4", m.Version)
		require.Equal(t, "firing", m.Status)
		require.Equal(t, "shop", m.GroupLabels["namespace"])
		require.Contains(t, m.GroupKey, `namespace="shop"`)
		require.NotEmpty(t, m.Alerts[0].Fingerprint)
		require.False(t, m.Alerts[0].StartsAt.IsZero())
		require.True(t, m.Alerts[0].EndsAt.IsZero())
	}
}

// webhookPayload is Alertmanager's webhook message, version 4, by its documentation.
type webhookPayload struct {
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	TruncatedAlerts   int               `json:"truncatedAlerts"`
	Status            string            `json:"status"`
	Receiver          string            `json:"receiver"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Alerts            []struct {
		Status       string            `json:"status"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
		StartsAt     time.Time         `json:"startsAt"`
		EndsAt       time.Time         `json:"endsAt"`
		GeneratorURL string            `json:"generatorURL"`
		Fingerprint  string            `json:"fingerprint"`
	} `json:"alerts"`
}

func decodeWebhook(t *testing.T, text string) (m webhookPayload) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&m), text)
	require.NotEmpty(t, m.Alerts, text)
	return m
}

// promServer is a Prometheus that scrapes one dedupd each second.
type promServer struct{ url string }

func startPrometheus(t *testing.T, target string) *promServer {
	t.Helper()
	program, err := apt.Command("prometheus", "prometheus")
	require.NoError(t, err)
	rules, err := filepath.Abs(filepath.Join(deployDir, "prometheus", "dedupd.rules.yaml"))
	require.NoError(t, err)
	dir, addr := t.TempDir(), freeAddress(t)
	config := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs:\n  - {job_name: dedupd, static_configs: [{targets: [%q]}]}\n",
		rules, target), 0o600))
	start(t, program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	return &promServer{url: "http://" + addr}
}

// has reports whether a query gives at least one number.
func (p *promServer) has(t *testing.T, query string) bool {
	t.Helper()
	res, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(query)) //nolint:noctx // loopback
	if err != nil {
		return false // it is starting
	}
	defer func() { require.NoError(t, res.Body.Close()) }()
	var reply struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			Result []any `json:"result"`
		} `json:"data"`
	}
	if json.NewDecoder(res.Body).Decode(&reply) != nil {
		return false // likewise
	}
	require.Equal(t, "success", reply.Status, "%s: %s", query, reply.Error)
	return len(reply.Data.Result) > 0
}

// start runs a program until the test ends.
func start(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", program, &log)
		}
	})
}

// keepBusy does, until the test ends, all that the dashboard has a panel for.
func keepBusy(t *testing.T, s *served) {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	dedup := dedupv1.NewDedupServiceClient(conn)
	lapsed := reserveRequest("lapsed", 1)
	lapsed.Lease = durationpb.New(time.Second)
	_, err = dedup.Reserve(t.Context(), lapsed)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var busy sync.WaitGroup
	busy.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			key := fmt.Sprintf("k-%d", n)
			held := reserveRequest(key, 1)
			reply, err := dedup.Reserve(ctx, held)
			if err != nil {
				continue // the test has ended
			}
			waiting := reserveRequest(key, 2)
			waiting.Wait = durationpb.New(20 * time.Millisecond)
			_, _ = dedup.Reserve(ctx, waiting)
			_, _ = dedup.Release(ctx, &dedupv1.ReleaseRequest{
				Identity: identity(key), AttemptId: held.GetAttemptId(), Fence: reply.GetGranted().GetFence(), Effect: dedupv1.Effect_EFFECT_NONE,
			})
			again := reserveRequest(key, 3)
			if reply, err = dedup.Reserve(ctx, again); err != nil {
				continue
			}
			_, _ = dedup.Complete(ctx, &dedupv1.CompleteRequest{
				Identity: identity(key), AttemptId: again.GetAttemptId(), Fence: reply.GetGranted().GetFence(), Outcome: outcomeOf(key),
			})
			_, _ = dedup.Reserve(ctx, reserveRequest(key, 4))
			_, _ = dedupv1.NewDeadLetterServiceClient(conn).Park(ctx, parkRequest("parked", byte(n)))
		}
	})
	t.Cleanup(func() {
		stop()
		busy.Wait()
		require.NoError(t, conn.Close())
	})
}

func parkRequest(key string, park byte) *dedupv1.ParkRequest {
	return &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: identity(key)}, ParkId: bytes.Repeat([]byte{park}, 16),
		Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: operation,
		Request: &dedupv1.Response{TypeUrl: "type.googleapis.com/x.Y", Value: []byte("request")},
	}
}

func parkOne(t *testing.T, s *served, key string, park byte) {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	_, err = dedupv1.NewDeadLetterServiceClient(conn).Park(t.Context(), parkRequest(key, park))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
