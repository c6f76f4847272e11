package cockroach

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// The clock is the database's. Statements read it by two names: clock_timestamp()
// goes on during a statement and is read after a row is locked, so that it is
// never older than what it judges; statement_timestamp() is from before a read
// saw anything, so that a row that changed meanwhile is never judged as lapsed.

// clockOffset moves the clock of every statement of one store, for tests; zero
// otherwise.
type clockOffset struct{ micros atomic.Int64 }

func (c *clockOffset) advance(d time.Duration) { c.micros.Add(d.Microseconds()) }

// text returns the statement to send for sql.
func (c *clockOffset) text(sql string) string {
	micros := c.micros.Load()
	if micros == 0 {
		return sql
	}
	later := fmt.Sprintf(" + INTERVAL '%d microseconds')", micros)
	return strings.NewReplacer(
		"clock_timestamp()", "(clock_timestamp()"+later,
		"statement_timestamp()", "(statement_timestamp()"+later,
	).Replace(sql)
}
