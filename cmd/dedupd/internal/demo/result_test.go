package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func made(id, order string) charge { return charge{ID: id, Order: order, Amount: amountOf(order)} }

func TestTallyComparesWhatClientsKnowWithTheLedger(t *testing.T) {
	t.Parallel()
	got := tally([]placement{
		{order: "once", told: "c1", took: time.Millisecond},
		{order: "twice", told: "c3", took: 3 * time.Millisecond},
		{order: "lost"},
		{order: "charged but not told"},
		{order: "told of nothing", told: "c9", took: 2 * time.Millisecond},
		{order: "told of another's", told: "c1", took: 2 * time.Millisecond},
	}, map[string][]charge{
		"once":                 {made("c1", "once")},
		"twice":                {made("c2", "twice"), made("c3", "twice")},
		"charged but not told": {made("c4", "charged but not told")},
		"told of another's":    {made("c5", "told of another's")},
	})
	require.Equal(t, Result{
		Asked: 6, Once: 3, Twice: 1, Lost: 2, Unknown: 2, Wrong: 2,
		P50: 2 * time.Millisecond, P99: 3 * time.Millisecond,
	}, got)
}

func TestQuantilesAreOfWhatWasMeasured(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	require.EqualValues(t, 50, quantile(hundred, 0.5))
	require.EqualValues(t, 99, quantile(hundred, 0.99))
	require.EqualValues(t, 1, quantile(hundred[:1], 0.99))
	require.Zero(t, quantile(nil, 0.5))
}

func TestOnlyAnExactRunPasses(t *testing.T) {
	t.Parallel()
	exact := Result{Mode: Protected, Asked: 10, Once: 10}
	require.NoError(t, Report{{Mode: PlainRetries, Asked: 10, Once: 4, Twice: 6}, exact}.Err())
	for name, spoil := range map[string]func(*Result){
		"nothing asked":     func(r *Result) { *r = Result{Mode: Protected} },
		"charged twice":     func(r *Result) { r.Once, r.Twice = 9, 1 },
		"lost":              func(r *Result) { r.Once, r.Lost = 9, 1 },
		"left unknown":      func(r *Result) { r.Unknown = 1 },
		"told of another's": func(r *Result) { r.Wrong = 1 },
	} {
		r := exact
		spoil(&r)
		require.Error(t, Report{r}.Err(), name)
	}
	require.Error(t, Report{{Mode: PlainRetries, Asked: 10, Once: 10}}.Err(), "a report without the protected run proves nothing")
}

func TestReportSaysWhatItsColumnsMean(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, Report{
		{Mode: NoRetries, Asked: 10, Once: 7, Lost: 3, Unknown: 4, PaymentsKills: 2},
		{Mode: PlainRetries, Asked: 10, Once: 8, Twice: 2, PaymentsKills: 2},
		{Mode: Protected, Asked: 10, Once: 10, P50: 12345 * time.Microsecond, P99: 1234 * time.Millisecond, PaymentsKills: 2, DedupdKills: 1},
	}.Write(&out))
	for _, want := range []string{
		"charged once", "charged twice", "lost", "unknown", "12ms", "1.23s", "kill -9 of payments: 2, 2, 2, of dedupd: 0, 0, 1",
		"orders with one, several, no charges in the ledger",
		"plain retries charged 2 of 10 orders more than once",
		"every one of 10 orders was charged exactly once",
	} {
		require.Contains(t, out.String(), want)
	}
	out.Reset()
	require.NoError(t, Report{{Mode: PlainRetries, Asked: 10, Once: 10}}.Write(&out))
	require.Contains(t, out.String(), "charged nothing twice this time")
}
