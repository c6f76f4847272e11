package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/demo"
)

// demoCmd shows what dedupd is for.
type demoCmd struct {
	Orders  int           `default:"2000" help:"Orders to place in each run; 10 or more."`
	Clients int           `default:"16" help:"Clients that place them at the same time."`
	Loss    float64       `default:"0.2" help:"Share of replies that the network loses, 0 to 0.9; a quarter as many requests are cut off before they arrive."`
	Seed    uint64        `default:"0" help:"Seed of the faults; 0 takes a new one, which is printed."`
	Down    time.Duration `default:"3s" help:"How long the service is away in the run with an outage, 1s to 1m; 0 leaves that run out."`
	Ledger  string        `placeholder:"URL" help:"A PostgreSQL or CockroachDB database, postgres://user@host:port/database, for one more run, whose ledger is there with each charge's key beside it. A schema is made in it and dropped again."`
	Kills   int           `default:"20" help:"How often the service is killed in the run with --ledger: 1 to 100."`
	Keep    bool          `help:"Keep the ledgers, logs and dedupd's data, and print where they are."`
}

// Run does the runs, prints the table, and fails unless dedupd kept its promise.
func (c *demoCmd) Run(ctx context.Context, s streams) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program to start it again: %w", err)
	}
	seed := c.Seed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if _, err := fmt.Fprintf(s.out, "%d orders by %d clients, %g%% of replies lost, seed %d\n", c.Orders, c.Clients, c.Loss*100, seed); err != nil {
		return err
	}
	config := demo.Config{
		Executable: executable,
		Orders:     c.Orders, Clients: c.Clients, Loss: c.Loss, Seed: seed, Keep: c.Keep,
		Progress: newProgress(s),
	}
	results, err := demo.Run(ctx, config)
	if err != nil {
		return err
	}
	err = errors.Join(results.Write(s.out), results.Err())
	if err == nil && c.Down != 0 {
		err = c.outage(ctx, s, config)
	}
	if err == nil && c.Ledger != "" {
		err = c.inbox(ctx, s, config)
	}
	return err
}

// inbox does the run whose ledger is in a database.
func (c *demoCmd) inbox(ctx context.Context, s streams, config demo.Config) error {
	if _, err := fmt.Fprintln(s.out); err != nil {
		return err
	}
	results, err := demo.RunInbox(ctx, config, c.Ledger, c.Kills)
	if err != nil {
		return err
	}
	return errors.Join(results.Write(s.out), results.Err())
}

// outage does the run in which the service is down for a while.
func (c *demoCmd) outage(ctx context.Context, s streams, config demo.Config) error {
	if _, err := fmt.Fprintln(s.out); err != nil {
		return err
	}
	result, err := demo.RunOutage(ctx, config, c.Down)
	if err != nil {
		return err
	}
	return errors.Join(result.Write(s.out), result.Err())
}

// Validate refuses an outage that shows nothing.
func (c *demoCmd) Validate() error {
	if c.Down != 0 && (c.Down < time.Second || c.Down > time.Minute) {
		return fmt.Errorf("--down is %v; 1s to 1m are allowed, or 0 to leave that run out", c.Down)
	}
	return nil
}

// demoPaymentsCmd is one of the demo's processes.
type demoPaymentsCmd struct {
	Listen   string `required:"" help:"Where gRPC listens."`
	Ledger   string `type:"path" xor:"ledger" required:"" help:"File that charges are written to."`
	Database string `xor:"ledger" required:"" help:"URL of the database that charges are written to."`
	Dedupd   string `help:"gRPC address of dedupd; empty runs the handler for every request."`
}

// Run serves until it is told to stop.
func (c *demoPaymentsCmd) Run(ctx context.Context) error {
	return demo.ServePayments(ctx, demo.PaymentsConfig{Listen: c.Listen, Ledger: c.Ledger, Database: c.Database, Dedupd: c.Dedupd})
}
