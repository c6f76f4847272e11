package demo

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Outage is what the run with an outage came to.
type Outage struct {
	Down  time.Duration // how long the service was away
	Shops []ShopResult
}

// ShopResult is what one shop's orders came to, and what it sent while the
// service was down.
type ShopResult struct {
	Result

	Way       Way
	Tries     int64 // tries sent while the service was down
	Held      int64 // tries that the breaker held back then
	Unretried int64 // retries that the budget refused then
}

// Of returns the result of way.
func (o Outage) Of(way Way) (ShopResult, bool) {
	i := slices.IndexFunc(o.Shops, func(x ShopResult) bool { return x.Way == way })
	if i < 0 {
		return ShopResult{}, false
	}
	return o.Shops[i], true
}

// Err is nil exactly if every order of every shop was charged once.
func (o Outage) Err() error {
	if len(o.Shops) == 0 {
		return errors.New("the run with an outage did not take place")
	}
	for _, s := range o.Shops {
		if !s.Exact() {
			return fmt.Errorf("through an outage, %s, %d of %d orders were charged exactly once (%d twice, %d lost, %d unknown, %d told of another charge); this must not happen: please report it with what `dedupd demo --keep` leaves",
				s.Way, s.Once, s.Asked, s.Twice, s.Lost, s.Unknown, s.Wrong)
		}
	}
	return nil
}

// Write prints the table, what its columns mean, and what it shows.
func (o Outage) Write(w io.Writer) error {
	t := newTable("payments down", "asked", "charged once", "charged twice", "tries while down", "held back", "not retried", "p50", "p99")
	for _, s := range o.Shops {
		t.AppendRow(table.Row{s.Way.String(), s.Asked, s.Once, s.Twice, s.Tries, s.Held, s.Unretried, short(s.P50), short(s.P99)})
	}
	_, err := fmt.Fprintf(w, "%s\n\n%s\n\n%s\n", t.Render(), outageLegend, o.finding())
	return err
}

// finding says in words what the table shows.
func (o Outage) finding() string {
	alone, _ := o.Of(RetriesAlone)
	both, _ := o.Of(BudgetAndBreaker)
	said := fmt.Sprintf("while payments was down for %v, retries alone sent %d tries, those with budget and breaker %d", o.Down, alone.Tries, both.Tries)
	if o.Err() == nil {
		said += ";\nevery order was charged exactly once"
	}
	return said
}

const outageLegend = "tries while down: sent to a service that is not there; held back: by the breaker;\n" +
	"not retried: the budget was spent, the error went to the caller, who ordered again a while later"
