package prom_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/prom"
)

const method = "/shop.v1.Orders/Place"

func TestEveryEventOfAClientIsCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	var observers [2]interceptors.CallObserver
	for i := range observers { // two connections count into the same metrics
		var err error
		observers[i], err = prom.Client(reg)
		require.NoError(t, err)
	}
	for _, o := range observers {
		ctx := context.Background()
		o.Attempt(ctx, method, 1)
		o.Retry(ctx, method, codes.Unavailable)
		o.Wait(ctx, method)
		o.BudgetSpent(ctx, method)
		o.BreakerOpen(ctx, method)
		o.Stream(ctx, method)
		o.Permanent(ctx, method, codes.NotFound)
		o.Unparked(ctx, method)
		o.Ended(ctx, method, interceptors.CallEnd{Code: codes.OK, Replayed: true, RecordID: strings.Repeat("ab", 32)})
		o.Ended(ctx, method, interceptors.CallEnd{Code: codes.Unavailable, Unknown: true})
	}
	var want strings.Builder
	for _, c := range [][3]string{
		{"attempts", "Tries that were sent.", ""},
		{"breaker_refusals", "Tries that the circuit breaker held back.", ""},
		{"budget_refusals", "Retries that the retry budget refused.", ""},
		{"permanent_errors", "Calls of methods that park which ended with an error that no replay would cure, by status code.", `code="NotFound",`},
		{"unparked", "Calls that were to be parked, and nothing told which record it is.", ""},
		{"replays", "Calls that got the answer of an earlier run.", ""},
		{"retries", "Tries after which the call was tried again, by status code.", `code="Unavailable",`},
		{"streams", "Streaming calls that passed through.", ""},
		{"unknown_outcomes", "Calls after which nobody knows whether the effect happened.", ""},
		{"waits", "Tries that found somebody else at work on the key.", ""},
	} {
		fmt.Fprintf(&want, "# HELP dedup_client_%s_total %s\n# TYPE dedup_client_%s_total counter\ndedup_client_%s_total{%smethod=%q} 2\n", c[0], c[1], c[0], c[0], c[2], method)
	}
	fmt.Fprintf(&want, "# HELP dedup_client_calls_total Unary calls that ended, by status code.\n# TYPE dedup_client_calls_total counter\n"+
		"dedup_client_calls_total{code=\"OK\",method=%q} 2\ndedup_client_calls_total{code=\"Unavailable\",method=%q} 2\n", method, method)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(want.String())))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestEveryMetricOfAServerHasAGoodName(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	var observers [2]interceptors.Observer
	for i := range observers { // two engines count into the same metrics
		var err error
		observers[i], err = prom.Server(reg)
		require.NoError(t, err)
	}
	for _, o := range observers {
		for _, f := range []func(string){
			o.Granted, o.Replayed, o.LeaseLost, o.Unacknowledged, o.Undelivered, o.Superseded,
			o.Reconciled, o.Unreconciled, o.Partial, o.CompleterFull, o.Keyless, o.Unprotected,
		} {
			f(method)
		}
		o.Refused(method, dedupv1.Reason_REASON_KEY_REUSED)
		o.Observed(method, interceptors.SightMismatch, dedupv1.Reason_REASON_KEY_REUSED)
		o.Stream(method, true)
		o.JournalFailed()
		o.Pending(1, 1)
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	var got []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			require.InDelta(t, 2, m.GetCounter().GetValue()+m.GetGauge().GetValue(), 0, f.GetName())
			labels := ""
			for _, l := range m.GetLabel() {
				labels += " " + l.GetValue()
			}
			got = append(got, strings.TrimPrefix(f.GetName(), "dedup_server_")+labels)
		}
	}
	require.ElementsMatch(t, []string{
		"runs_total " + method, "replays_total " + method, "leases_lost_total " + method, "unacknowledged_total " + method,
		"undelivered_total " + method, "superseded_total " + method, "reconciled_total " + method, "unreconciled_total " + method,
		"partial_total " + method, "completer_full_total " + method, "keyless_total " + method, "unprotected_total " + method,
		"refusals_total " + method + " KEY_REUSED", "observed_total " + method + " KEY_REUSED mismatch", "streams_total true " + method,
		"journal_failures_total", "pending_messages", "pending_bytes",
	}, got)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestEveryDeadLetterIsCounted(t *testing.T) { // G03
	t.Parallel()
	reg := prometheus.NewRegistry()
	o, err := prom.Parker(reg)
	require.NoError(t, err)
	const kind = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED
	for range 51 { // each one moves the counter, not only the first
		o.Parked(method, kind)
	}
	o.Spooled(method, kind)
	o.Lost(method)
	o.SpoolFailed()
	o.Waiting(3, 400)
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[strings.TrimPrefix(f.GetName(), "dedup_parker_")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	require.Equal(t, map[string]float64{
		"parked_total": 51, "spooled_total": 1, "lost_total": 1, "spool_failures_total": 1, "spool_entries": 3, "spool_bytes": 400,
	}, got)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
	_, err = prom.Parker(reg)
	require.NoError(t, err, "a second parker counts into the same metrics")
}

func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	o, err := prom.Client(reg)
	require.NoError(t, err)
	for i := range 1500 {
		o.Wait(context.Background(), fmt.Sprintf("/shop.v1.Orders/M%d", i))
	}
	n, err := testutil.GatherAndCount(reg, "dedup_client_waits_total")
	require.NoError(t, err)
	require.Equal(t, 1001, n)
}

func TestAnotherMetricOfTheSameNameIsAnError(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "dedup_client_waits_total", Help: "Mine."}))
	_, err := prom.Client(reg)
	require.Error(t, err)
}
