package cockroach

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPgbench is PostgreSQL's own measure for the same work: pgbench sends the
// store's statements, a row each, with values of the size that Bench uses. It tells
// what the store's Go costs, and what a pool that does not gather can reach at most.
func BenchmarkPgbench(b *testing.B) {
	if !server.Private() {
		b.Skip("pgbench is PostgreSQL's")
	}
	values := map[int]string{ // of reserveSQL
		1: "ARRAY[sha256(:r::text::bytea)]", 2: "ARRAY[0::INT2]", 3: "ARRAY['bench']", 4: "ARRAY['/pay.v1.Payments/Charge']",
		5: "ARRAY['customer-1'::BYTEA]", 6: "ARRAY[repeat('k', 64)::BYTEA]", 7: "ARRAY[substring(sha256(:r::text::bytea) FOR 16)]",
		8: "ARRAY[INTERVAL '1 minute']", 9: "ARRAY[repeat('f', 70)::BYTEA]", 10: "ARRAY[''::BYTEA]",
	}
	reserve := "\\set r random(1, 1000000000000000000)\n" + bound(reserveSQL, values)
	for i, v := range map[int]string{
		2: "ARRAY[:fence::INT8]", 3: values[7], 4: "ARRAY[repeat('o', 300)::BYTEA]", 5: "ARRAY[true]",
		6: "ARRAY[INTERVAL '1 hour']", 7: "ARRAY[INTERVAL '1 hour']",
	} {
		values[i] = v
	}
	cycle := reserve + " \\gset\n" + bound(completeSQL, values) + ";\n"
	for _, load := range []struct{ name, script string }{{"ReserveFresh", reserve + ";\n"}, {"ReserveComplete", cycle}} {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", load.name, callers), func(b *testing.B) {
				opts := Options{URL: server.Schema(b)}
				_, err := Migrate(b.Context(), opts)
				require.NoError(b, err)
				script := filepath.Join(b.TempDir(), "script.sql")
				require.NoError(b, os.WriteFile(script, []byte(load.script), 0o600))
				for range b.N {
					b.ReportMetric(pgbench(b, opts.URL, script, callers), "calls/s")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// bound is a statement of the store with values in place of its parameters.
func bound(sql string, values map[int]string) string {
	for n := len(values); n > 0; n-- { // $10 before $1
		sql = strings.ReplaceAll(sql, "$"+strconv.Itoa(n), values[n])
	}
	return sql
}

// pgbench runs a script for a while and returns its runs per second.
func pgbench(b *testing.B, dsn, script string, callers int) float64 {
	b.Helper()
	const seconds = 5
	u, err := url.Parse(dsn)
	require.NoError(b, err)
	cmd := exec.CommandContext(b.Context(), server.Bin("pgbench"),
		"--no-vacuum", "--protocol=prepared", "--file="+script, "--jobs=2", "--random-seed="+strconv.FormatInt(time.Now().UnixNano(), 10),
		"--client="+strconv.Itoa(callers), "--time="+strconv.Itoa(seconds), "--host="+server.Dir(), "--username=dedupd", "postgres")
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c plan_cache_mode=force_custom_plan -c search_path="+u.Query().Get("search_path"))
	out, err := cmd.CombinedOutput()
	require.NoError(b, err, "%s", out)
	rate := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
	require.NotNil(b, rate, "%s", out)
	v, err := strconv.ParseFloat(string(rate[1]), 64)
	require.NoError(b, err)
	return v
}
