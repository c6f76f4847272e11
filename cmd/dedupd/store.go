package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/cockroach"
	"github.com/dedupd/dedupd/storage/cockroach/storemetrics"
	"github.com/dedupd/dedupd/storage/embedded"
)

// openTime bounds connecting to a database, and migrating it.
const (
	openTime    = 15 * time.Second
	migrateTime = 10 * time.Minute
)

// storeFlags choose where records are kept.
type storeFlags struct {
	Data     string `type:"path" placeholder:"DIR" help:"Directory of the embedded store. Default: dedupd in the user's state directory ($$XDG_STATE_HOME, or ~/.local/state)."`
	InMemory bool   `help:"Keep nothing on disk: every record is gone when the process ends. For trying out and for tests only."`

	Store       string `placeholder:"URL" help:"Keep records in this CockroachDB or PostgreSQL database (postgres://…) instead, which any number of dedupd may share. Set it by the variable where the URL holds a password."`
	StoreConns  int64  `default:"16" help:"Connections to the database, at most: 2 to 1000."`
	StoreAlone  bool   `help:"Send each call to the database alone, instead of gathering concurrent ones into one statement."`
	AutoMigrate bool   `help:"Bring the database's schema up to this release at the start, as 'dedupd migrate up' does. For development."`

	disk vfs.FS `kong:"-"` // of the embedded store; nil is the disk
}

func (f *storeFlags) check() error {
	switch {
	case f.InMemory && f.Data != "":
		return errors.New("--in-memory and --data exclude each other")
	case f.Store != "" && (f.InMemory || f.Data != ""):
		return errors.New("--store excludes --data and --in-memory")
	case f.Store == "" && (f.AutoMigrate || f.StoreAlone):
		return errors.New("--auto-migrate and --store-alone need --store")
	case f.Store != "":
		return errors.Join(checkURL(f.Store), within("store-conns", f.StoreConns, 2, 1000, func(n int64) string { return strconv.FormatInt(n, 10) }))
	}
	return nil
}

// open opens the store and says in words where its data is. It calls failed, once,
// when the store can go on only in another process.
func (f *storeFlags) open(ctx context.Context, log *slog.Logger, reg prometheus.Registerer, failed func(error)) (storage.Store, string, error) {
	switch {
	case f.Store != "":
		return f.openSQL(ctx, log, reg)
	case f.InMemory:
		store, err := embedded.OpenMemory(embedded.Options{Logger: log})
		return store, "IN MEMORY: nothing survives the end of this process", err
	}
	dir := f.Data
	if dir == "" {
		var err error
		if dir, err = stateDir(); err != nil {
			return nil, "", err
		}
	}
	store, err := embedded.Open(embedded.Options{Dir: dir, FS: f.disk, Logger: log, OnFailure: func(err error) {
		failed(fmt.Errorf("the store in %s has stopped: %w", dir, err))
	}})
	switch {
	case err == nil:
		return store, dir, nil
	case errors.Is(err, storage.ErrLocked):
		return nil, "", fmt.Errorf("another dedupd has %s open; stop it first, or give this one another --data", dir)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return nil, "", fmt.Errorf("cannot write to %s; give --data a directory that this user may write to", dir)
	}
	return nil, "", fmt.Errorf("cannot open the store in %s: %w", dir, err)
}

func (f *storeFlags) openSQL(ctx context.Context, log *slog.Logger, reg prometheus.Registerer) (storage.Store, string, error) {
	observer, err := storemetrics.New(reg)
	if err != nil {
		return nil, "", err
	}
	opts := cockroach.Options{URL: f.Store, MaxConns: int(f.StoreConns), NoGather: f.StoreAlone, Observer: observer}
	if f.AutoMigrate {
		done, err := migrate(ctx, opts)
		if err != nil {
			return nil, "", err
		}
		for _, m := range done {
			log.LogAttrs(ctx, slog.LevelInfo, "migrated", slog.Int("version", m.Version), slog.String("name", m.Name))
		}
	}
	status, err := schemaStatus(ctx, opts)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	store, err := cockroach.Open(ctx, opts)
	if err != nil {
		return nil, "", explainSQL(f.Store, err)
	}
	return store, status.Database + " at " + place(f.Store), nil
}

func migrate(ctx context.Context, opts cockroach.Options) ([]cockroach.Migration, error) {
	ctx, cancel := context.WithTimeout(ctx, migrateTime)
	defer cancel()
	done, err := cockroach.Migrate(ctx, opts)
	return done, explainSQL(opts.URL, err)
}

func schemaStatus(ctx context.Context, opts cockroach.Options) (cockroach.SchemaStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	status, err := cockroach.Status(ctx, opts)
	return status, explainSQL(opts.URL, err)
}

// explainSQL says in one sentence which database an error is about, without its
// password, and what to do.
func explainSQL(url string, err error) error {
	var schema *cockroach.SchemaError
	var connect *pgconn.ConnectError
	var answer *pgconn.PgError
	switch {
	case err == nil || errors.As(err, &schema) || errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &connect) && errors.As(err, &answer):
		return fmt.Errorf("the database at %s refuses the connection (%s); see that it is ready, and that --store names the right user, password and database", place(url), answer.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the database at %s does not answer; see that it runs and that --store names it", place(url))
	case connect != nil:
		return fmt.Errorf("the database at %s cannot be reached (%s); see that it runs and that --store names it", place(url), connectCause(connect))
	}
	return fmt.Errorf("the database at %s cannot be used: %w", place(url), err)
}

// connectCause cuts an error of pgx, which has a line for every address and kind of
// encryption that was tried, to what went wrong last.
func connectCause(err *pgconn.ConnectError) string {
	var number syscall.Errno
	var dns *net.DNSError
	switch {
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &dns):
		return dns.Err
	}
	lines := strings.Split(strings.TrimSpace(err.Unwrap().Error()), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// place is the host and name of a database.
func place(url string) string {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return "--store"
	}
	c := cfg.ConnConfig
	if strings.HasPrefix(c.Host, "/") {
		return c.Host + "/" + c.Database
	}
	return fmt.Sprintf("%s:%d/%s", c.Host, c.Port, c.Database)
}

// checkURL refuses what is no connection string; it never repeats it, as it may
// hold a password.
func checkURL(url string) error {
	if _, err := pgxpool.ParseConfig(url); err != nil || !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return errors.New("--store takes postgres://user@host:port/database, for CockroachDB and PostgreSQL alike")
	}
	return nil
}

// stateDir is where the user's programs keep what outlives them.
func stateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "dedupd"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.New("there is no home directory to keep data in; name a directory with --data")
	}
	return filepath.Join(home, ".local", "state", "dedupd"), nil
}
