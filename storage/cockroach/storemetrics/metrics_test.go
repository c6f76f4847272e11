package storemetrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage/cockroach/storemetrics"
)

func TestWhatAStoreTellsIsCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	o, err := storemetrics.New(reg)
	require.NoError(t, err)
	o.Batch("reserve", 3)
	o.Retry("ambiguous")
	o.Retry("ambiguous")
	o.Swept(7, 90*time.Second)
	o.Swept(0, 0)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP dedupd_sql_retries_total Tries that failed and were made again.
# TYPE dedupd_sql_retries_total counter
dedupd_sql_retries_total{cause="ambiguous"} 2
# HELP dedupd_sql_sweep_backlog_seconds How long the oldest row of the last sweep had been overdue.
# TYPE dedupd_sql_sweep_backlog_seconds gauge
dedupd_sql_sweep_backlog_seconds 0
# HELP dedupd_sql_swept_rows_total Rows deleted by this process after the end of their time.
# TYPE dedupd_sql_swept_rows_total counter
dedupd_sql_swept_rows_total 7
`), "dedupd_sql_retries_total", "dedupd_sql_sweep_backlog_seconds", "dedupd_sql_swept_rows_total"))
	count, err := testutil.GatherAndCount(reg, "dedupd_sql_batch_calls")
	require.NoError(t, err)
	require.Equal(t, 1, count)

	_, err = storemetrics.New(reg)
	require.Error(t, err, "registered twice")
}
