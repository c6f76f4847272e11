// Package demo shows on one machine what dedupd is for: it charges orders
// through a network that loses replies and services that are killed, three
// times, and compares what the clients were told with what a ledger on disk
// holds.
//
// The life of a demo:
//
//  1. Run makes a directory and does one run per Mode, one after the other, so
//     that their times compare.
//  2. A run (run.go) starts real processes from the given executable: the sample
//     payments service (payments.go) over its ledger (ledger.go), and for the
//     protected run dedupd itself.
//  3. Clients (clients.go) place orders through the proxy (proxy.go), which drops
//     replies and cuts connections. Twice the payments service is killed with
//     SIGKILL and started again, and dedupd once.
//  4. When every client is done the ledger is read and compared (result.go).
//  5. RunOutage takes the service down for a while and compares how connections
//     with and without budget and breaker meet that (outage.go).
//  6. RunInbox keeps the ledger in a database, with the key beside each charge, and
//     kills the service many times (account.go).
//
// Processes and files are gone when Run returns, however it returns. The package
// decides nothing about keys: that is left to dedupd.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Mode is how a run's clients deal with errors. The zero value is none.
type Mode int

// The modes, in the order of the report.
const (
	NoRetries    Mode = iota + 1 // one attempt, whatever comes back
	PlainRetries                 // gRPC's own retry; each attempt is a new request to the service
	Protected                    // retries under one key, through dedupd
	WithInbox                    // the same, with the ledger in a database and its key beside it
)

// String names the run as the report does.
func (m Mode) String() string {
	switch m {
	case NoRetries:
		return "no retries"
	case PlainRetries:
		return "plain retries"
	case Protected:
		return "dedupd"
	case WithInbox:
		return "dedupd, inbox"
	}
	return fmt.Sprintf("mode(%d)", int(m))
}

// promises reports whether every order is to be charged exactly once.
func (m Mode) promises() bool { return m == Protected || m == WithInbox }

func (m Mode) folder() string {
	switch m {
	case NoRetries:
		return "1-no-retries"
	case PlainRetries:
		return "2-plain-retries"
	case Protected:
		return "3-dedupd"
	case WithInbox:
		return "4-inbox"
	}
	return "0"
}

// Config is what Run does. The zero value of a field means its default.
type Config struct {
	// Executable starts the processes: this program, which knows the commands
	// `serve` and `demo-payments`. Required.
	Executable string
	Orders     int     // default 2,000; at least 10
	Clients    int     // default 16
	Loss       float64 // share of replies that are lost; 0 means none, so callers state it
	Seed       uint64  // of the faults; equal seeds draw equal faults
	// Keep leaves the ledgers, logs and dedupd's data, in Dir.
	Keep bool
	// Dir is made if it does not exist; default: a new one under the system's
	// temporary directory.
	Dir string
	// Progress is told how far the runs are; default: nobody.
	Progress Progress
}

// Progress is told how far a run is, by one goroutine at a time.
type Progress interface {
	// Begin starts a run of so many orders.
	Begin(name string, orders int)
	// Placed counts one order.
	Placed()
	// Note tells of something that happened in the run.
	Note(text string)
	// End ends the run.
	End()
}

func (c Config) withDefaults() Config {
	c.Orders = cmp.Or(c.Orders, 2000)
	c.Clients = cmp.Or(c.Clients, 16)
	if c.Progress == nil {
		c.Progress = silent{}
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Executable == "":
		return errors.New("the demo needs an executable to start its processes from")
	case c.Orders < 10:
		return fmt.Errorf("%d orders are too few to kill anything in mid-run; take 10 or more", c.Orders)
	case c.Clients < 1:
		return fmt.Errorf("%d clients place no orders; take 1 or more", c.Clients)
	case c.Loss < 0 || c.Loss > 0.9:
		return fmt.Errorf("a loss of %g is out of range; 0 to 0.9 are allowed", c.Loss)
	}
	return nil
}

// Run does all three runs and returns their results. It returns an error only if
// a run could not take place; what the results are worth is Report.Err's to say.
func Run(ctx context.Context, cfg Config) (Report, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	dir, err := makeDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if !cfg.Keep {
			_ = os.RemoveAll(dir) // what is left is in the system's temporary directory
		}
	}()
	var results Report
	for _, mode := range []Mode{NoRetries, PlainRetries, Protected} {
		r := &run{Config: cfg, mode: mode, dir: filepath.Join(dir, mode.folder())}
		result, err := r.do(ctx)
		if err != nil {
			return results, fmt.Errorf("the run with %s could not be finished: %w", mode, err)
		}
		results = append(results, result)
	}
	if cfg.Keep {
		cfg.Progress.Note("ledgers, logs and data are kept in " + dir)
	}
	return results, nil
}

func makeDir(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "dedupd-demo-")
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// silent is the Progress of nobody.
type silent struct{}

func (silent) Begin(string, int) {}
func (silent) Placed()           {}
func (silent) Note(string)       {}
func (silent) End()              {}
