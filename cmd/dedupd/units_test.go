package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDurationsMayBeWrittenInDays(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "12h": 12 * time.Hour, "7d": 7 * day, "1d12h": 36 * time.Hour, "0s": 0, "0d": 0, "400d": 400 * day, "-1s": -time.Second,
	} {
		var s span
		require.NoError(t, s.UnmarshalText([]byte(in)), in)
		require.Equal(t, want, time.Duration(s), in)
	}
	for _, in := range []string{"", "d", "7", "-1d", "1.5d", "7dd", "d7h", "1d-1h", "x", "999999999d", "106751d23h47m17s"} {
		var s span
		require.Error(t, s.UnmarshalText([]byte(in)), in)
	}
	require.Equal(t, "7d", span(7*day).String())
	require.Equal(t, "36h0m0s", span(36*time.Hour).String())
}

func TestSizesMayBeWrittenWithUnits(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]byteSize{"0": 0, "65536": 65536, "64KiB": 64 << 10, "1MiB": 1 << 20, "2 GiB": 2 << 30} {
		var b byteSize
		require.NoError(t, b.UnmarshalText([]byte(in)), in)
		require.Equal(t, want, b, in)
	}
	for _, in := range []string{"", "KiB", "-1", "1MB", "1.5MiB", "9223372036854775807KiB"} {
		var b byteSize
		require.Error(t, b.UnmarshalText([]byte(in)), in)
	}
	for size, want := range map[byteSize]string{0: "0", 1000: "1000", 1024: "1KiB", 3 << 20: "3MiB", 1 << 30: "1GiB"} {
		require.Equal(t, want, size.String())
	}
}
