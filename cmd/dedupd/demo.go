package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dedupd/dedupd/cmd/dedupd/internal/demo"
)

// demoCmd shows what dedupd is for.
type demoCmd struct {
	Orders  int     `default:"2000" help:"Orders to place in each run; 10 or more."`
	Clients int     `default:"16" help:"Clients that place them at the same time."`
	Loss    float64 `default:"0.2" help:"Share of replies that the network loses, 0 to 0.9; a quarter as many requests are cut off before they arrive."`
	Seed    uint64  `default:"0" help:"Seed of the faults; 0 takes a new one, which is printed."`
	Keep    bool    `help:"Keep the ledgers, logs and dedupd's data, and print where they are."`
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
	results, err := demo.Run(ctx, demo.Config{
		Executable: executable,
		Orders:     c.Orders, Clients: c.Clients, Loss: c.Loss, Seed: seed, Keep: c.Keep,
		Progress: newProgress(s),
	})
	if err != nil {
		return err
	}
	if err := results.Write(s.out); err != nil {
		return err
	}
	return results.Err()
}

// demoPaymentsCmd is one of the demo's processes.
type demoPaymentsCmd struct {
	Listen string `required:"" help:"Where gRPC listens."`
	Ledger string `required:"" type:"path" help:"File that charges are written to."`
	Dedupd string `help:"gRPC address of dedupd; empty runs the handler for every request."`
}

// Run serves until it is told to stop.
func (c *demoPaymentsCmd) Run(ctx context.Context) error {
	return demo.ServePayments(ctx, demo.PaymentsConfig{Listen: c.Listen, Ledger: c.Ledger, Dedupd: c.Dedupd})
}
