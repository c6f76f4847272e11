package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/bench"
)

// A02 D01: replies are lost, processes are killed, and every order is charged
// once; without dedupd some are charged twice.
func TestDemoChargesEveryOrderOnce(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	cmd := command(t, "demo", "--orders", "200", "--clients", "8", "--seed", "1", "--down", "0")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp, "DEDUPD_IN_MEMORY=true")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "%s%s", &out, &errs)
	require.Regexp(t, `no retries +200 `, out.String())
	require.Regexp(t, `plain retries +200 +\d+ +[1-9]\d* +0 `, out.String(), "plain retries charge twice")
	require.Regexp(t, `dedupd +200 +200 +0 +0 +0 `, out.String())
	require.Contains(t, out.String(), "every one of 200 orders was charged exactly once")
	require.Contains(t, errs.String(), "kill -9 of dedupd after 100 orders")
	requireNothingLeft(t, tmp)
}

func TestDemoInterruptedLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	cmd := command(t, "demo", "--orders", "1000")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	interrupted, last := false, ""
	for lines.Scan() {
		last = lines.Text()
		if !interrupted && strings.Contains(last, "of 1000 orders") {
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			interrupted = true
		}
	}
	_ = cmd.Wait() // the code says it
	require.True(t, interrupted)
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), last)
	require.Equal(t, "dedupd: interrupted", last)
	requireNothingLeft(t, tmp)
}

// requireNothingLeft fails if tmp holds a file, or a process was started with a
// path below it and still runs.
func requireNothingLeft(t *testing.T, tmp string) {
	t.Helper()
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, p := range processes {
		line, err := os.ReadFile(p)
		if err == nil { // else it has just ended
			require.NotContains(t, string(line), tmp)
		}
	}
}

func TestDemoKeepsItsFilesWhenAsked(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	cmd := command(t, "demo", "--orders", "20", "--keep", "--down", "1s")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Run(), errs.String())
	dir := find(t, errs.String(), `are kept in (\S+)`)
	require.FileExists(t, filepath.Join(dir, "2-plain-retries", "ledger"))
	require.DirExists(t, filepath.Join(dir, "3-dedupd", "data"))
	require.DirExists(t, filepath.Join(find(t, errs.String(), `of the outage are kept in (\S+)`), "outage", "data"))
}

// E09 F02: while the service is away, budget and breaker keep nearly every try
// from it; it comes back to orders that are charged once each.
func TestDemoMeetsAnOutageWithFarFewerTriesUnderBudgetAndBreaker(t *testing.T) {
	t.Parallel()
	stdout, stderr := exits(t, exitDone, "demo", "--orders", "10", "--loss", "0", "--down", "2s")
	tries := func(way string) int {
		row := regexp.MustCompile(way + ` +(\d+) +(\d+) +0 +(\d+) `).FindStringSubmatch(stdout)
		require.Len(t, row, 4, stdout)
		require.Equal(t, row[1], row[2], "asked and charged once")
		n, err := strconv.Atoi(row[3])
		require.NoError(t, err)
		return n
	}
	alone, budget, both := tries("retries alone"), tries("with a budget"), tries("budget and breaker")
	require.Less(t, budget, alone)
	require.Less(t, both*4, alone)
	require.Positive(t, both, "the breaker had to see that the service is away")
	require.Contains(t, stdout, "every order was charged exactly once\n")
	require.Contains(t, stderr, "stays away for 2s")
	_, stderr = exits(t, exitUsage, "demo", "--down", "1ms")
	require.Contains(t, stderr, "--down is 1ms; 1s to 1m are allowed")
}

func TestBenchMeasuresRatiosToABareEcho(t *testing.T) {
	t.Parallel()
	stdout, _ := exits(t, exitDone, "bench", "--callers", "4", "--duration", "100ms", "--rounds", "1", "-o", "json")
	var report bench.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	for name, s := range map[string]bench.Series{"echo": report.Echo, "reserve": report.Reserve, "cycle": report.Cycle, "replay": report.Replay} {
		require.Positive(t, s.PerSecond, name)
		require.Positive(t, s.ToEcho, name)
	}
	require.Positive(t, report.Records)
	require.GreaterOrEqual(t, report.DiskPerRecord, int64(64+256), "what is stored is on disk")
	_, stderr := exits(t, exitFailed, "bench", "--callers", "0")
	require.Contains(t, stderr, "0 callers are out of range")
}
