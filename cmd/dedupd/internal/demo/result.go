package demo

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Result is what one run came to: what the ledger on disk says, and what the
// clients were told.
type Result struct {
	Mode  Mode
	Asked int // orders placed
	Once  int // orders with exactly one charge in the ledger
	Twice int // orders with two or more
	Lost  int // orders with none
	// Unknown orders are those whose client ended without an answer, so that it
	// cannot tell whether money was taken.
	Unknown int
	// Wrong orders are those whose client was told of a charge that is not the
	// order's own in the ledger.
	Wrong         int
	P50, P99      time.Duration // from the first attempt to the answer
	Took          time.Duration // the whole run
	LostReplies   int64
	CutRequests   int64
	PaymentsKills int
	DedupdKills   int
}

// tally compares what clients know with what the ledger holds.
func tally(placements []placement, ledger map[string][]charge) Result {
	r := Result{Asked: len(placements)}
	took := make([]time.Duration, 0, len(placements))
	for _, p := range placements {
		charges := ledger[p.order]
		switch len(charges) {
		case 0:
			r.Lost++
		case 1:
			r.Once++
		default:
			r.Twice++
		}
		switch {
		case p.told == "":
			r.Unknown++
			continue
		case !slices.ContainsFunc(charges, func(c charge) bool { return c.ID == p.told && c.Amount == amountOf(p.order) }):
			r.Wrong++
		}
		took = append(took, p.took)
	}
	slices.Sort(took)
	r.P50, r.P99 = quantile(took, 0.50), quantile(took, 0.99)
	return r
}

// quantile returns the smallest element that at least the share q of sorted is
// not above; 0 for none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Exact reports whether every order was charged exactly once and every client
// was told so, of its own charge.
func (r Result) Exact() bool {
	return r.Asked > 0 && r.Once == r.Asked && r.Unknown == 0 && r.Wrong == 0
}

// Report is the results of all runs.
type Report []Result

// Of returns the result of mode.
func (r Report) Of(mode Mode) (Result, bool) {
	i := slices.IndexFunc(r, func(x Result) bool { return x.Mode == mode })
	if i < 0 {
		return Result{}, false
	}
	return r[i], true
}

// promised returns the result of the run through dedupd; a report has one.
func (r Report) promised() (Result, bool) {
	for _, x := range r {
		if x.Mode.promises() {
			return x, true
		}
	}
	return Result{}, false
}

// Err is nil exactly if the protected run charged every order once.
func (r Report) Err() error {
	p, ok := r.promised()
	switch {
	case !ok:
		return errors.New("the run with dedupd did not take place")
	case !p.Exact():
		return fmt.Errorf("with dedupd %d of %d orders were charged exactly once (%d twice, %d lost, %d unknown, %d told of another charge); this must not happen: please report it with what `dedupd demo --keep` leaves",
			p.Once, p.Asked, p.Twice, p.Lost, p.Unknown, p.Wrong)
	}
	return nil
}

// Write prints the table, what its columns mean, and what it shows.
func (r Report) Write(w io.Writer) error {
	t := newTable("run", "asked", "charged once", "charged twice", "lost", "unknown", "p50", "p99")
	for _, x := range r {
		t.AppendRow(table.Row{x.Mode.String(), x.Asked, x.Once, x.Twice, x.Lost, x.Unknown, short(x.P50), short(x.P99)})
	}
	_, err := fmt.Fprintf(w, "%s\n\n%s\n%s\n\n%s\n", t.Render(), legend, r.faults(), strings.Join(r.findings(), "\n"))
	return err
}

// newTable returns a plain table whose first column is words and whose others are
// numbers.
func newTable(headers ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.Style().Options = table.Options{SeparateHeader: true}
	t.Style().Box.PaddingLeft = ""
	t.Style().Box.PaddingRight = "  "
	t.SuppressTrailingSpaces()
	t.AppendHeader(headers)
	columns := make([]table.ColumnConfig, 0, len(headers))
	for n := 2; n <= len(headers); n++ {
		columns = append(columns, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

const legend = "charged once, twice, lost: orders with one, several, no charges in the ledger on disk\n" +
	"when the run is over; unknown: orders whose client ended without an answer;\n" +
	"p50, p99: from the first attempt to the answer"

// faults says what the runs went through, one number per run.
func (r Report) faults() string {
	numbers := func(of func(Result) int64) string {
		words := make([]string, len(r))
		for i, x := range r {
			words[i] = strconv.FormatInt(of(x), 10)
		}
		return strings.Join(words, ", ")
	}
	seconds := make([]string, len(r))
	for i, x := range r {
		seconds[i] = short(x.Took)
	}
	return fmt.Sprintf("replies lost: %s; requests cut: %s;\nkill -9 of payments: %s, of dedupd: %s; took %s",
		numbers(func(x Result) int64 { return x.LostReplies }),
		numbers(func(x Result) int64 { return x.CutRequests }),
		numbers(func(x Result) int64 { return int64(x.PaymentsKills) }),
		numbers(func(x Result) int64 { return int64(x.DedupdKills) }),
		strings.Join(seconds, ", "))
}

// findings says in words what the table shows.
func (r Report) findings() []string {
	var out []string
	if x, ok := r.Of(PlainRetries); ok {
		if x.Twice > 0 {
			out = append(out, fmt.Sprintf("plain retries charged %d of %d orders more than once", x.Twice, x.Asked))
		} else {
			out = append(out, "plain retries charged nothing twice this time: too few replies were lost to show it; raise --loss or --orders")
		}
	}
	if x, ok := r.promised(); ok && x.Exact() {
		out = append(out, fmt.Sprintf("with dedupd every one of %d orders was charged exactly once, and every client was told of its charge", x.Asked))
	}
	return out
}

// short rounds d to three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}
