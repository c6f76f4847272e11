package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// span is a duration that may also be written in days: 7d, 1d12h.
type span time.Duration

// UnmarshalText reads what a person typed.
func (s *span) UnmarshalText(text []byte) error {
	in := string(text)
	days, rest, found := strings.Cut(in, "d")
	if !found {
		days, rest = "0", in
	}
	n, err := strconv.ParseInt(days, 10, 32)
	if err != nil || n < 0 || in == "" {
		return fmt.Errorf("%q is not a duration like 90s, 12h or 7d", in)
	}
	var d time.Duration
	if rest != "" {
		if d, err = time.ParseDuration(rest); err != nil || found && d < 0 {
			return fmt.Errorf("%q is not a duration like 90s, 12h or 7d", in)
		}
	}
	if n > int64((math.MaxInt64-max(d, 0))/day) {
		return fmt.Errorf("%q is longer than any duration", in)
	}
	*s = span(time.Duration(n)*day + d)
	return nil
}

// String writes whole days as days.
func (s span) String() string {
	d := time.Duration(s)
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	return d.String()
}

// byteSize is a number of bytes that may also be written with a unit.
type byteSize int64

// UnmarshalText reads what a person typed: 65536, 64KiB, 1MiB.
func (b *byteSize) UnmarshalText(text []byte) error {
	in := string(text)
	digits, unit := in, int64(1)
	for suffix, size := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if cut, ok := strings.CutSuffix(in, suffix); ok {
			digits, unit = cut, size
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return fmt.Errorf("%q is not a size like 65536, 64KiB or 1MiB", in)
	}
	*b = byteSize(n * unit)
	return nil
}

// String writes the size in the largest unit that divides it.
func (b byteSize) String() string {
	switch {
	case b >= 1<<30 && b%(1<<30) == 0:
		return strconv.FormatInt(int64(b>>30), 10) + "GiB"
	case b >= 1<<20 && b%(1<<20) == 0:
		return strconv.FormatInt(int64(b>>20), 10) + "MiB"
	case b >= 1<<10 && b%(1<<10) == 0:
		return strconv.FormatInt(int64(b>>10), 10) + "KiB"
	}
	return strconv.FormatInt(int64(b), 10)
}

// within reports a flag that is out of its range.
func within[T ~int64](flag string, v, low, high T, show func(T) string) error {
	if v < low || v > high {
		return usagef("--%s is %s; %s to %s are allowed", flag, show(v), show(low), show(high))
	}
	return nil
}

// joinUsage makes one usage error of several.
func joinUsage(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return &usageError{message: strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	return nil
}
