// Package bench measures dedupd as a client sees it: one process of callers
// against one server process on loopback, everything durable.
//
// The life of a measurement:
//
//  1. A bare gRPC server (echo.go) and dedupd on fresh directories are started from
//     the given executable.
//  2. In turns, several rounds each, callers call the echo, Reserve fresh keys, go
//     through whole cycles of Reserve and Complete, and replay what is completed;
//     so all meet the same moods of the machine. A ratio is the median of its
//     rounds' ratios to the echo beside them.
//  3. What dedupd takes of memory and disk is divided by its records.
//
// Absolute figures are the machine's; the ratios are what can be compared. The
// package judges nothing: targets are for whoever reads the report.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/child"
)

// Config is what Run measures.
type Config struct {
	// Executable knows the commands `serve` and `bench-echo`. Required.
	Executable string
	// Callers call at the same time; 1 to 4,096.
	Callers int
	// Duration of each round.
	Duration time.Duration
	// Rounds of all kinds of calls, in turns; 1 or more.
	Rounds int
	// Dir is where data goes: a new folder under it, removed at the end. Empty
	// means the system's temporary directory.
	Dir string
}

func (c Config) validate() error {
	switch {
	case c.Executable == "":
		return errors.New("the benchmark needs an executable to start its servers from")
	case c.Callers < 1 || c.Callers > 4096:
		return fmt.Errorf("%d callers are out of range; 1 to 4096 are allowed", c.Callers)
	case c.Rounds < 1:
		return fmt.Errorf("%d rounds measure nothing; take 1 or more", c.Rounds)
	case c.Duration < 100*time.Millisecond:
		return fmt.Errorf("rounds of %s are too short to mean anything; take 100ms or more", c.Duration)
	}
	return nil
}

// Report is what Run measured.
type Report struct {
	Callers int    `json:"callers"`
	Echo    Series `json:"echo"`
	Reserve Series `json:"reserve"`
	Cycle   Series `json:"cycle"`
	Replay  Series `json:"replay"`
	// Records were completed by the cycles: a key of 64 bytes and a response of 256.
	Records         int   `json:"records"`
	DiskPerRecord   int64 `json:"disk_bytes_per_record"`
	MemoryPerRecord int64 `json:"memory_bytes_per_record"` // growth of the resident set; 0 where the system does not tell
	Memory          int64 `json:"memory_bytes"`            // resident set at the end
}

// Series is one kind of call over all rounds.
type Series struct {
	Rate             // of the median round
	ToEcho float64   `json:"to_echo"` // median of the rounds' ratios to the echo beside them
	Rounds []float64 `json:"to_echo_rounds"`
}

// Rate is how fast one kind of call went.
type Rate struct {
	PerSecond float64       `json:"per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	// Busy is the processor time that client and server took for one call,
	// whatever else the machine did; 0 where the system does not tell.
	Busy time.Duration `json:"busy_ns"`
}

// Run measures. Its processes and files are gone when it returns.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if err := cfg.validate(); err != nil {
		return Report{}, err
	}
	dir, err := os.MkdirTemp(cfg.Dir, "dedupd-bench-")
	if err != nil {
		return Report{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is in a directory of its own
	b := &bench{Config: cfg, dir: dir}
	return b.measure(ctx)
}

type bench struct {
	Config
	dir string
}

// measure starts one echo and two dedupds: one for keys that are only reserved,
// one whose records are all completed, so that what it takes can be divided by
// them.
func (b *bench) measure(ctx context.Context) (Report, error) {
	echo := b.program("the bare server", "echo", "bench-echo")
	reserving, cycling := b.dedupd("reserve"), b.dedupd("cycle")
	var conns [3]*grpc.ClientConn
	for i, p := range []*child.Program{echo, reserving, cycling} {
		conn, err := start(ctx, p)
		if err != nil {
			return Report{}, err
		}
		defer p.Stop()
		defer func() { _ = conn.Close() }() // nothing is in flight
		conns[i] = conn
	}
	done := newCompleted(b.Callers)
	idle := residentSet(cycling.PID())
	series, err := b.rounds(ctx, []kind{
		{echoCall(conns[0]), echo.PID()},
		{reserveCall(conns[1]), reserving.PID()},
		{cycleCall(conns[2], done), cycling.PID()},
		{replayCall(conns[2], done), cycling.PID()},
	})
	if err != nil {
		return Report{}, err
	}
	r := Report{
		Callers: b.Callers, Echo: series[0], Reserve: series[1], Cycle: series[2], Replay: series[3],
		Records: done.count(), Memory: residentSet(cycling.PID()),
	}
	cycling.Stop()
	disk, err := diskUse(filepath.Join(b.dir, "cycle", "data"))
	if n := int64(r.Records); n > 0 {
		r.DiskPerRecord, r.MemoryPerRecord = disk/n, max(r.Memory-idle, 0)/n
	}
	return r, err
}

// kind is one kind of call, and the process that serves it.
type kind struct {
	do     call
	server int
}

// rounds makes all calls in turns, the first of which is the echo.
func (b *bench) rounds(ctx context.Context, kinds []kind) ([]Series, error) {
	rates, series := make([][]Rate, len(kinds)), make([]Series, len(kinds))
	for range b.Rounds {
		for i, k := range kinds {
			before := processorTime(os.Getpid()) + processorTime(k.server)
			l, err := b.drive(ctx, k.do)
			if err != nil {
				return nil, err
			}
			rate := l.rate()
			busy := processorTime(os.Getpid()) + processorTime(k.server) - before
			rate.Busy = busy / time.Duration(max(len(l.calls), 1))
			rates[i] = append(rates[i], rate)
			series[i].Rounds = append(series[i].Rounds, rate.PerSecond/rates[0][len(rates[0])-1].PerSecond)
		}
	}
	for i := range series {
		series[i].Rate = middle(rates[i])
		ratios := slices.Sorted(slices.Values(series[i].Rounds))
		series[i].ToEcho = ratios[len(ratios)/2]
	}
	return series, nil
}

func (b *bench) program(name, folder string, args ...string) *child.Program {
	return &child.Program{Name: name, Path: b.Executable, Args: args, Log: filepath.Join(b.dir, folder, "log")}
}

func (b *bench) dedupd(folder string) *child.Program {
	return b.program("dedupd", folder, "serve", "--data", filepath.Join(b.dir, folder, "data"), "--http", "", "--log-level", "error")
}

// start starts p and connects to it, by one connection as a service would.
func start(ctx context.Context, p *child.Program) (*grpc.ClientConn, error) {
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	return grpc.NewClient(p.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// middle is the rate of the median round.
func middle(rates []Rate) Rate {
	slices.SortFunc(rates, func(a, b Rate) int { return int(a.PerSecond - b.PerSecond) })
	return rates[len(rates)/2]
}

// diskUse is the size of all files below dir, in bytes.
func diskUse(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}
