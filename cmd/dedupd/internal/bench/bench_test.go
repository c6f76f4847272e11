package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRatiosAreMediansOfRoundsBesideTheirOwnEcho(t *testing.T) {
	t.Parallel()
	b := &bench{Config: Config{Callers: 2, Rounds: 3, Duration: time.Millisecond}}
	nothing := func(context.Context, int, int) error { return nil }
	series, err := b.rounds(t.Context(), []kind{{nothing, 0}, {nothing, 0}})
	require.NoError(t, err)
	require.Equal(t, []float64{1, 1, 1}, series[0].Rounds)
	require.Len(t, series[1].Rounds, 3)
	require.Contains(t, series[1].Rounds, series[1].ToEcho)
	require.Positive(t, series[1].PerSecond)

	broken := errors.New("broken")
	_, err = b.rounds(t.Context(), []kind{{nothing, 0}, {func(context.Context, int, int) error { return broken }, 0}})
	require.ErrorIs(t, err, broken, "a call that fails is no result")
}

func TestARateIsCallsByTime(t *testing.T) {
	t.Parallel()
	calls := make([]time.Duration, 100)
	for i := range calls {
		calls[i] = time.Duration(i)
	}
	require.Equal(t, Rate{PerSecond: 50, P50: 50, P99: 99}, load{took: 2 * time.Second, calls: calls}.rate())
	require.Zero(t, load{took: time.Second}.rate())
	require.Equal(t, Rate{PerSecond: 2}, middle([]Rate{{PerSecond: 3}, {PerSecond: 1}, {PerSecond: 2}}))
}

func TestDiskUseIsTheSizeOfAllFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), make([]byte, 10), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "b"), make([]byte, 5), 0o600))
	n, err := diskUse(dir)
	require.NoError(t, err)
	require.EqualValues(t, 15, n)
	_, err = diskUse(filepath.Join(dir, "none"))
	require.Error(t, err)
}

func TestRunRefusesSettingsThatMeasureNothing(t *testing.T) {
	t.Parallel()
	good := Config{Executable: "x", Callers: 1, Rounds: 1, Duration: time.Second}
	require.NoError(t, good.validate())
	for want, spoil := range map[string]func(*Config){
		"executable": func(c *Config) { c.Executable = "" },
		"callers":    func(c *Config) { c.Callers = 4097 },
		"rounds":     func(c *Config) { c.Rounds = 0 },
		"too short":  func(c *Config) { c.Duration = time.Millisecond },
	} {
		c := good
		spoil(&c)
		_, err := Run(t.Context(), c)
		require.ErrorContains(t, err, want)
	}
}
