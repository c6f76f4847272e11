package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/bench"
)

// benchCmd measures dedupd on this machine.
type benchCmd struct {
	Callers  int           `default:"64" help:"Callers at the same time."`
	Duration time.Duration `default:"3s" help:"Length of each round."`
	Rounds   int           `default:"3" help:"Rounds of all kinds of calls, in turns; ratios are medians."`
	Dir      string        `type:"existingdir" placeholder:"DIR" help:"Where data goes, to measure another disk. Default: the system's temporary directory."`
	Output   outputFormat  `short:"o" enum:"table,json" default:"table" help:"How to print: table or json."`

	collector `embed:""`
}

// Run measures and prints.
func (c *benchCmd) Run(ctx context.Context, s streams) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program to start its servers: %w", err)
	}
	c.tune(ctx, slog.New(slog.DiscardHandler))
	report, err := bench.Run(ctx, bench.Config{
		Executable: executable, Callers: c.Callers, Duration: c.Duration, Rounds: c.Rounds, Dir: c.Dir,
	})
	if err != nil {
		return err
	}
	if c.Output == outputJSON {
		return json.NewEncoder(s.out).Encode(report)
	}
	return writeBench(s.out, report)
}

func writeBench(w io.Writer, r bench.Report) error {
	t := newTable()
	t.AppendHeader(table.Row{"call", "per second", "p50", "p99", "to echo", "busy"})
	right := text.AlignRight
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, Align: right, AlignHeader: right},
		{Number: 3, Align: right, AlignHeader: right},
		{Number: 4, Align: right, AlignHeader: right},
		{Number: 5, Align: right, AlignHeader: right},
		{Number: 6, Align: right, AlignHeader: right},
	})
	for _, row := range []struct {
		name string
		bench.Series
	}{
		{"bare echo", r.Echo},
		{"reserve, fresh key", r.Reserve},
		{"reserve + complete", r.Cycle},
		{"replay", r.Replay},
	} {
		t.AppendRow(table.Row{
			row.name, strconv.FormatFloat(row.PerSecond, 'f', 0, 64),
			row.P50.Round(time.Microsecond), row.P99.Round(time.Microsecond),
			strconv.FormatFloat(row.ToEcho, 'f', 2, 64), row.Busy.Round(100 * time.Nanosecond),
		})
	}
	_, err := fmt.Fprintf(w, "%s\n\n%d callers, every answer durable; of the median round; busy: processor time of client and server per call\n"+
		"reserve to echo by round: %.2f\n"+
		"%d completed records of a 64-byte key and a 256-byte response: %d bytes of disk and %d bytes of memory each (%d MiB resident)\n",
		t.Render(), r.Callers, r.Reserve.Rounds, r.Records, r.DiskPerRecord, r.MemoryPerRecord, r.Memory>>20)
	return err
}

// benchEchoCmd is the benchmark's bare server.
type benchEchoCmd struct {
	Listen string `required:"" help:"Where gRPC listens."`

	collector `embed:""`
}

// Run serves until it is told to stop.
func (c *benchEchoCmd) Run(ctx context.Context) error {
	c.tune(ctx, slog.New(slog.DiscardHandler))
	return bench.ServeEcho(ctx, c.Listen)
}
