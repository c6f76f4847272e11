package cockroach

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dedupd/dedupd/internal/gather"
	"github.com/dedupd/dedupd/storage"
)

// cockroachSkew is how far the clocks of CockroachDB's nodes may differ: twice
// its own limit of half a second.
const cockroachSkew = time.Second

// Store is a storage.Store on a CockroachDB or PostgreSQL database that other
// processes may use at the same time. It is safe for concurrent use.
type Store struct {
	db       database
	pool     *pgxpool.Pool
	codec    *codec
	clock    clockOffset
	observer Observer
	timeout  time.Duration

	statements [kinds]statement
	gathered   [kinds]*gather.Gatherer[item, storage.Answer]
	watch      watcher
	open       openCounts

	mu      sync.Mutex
	closed  bool
	closing chan struct{}  // closed by Close
	calls   sync.WaitGroup // calls that have begun
	work    sync.WaitGroup // what goes on behind them

	wrapTx func(func(pgx.Tx) error) func(pgx.Tx) error // of tests: what a transaction runs
}

var _ storage.Store = (*Store)(nil)

// Open connects to the database and checks its schema. An older or absent schema
// is a *SchemaError that says what to type; a newer one is served.
func Open(ctx context.Context, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(opts.URL)
	if err != nil {
		return nil, fmt.Errorf("the database's URL: %w", err)
	}
	db, schema, err := inspect(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, err
	}
	if err := schema.check(); err != nil {
		return nil, err
	}
	if pooler(cfg) && schema.isolation != db.isolation() {
		return nil, fmt.Errorf("through a pooler the database's own isolation counts, and it is %q: ALTER DATABASE … SET default_transaction_isolation = '%s'",
			schema.isolation, db.isolation())
	}
	db.rowTTL = schema.RowTTL
	db.configure(cfg, opts)
	s := &Store{db: db, observer: opts.Observer, timeout: opts.CallTimeout, closing: make(chan struct{})}
	s.watch.read, s.watch.work = s.versions, &s.work
	if s.codec, err = newCodec(); err != nil {
		return nil, err
	}
	if s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg); err != nil {
		return nil, err
	}
	s.startGathering(opts) //nolint:contextcheck // what is gathered outlives Open
	return s, nil
}

// Skew is how far the database's clocks may differ: 1 s on CockroachDB, 0 on
// PostgreSQL.
func (s *Store) Skew() time.Duration {
	if s.db.cockroach {
		return cockroachSkew
	}
	return 0
}

// Check reads from the records' table.
func (s *Store) Check(ctx context.Context) error {
	_, err := do(ctx, s, func(ctx, caller context.Context) (struct{}, error) {
		return struct{}{}, s.onConn(ctx, caller, func(conn *pgxpool.Conn) error {
			_, err := conn.Exec(ctx, checkSQL)
			return err
		})
	})
	return err
}

const checkSQL = `/* dedupd check */ SELECT id FROM dedup_records LIMIT 1`

// Close waits for calls that have begun and closes the connections.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	if first {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.calls.Wait()
	for _, g := range s.gathered {
		g.Wait()
	}
	s.work.Wait()
	if first {
		s.pool.Close()
		s.codec.dec.Close()
	}
	return nil
}

// begin reports whether a call may begin; it is ended by s.calls.Done.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.calls.Add(1)
	return true
}

// do runs one call that is not gathered. Its work has a context of its own, and
// ends by itself when the caller has given up.
func do[T any](caller context.Context, s *Store, fn func(ctx, caller context.Context) (T, error)) (T, error) {
	var none T
	if !s.begin() {
		return none, storage.ErrClosed
	}
	defer s.calls.Done()
	if err := caller.Err(); err != nil {
		return none, err
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), s.timeout)
		defer cancel()
		v, err := fn(ctx, caller)
		done <- result{v, err}
	})
	select {
	case r := <-done:
		return r.v, unavailable(caller, r.err)
	case <-caller.Done():
		return none, caller.Err()
	}
}

// database is what was found at the other end.
type database struct {
	name      string // "PostgreSQL 15.18", "CockroachDB v24.3.1"
	cockroach bool
	hasTTL    bool // it can delete rows by itself
	rowTTL    bool // and was told to
}

// oldestPostgres is the first release whose extract() is exact.
const oldestPostgres = 15

// identify tells the database by what it announces about itself.
func identify(conn *pgx.Conn) (database, error) {
	pg := conn.PgConn()
	if v := pg.ParameterStatus("crdb_version"); v != "" {
		return identifyCockroach(v), nil
	}
	v := pg.ParameterStatus("server_version")
	var major int
	if n, _ := fmt.Sscanf(v, "%d", &major); n == 1 && major < oldestPostgres {
		return database{}, fmt.Errorf("PostgreSQL %s is too old: %d or newer is needed", v, oldestPostgres)
	}
	if enc := pg.ParameterStatus("server_encoding"); enc != "" && enc != "UTF8" {
		return database{}, fmt.Errorf("the database's encoding is %s: create it with ENCODING 'UTF8'", enc)
	}
	return database{name: "PostgreSQL " + v}, nil
}

// identifyCockroach reads "CockroachDB CCL v24.3.1 (x86_64-pc-linux-gnu, …)".
func identifyCockroach(version string) database {
	db := database{name: "CockroachDB", cockroach: true}
	for _, word := range strings.Fields(version) {
		var major, minor int
		if n, _ := fmt.Sscanf(word, "v%d.%d", &major, &minor); n == 2 {
			db.name = "CockroachDB " + word
			db.hasTTL = major > 22 || major == 22 && minor >= 2
			break
		}
	}
	return db
}

// pooler reports whether connections go through a transaction pooler, where no
// session is ours.
func pooler(cfg *pgxpool.Config) bool {
	switch cfg.ConnConfig.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
		return false
	case pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol:
	}
	return true
}

// configure sets what sessions and the pool need.
func (db database) configure(cfg *pgxpool.Config, opts Options) {
	cfg.MaxConns = int32(min(opts.MaxConns, 1000)) //nolint:gosec // bounded
	cfg.MaxConnLifetime = 30 * time.Minute
	cfg.MaxConnLifetimeJitter = 10 * time.Minute // replicas do not reconnect all at once
	cfg.ConnConfig.ConnectTimeout = min(opts.CallTimeout, 5*time.Second)
	if db.cockroach {
		cfg.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
			rotate(conn)
			return nil
		}
	}
	if pooler(cfg) {
		return
	}
	params := cfg.ConnConfig.RuntimeParams
	if params["application_name"] == "" {
		params["application_name"] = "dedupd"
	}
	timeout := strconv.FormatInt(opts.CallTimeout.Milliseconds(), 10)
	params["statement_timeout"] = timeout
	params["idle_in_transaction_session_timeout"] = timeout // a replica that vanishes holds no row for long
	params["default_transaction_isolation"] = db.isolation()
	if db.cockroach {
		return
	}
	// A generic plan made while the table was young scans it when it has grown.
	params["plan_cache_mode"] = "force_custom_plan"
}

// isolation is what sessions run at: at REPEATABLE READ PostgreSQL fails an
// INSERT … ON CONFLICT DO NOTHING against a newer row.
func (db database) isolation() string {
	if db.cockroach {
		return "serializable"
	}
	return "read committed"
}

// rotate begins at another of the hosts, which are nodes of one cluster: else every
// replica would sit on the first one. A host may be listed more than once in a row,
// with TLS and without; their order stays.
func rotate(conn *pgx.ConnConfig) {
	hosts := append([]*pgconn.FallbackConfig{{Host: conn.Host, Port: conn.Port, TLSConfig: conn.TLSConfig}}, conn.Fallbacks...)
	var starts []int
	for i, h := range hosts {
		if i == 0 || h.Host != hosts[i-1].Host || h.Port != hosts[i-1].Port {
			starts = append(starts, i)
		}
	}
	at := starts[rand.IntN(len(starts))] //nolint:gosec // where to begin is no secret
	hosts = slices.Concat(hosts[at:], hosts[:at])
	conn.Host, conn.Port, conn.TLSConfig, conn.Fallbacks = hosts[0].Host, hosts[0].Port, hosts[0].TLSConfig, hosts[1:]
}
