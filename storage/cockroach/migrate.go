package cockroach

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one numbered step of the schema.
type Migration struct {
	Version int
	Name    string
	steps   []step
}

// step is one statement. It may be run again after it was done or half done, also
// by two processes at once: every one is of the kind IF NOT EXISTS.
type step struct {
	when string // "row ttl", "no row ttl", or always
	sql  string
}

// SchemaStatus is the state of a database's schema.
type SchemaStatus struct {
	Database string // what is at the other end, with its version
	Have     int    // version of the schema; 0 is none
	Want     int    // version that this release needs
	RowTTL   bool   // the database deletes rows by itself, the sweeper has nothing to do
	Pending  []Migration

	isolation string
}

// SchemaError says that the schema is older than this release needs.
type SchemaError struct {
	Have, Want int
}

// Error says what to type.
func (e *SchemaError) Error() string {
	if e.Have == 0 {
		return "the database has no dedupd schema: run `dedupd migrate up` with the same --store"
	}
	return fmt.Sprintf("the database schema is at version %d, this dedupd needs %d: run `dedupd migrate up` with the same --store", e.Have, e.Want)
}

// check: a newer schema is served, the release before must run on it.
func (s SchemaStatus) check() error {
	if s.Have < s.Want {
		return &SchemaError{Have: s.Have, Want: s.Want}
	}
	return nil
}

// Status tells the state of the schema. It changes nothing.
func Status(ctx context.Context, opts Options) (SchemaStatus, error) {
	_, status, err := opts.inspect(ctx)
	return status, err
}

// Migrate brings the schema up to this release and returns what it did. Steps run
// one by one outside a transaction; a migration counts as done after its last one.
// Any number of processes may migrate at once, and one that was interrupted is
// simply run again.
func Migrate(ctx context.Context, opts Options) ([]Migration, error) {
	cfg, status, err := opts.inspect(ctx)
	if err != nil || len(status.Pending) == 0 {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // every statement has been answered
	db, err := identify(conn)
	if err != nil {
		return nil, err
	}
	if err := ddl(ctx, conn, createVersionsSQL); err != nil {
		return nil, err
	}
	for _, m := range status.Pending {
		if err := m.apply(ctx, conn, db); err != nil {
			return nil, fmt.Errorf("migration %d (%s): %w; run it again", m.Version, m.Name, err)
		}
	}
	return status.Pending, nil
}

const (
	createVersionsSQL = `/* dedupd migrate */ CREATE TABLE IF NOT EXISTS dedup_schema (
  version    INT8        NOT NULL PRIMARY KEY,
  row_ttl    BOOL        NOT NULL,
  applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)`
	addVersionSQL = `/* dedupd migrate */ INSERT INTO dedup_schema (version, row_ttl) VALUES ($1, $2) ON CONFLICT (version) DO NOTHING`
	versionsSQL   = `/* dedupd status */ SELECT COALESCE(max(version), 0), COALESCE(bool_or(row_ttl), false) FROM dedup_schema`
	isolationSQL  = `/* dedupd status */ SELECT current_setting('default_transaction_isolation')`
)

func (m Migration) apply(ctx context.Context, conn *pgx.Conn, db database) error {
	for _, st := range m.steps {
		if st.when == "row ttl" && !db.hasTTL || st.when == "no row ttl" && db.hasTTL {
			continue
		}
		if err := ddl(ctx, conn, st.sql); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, addVersionSQL, m.Version, db.hasTTL)
	return err
}

// ddl runs a statement of the kind IF NOT EXISTS. Two sessions that make the same
// thing at once can both find it absent; the one that then fails finds it present.
func ddl(ctx context.Context, conn *pgx.Conn, sql string) error {
	for n := 1; ; n++ {
		_, err := conn.Exec(ctx, sql)
		if err == nil || n == maxTries || !madeByAnother(err) || !pause(ctx, ctx, backoff(n)) {
			return err
		}
	}
}

func madeByAnother(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "23505", "42P07", "42710", "42701", "XX000": // in PostgreSQL's catalogs; XX000 is "tuple concurrently updated"
		return true
	}
	return judgeCode(pg.Code) == faultContention
}

// inspect connects once and looks at the database and its schema.
func (o Options) inspect(ctx context.Context) (*pgx.ConnConfig, SchemaStatus, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, SchemaStatus{}, err
	}
	cfg, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, SchemaStatus{}, fmt.Errorf("the database's URL: %w", err)
	}
	_, status, err := inspect(ctx, cfg.ConnConfig)
	return cfg.ConnConfig, status, err
}

func inspect(ctx context.Context, cfg *pgx.ConnConfig) (database, SchemaStatus, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return database{}, SchemaStatus{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it only read
	db, err := identify(conn)
	if err != nil {
		return database{}, SchemaStatus{}, err
	}
	all, err := migrations(migrationFiles)
	if err != nil {
		return database{}, SchemaStatus{}, err
	}
	status := SchemaStatus{Database: db.name, Want: all[len(all)-1].Version}
	if err := conn.QueryRow(ctx, isolationSQL).Scan(&status.isolation); err != nil {
		return database{}, SchemaStatus{}, err
	}
	if err := conn.QueryRow(ctx, versionsSQL).Scan(&status.Have, &status.RowTTL); err != nil && !missingTable(err) {
		return database{}, SchemaStatus{}, err
	}
	status.Pending = all[min(status.Have, len(all)):]
	return db, status, nil
}

func missingTable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "42P01"
}

// migrations reads the files NNNN_name.sql, numbered from 1 without a gap.
func migrations(files fs.FS) ([]Migration, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	all := make([]Migration, 0, len(names))
	for i, name := range names {
		m := Migration{}
		base := strings.TrimSuffix(path.Base(name), ".sql")
		if n, _ := fmt.Sscanf(base, "%04d_", &m.Version); n != 1 || m.Version != i+1 {
			return nil, fmt.Errorf("%s is not the file of migration %d", name, i+1)
		}
		m.Name = base[len("0000_"):]
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		m.steps = steps(string(text))
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, errors.New("there are no migrations")
	}
	return all, nil
}

// steps splits a file at the semicolons that end a line. A line "-- when: …" says
// where the statement after it is run.
func steps(text string) []step {
	var out []step
	var cur step
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if when, ok := strings.CutPrefix(line, "-- when: "); ok {
			cur.when = when
			continue
		}
		if len(lines) == 0 && (line == "" || strings.HasPrefix(line, "--")) {
			continue
		}
		lines = append(lines, line)
		if strings.HasSuffix(line, ";") {
			cur.sql = "/* dedupd migrate */ " + strings.TrimSuffix(strings.Join(lines, "\n"), ";")
			out = append(out, cur)
			cur, lines = step{}, nil
		}
	}
	return out
}
