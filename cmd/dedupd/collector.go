package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
)

// collector are the settings of Go's garbage collector. At its defaults it is up
// to a quarter of the cost of a call: letting the heap grow to five times what
// is live costs little memory here, and the limit keeps it from growing past
// what the machine has.
type collector struct {
	GCPercent   int      `name:"gc-percent" default:"400" help:"Heap growth between garbage collections, in percent, unless GOGC is set; 0 leaves Go's default."`
	MemoryLimit byteSize `default:"0" help:"Soft limit of the Go heap, unless GOMEMLIMIT is set; 0 means half of the memory of the machine or container."`
}

func (c collector) check() error {
	if c.GCPercent < 0 || c.GCPercent > 10_000 {
		return usagef("--gc-percent is %d; 0 to 10000 are allowed", c.GCPercent)
	}
	return nil
}

// tune applies the settings that the environment leaves open. Where the size of
// the memory is not known, so that no limit can be set, Go's defaults stay.
func (c collector) tune(ctx context.Context, log *slog.Logger) {
	limit := int64(c.MemoryLimit)
	if limit == 0 {
		limit = memorySize() / 2
	}
	_, limited := os.LookupEnv("GOMEMLIMIT")
	if !limited && limit > 0 {
		debug.SetMemoryLimit(limit)
		limited = true
	}
	if _, set := os.LookupEnv("GOGC"); !set && limited && c.GCPercent > 0 {
		debug.SetGCPercent(c.GCPercent)
	}
	log.LogAttrs(ctx, slog.LevelDebug, "garbage collector", slog.Int64("memory_limit", limit), slog.Int("gc_percent", c.GCPercent))
}

// memorySize is the memory that this process may use, in bytes: the container's
// limit or the machine's size, whichever is smaller; 0 where neither is told.
func memorySize() int64 {
	size := machineMemory()
	text, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return size
	}
	limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64) // "max": no limit
	if err != nil || size > 0 && limit > size {
		return size
	}
	return limit
}

func machineMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) == 3 && string(f[0]) == "MemTotal:" {
			kib, _ := strconv.ParseInt(string(f[1]), 10, 64) // 0: not told
			return kib << 10
		}
	}
	return 0
}
