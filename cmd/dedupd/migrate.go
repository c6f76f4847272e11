package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/dedupd/dedupd/storage/cockroach"
)

// migrateCmd groups what is done to the schema of a database.
type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Bring the schema up to this release. Any number of processes may do it at once; one that was interrupted is simply run again."`
	Status migrateStatusCmd `cmd:"" help:"Show the schema's version and what is missing. Exits with 1 when something is."`
}

// database is the flag that both share.
type database struct {
	Store string `required:"" placeholder:"URL" help:"The CockroachDB or PostgreSQL database, postgres://user@host:port/database. Set it by the variable where it holds a password."`
}

// Validate is called by the parser.
func (d *database) Validate() error { return checkURL(d.Store) }

type migrateUpCmd struct{ database }

// Run migrates and says what was done.
func (c *migrateUpCmd) Run(ctx context.Context, s streams) error {
	opts := cockroach.Options{URL: c.Store}
	done, err := migrate(ctx, opts)
	for _, m := range done {
		if _, werr := fmt.Fprintf(s.out, "migrated  %04d %s\n", m.Version, m.Name); werr != nil {
			return werr
		}
	}
	if err != nil {
		return err
	}
	status, err := schemaStatus(ctx, opts)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s at %s: schema version %d, nothing is missing\n", status.Database, place(c.Store), status.Have)
	return err
}

type migrateStatusCmd struct {
	database

	Output outputFormat `short:"o" enum:"table,json" default:"table" help:"How to print: table or json."`
}

// Run shows the schema's state; something missing is an error that says what to
// type.
func (c *migrateStatusCmd) Run(ctx context.Context, s streams) error {
	status, err := schemaStatus(ctx, cockroach.Options{URL: c.Store})
	if err != nil {
		return err
	}
	if err := c.show(s, status); err != nil {
		return err
	}
	if len(status.Pending) > 0 {
		return &cockroach.SchemaError{Have: status.Have, Want: status.Want}
	}
	return nil
}

func (c *migrateStatusCmd) show(s streams, status cockroach.SchemaStatus) error {
	if c.Output == outputJSON {
		pending := make([]string, len(status.Pending))
		for i, m := range status.Pending {
			pending[i] = fmt.Sprintf("%04d %s", m.Version, m.Name)
		}
		return json.NewEncoder(s.out).Encode(map[string]any{
			"database": status.Database, "place": place(c.Store), "version": status.Have,
			"wanted": status.Want, "row_ttl": status.RowTTL, "pending": pending,
		})
	}
	deletes := "dedupd's sweeper"
	if status.RowTTL {
		deletes = "the database's row-level TTL"
	}
	t := newTable()
	t.AppendRows([]table.Row{
		{"database", status.Database + " at " + place(c.Store)},
		{"schema", fmt.Sprintf("version %d of %d", status.Have, status.Want)},
		{"deletes", deletes},
	})
	for _, m := range status.Pending {
		t.AppendRow(table.Row{"missing", fmt.Sprintf("%04d %s", m.Version, m.Name)})
	}
	_, err := fmt.Fprintln(s.out, t.Render())
	return err
}
