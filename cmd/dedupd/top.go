package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"google.golang.org/protobuf/encoding/protojson"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/show"
)

// topCmd shows what a replica does, live.
type topCmd struct {
	Namespace string        `help:"Only this namespace."`
	HotKeys   int           `default:"10" help:"How many of the keys that keep coming back: 0 to 100. They are shown by their record ids."`
	Interval  time.Duration `default:"2s" help:"Time between two looks: 200ms to 1m."`
	Once      bool          `help:"Show one look and end. So it does where there is no terminal."`
	Output    outputFormat  `short:"o" enum:"table,json" default:"table" help:"How to print: table, or json, one look per line."`
	remote    `embed:""`
}

// Validate is called by the parser.
func (c *topCmd) Validate() error {
	switch {
	case c.HotKeys < 0 || c.HotKeys > 100:
		return fmt.Errorf("--hot-keys is %d; it takes 0 to 100", c.HotKeys)
	case c.Interval < 200*time.Millisecond || c.Interval > time.Minute:
		return fmt.Errorf("--interval is %s; it takes 200ms to 1m", c.Interval)
	}
	return nil
}

// Run looks until Ctrl-C.
func (c *topCmd) Run(ctx context.Context, s streams) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	admin := dedupv1.NewAdminServiceClient(conn)
	live := isTerminal(s.out) && !c.Once && c.Output == outputTable
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	wait := patience{addr: c.Addr, w: s.err}
	var before *dedupv1.StatsResponse
	for {
		now, err := c.look(ctx, admin)
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case wait.outlasts(err):
		case err != nil:
			return err
		default:
			if err := c.print(s.out, before, now, live); err != nil {
				return err
			}
			if c.Once || !live && c.Output == outputTable {
				return nil
			}
			before = now
		}
		select {
		case <-ctx.Done():
			return nil //nolint:nilerr // Ctrl-C is how it ends
		case <-tick.C:
		}
	}
}

func (c *topCmd) look(ctx context.Context, admin dedupv1.AdminServiceClient) (*dedupv1.StatsResponse, error) {
	bounded, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	stats, err := admin.Stats(bounded, &dedupv1.StatsRequest{Namespace: c.Namespace, HotKeys: int32(c.HotKeys)}) //nolint:gosec // at most 100
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return stats, overWire(c.Addr, err)
}

// print writes one look. A live one takes the place of the one before, in one
// write, so that it does not flicker.
func (c *topCmd) print(w io.Writer, before, now *dedupv1.StatsResponse, live bool) error {
	if c.Output == outputJSON {
		text, err := protojson.Marshal(now)
		if err != nil {
			return err
		}
		var line bytes.Buffer
		if err := json.Compact(&line, text); err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, line.String())
		return err
	}
	text := c.screen(before, now)
	if live {
		text = "\x1b[H\x1b[2J" + text + "\nCtrl-C ends"
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// screen is one look as text: what needs somebody first.
func (c *topCmd) screen(before, now *dedupv1.StatsResponse) string {
	parts := []string{fmt.Sprintf("dedupd %s at %s, up %s, %d waiting",
		now.GetVersion(), c.Addr, rough(now.GetUptime()), now.GetWaiting())}
	if rows := now.GetDeadLetters(); len(rows) > 0 {
		t := newTable()
		t.AppendHeader(table.Row{"dead letters", "kind", "open", "oldest"})
		for _, r := range rows {
			t.AppendRow(table.Row{r.GetNamespace(), show.Name(r.GetKind(), "DEAD_LETTER_KIND_"), r.GetEntries(), rough(r.GetOldestAge())})
		}
		parts = append(parts, t.Render())
	}
	if rows := now.GetUnfinished(); len(rows) > 0 {
		t := newTable()
		t.AppendHeader(table.Row{"unfinished", "operation", "state", "records", "oldest"})
		for _, r := range rows {
			t.AppendRow(table.Row{r.GetNamespace(), printable([]byte(r.GetOperation())), stateName(r.GetState()), r.GetRecords(), rough(r.GetOldestAge())})
		}
		parts = append(parts, t.Render())
	}
	if len(parts) == 1 {
		parts = append(parts, "no dead letters, nothing unfinished")
	}
	if rows := now.GetOperations(); len(rows) > 0 {
		parts = append(parts, operations(before, now))
	}
	if rows := now.GetHotKeys(); len(rows) > 0 {
		t := newTable()
		t.AppendHeader(table.Row{"hot key", "namespace", "operation", "about"})
		for _, r := range rows {
			t.AppendRow(table.Row{r.GetRecord(), r.GetNamespace(), printable([]byte(r.GetOperation())), r.GetCount()})
		}
		parts = append(parts, t.Render())
	}
	return strings.Join(parts, "\n\n")
}

// operations tells rates where there was a look before, and totals else.
func operations(before, now *dedupv1.StatsResponse) string {
	earlier := map[[2]string]*dedupv1.OperationStats{}
	seconds := 0.0
	unit := "in all"
	// A replica that was started again counts from zero: its totals say nothing
	// about the time between.
	if between := now.GetUptime().AsDuration() - before.GetUptime().AsDuration(); before != nil && between > 0 {
		seconds, unit = between.Seconds(), "per second"
		for _, r := range before.GetOperations() {
			earlier[[2]string{r.GetNamespace(), r.GetOperation()}] = r
		}
	}
	t := newTable()
	t.AppendHeader(table.Row{unit, "operation", "granted", "replayed", "in progress", "unknown", "refused", "completed"})
	for _, r := range now.GetOperations() {
		was := earlier[[2]string{r.GetNamespace(), r.GetOperation()}]
		rate := func(now, before int64) string {
			if seconds == 0 {
				return strconv.FormatInt(now, 10)
			}
			return strconv.FormatFloat(float64(now-before)/seconds, 'f', 1, 64)
		}
		t.AppendRow(table.Row{
			r.GetNamespace(), printable([]byte(r.GetOperation())),
			rate(r.GetGranted(), was.GetGranted()), rate(r.GetReplayed(), was.GetReplayed()),
			rate(r.GetInProgress(), was.GetInProgress()), rate(r.GetUnknown(), was.GetUnknown()),
			rate(r.GetRefused(), was.GetRefused()), rate(r.GetCompleted(), was.GetCompleted()),
		})
	}
	return t.Render()
}
