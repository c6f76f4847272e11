package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/demo"
)

// newProgress shows a bar on a terminal and a few plain lines elsewhere. Both go
// to stderr: stdout has the results.
func newProgress(s streams) demo.Progress { return progressIn(s, "orders") }

// progressIn is newProgress for what is not counted in orders.
func progressIn(s streams, unit string) demo.Progress {
	if isTerminal(s.err) {
		return &barProgress{w: s.err}
	}
	return &lineProgress{w: s.err, unit: unit}
}

// barProgress is for a person at a terminal. A screen that cannot be written to
// is no reason to stop, so errors are dropped here.
type barProgress struct {
	w   io.Writer
	bar *progressbar.ProgressBar
}

func (p *barProgress) Begin(name string, orders int) {
	p.bar = progressbar.NewOptions(orders,
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionSetDescription(fmt.Sprintf("%-14s", name)),
		progressbar.OptionSetWidth(40),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionThrottle(100*time.Millisecond),
	)
}

func (p *barProgress) Placed() { _ = p.bar.Add(1) }

func (p *barProgress) Note(text string) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	_, _ = fmt.Fprintln(p.w, "  "+text)
}

func (p *barProgress) End() {
	_ = p.bar.Exit()
	_, _ = fmt.Fprintln(p.w)
	p.bar = nil
}

// lineProgress is for logs: one line per quarter.
type lineProgress struct {
	w      io.Writer
	unit   string
	name   string
	orders int
	placed int
}

func (p *lineProgress) Begin(name string, orders int) {
	p.name, p.orders, p.placed = name, orders, 0
}

func (p *lineProgress) Placed() {
	p.placed++
	if p.placed*4/p.orders > (p.placed-1)*4/p.orders {
		_, _ = fmt.Fprintf(p.w, "%s: %d of %d %s\n", p.name, p.placed, p.orders, p.unit)
	}
}

func (p *lineProgress) Note(text string) { _, _ = fmt.Fprintln(p.w, "  "+text) }

func (p *lineProgress) End() {}

// counter shows how far a job of unknown length has come, on a terminal only.
type counter struct{ bar *progressbar.ProgressBar }

func newCounter(s streams, name string) counter {
	if !isTerminal(s.err) {
		return counter{}
	}
	return counter{bar: progressbar.NewOptions(-1,
		progressbar.OptionSetWriter(s.err),
		progressbar.OptionSetDescription(name),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond),
	)}
}

func (c counter) set(n int64) {
	if c.bar != nil {
		_ = c.bar.Set64(n)
	}
}

func (c counter) end() {
	if c.bar != nil {
		_ = c.bar.Finish()
	}
}
