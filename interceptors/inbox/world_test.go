package inbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/inbox"
	"github.com/dedupd/dedupd/interceptors/inbox/pgxinbox"
	"github.com/dedupd/dedupd/interceptors/policy"
	"github.com/dedupd/dedupd/internal/pgtest"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// database is the PostgreSQL of this test binary.
var database *pgtest.Server

func TestMain(m *testing.M) {
	var err error
	if database, err = pgtest.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := errors.Join(database.Stop(), goleak.Find()); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

type receipt = demov1.ChargeResponse

// exec runs one statement of an effect.
type exec func(ctx context.Context, query string, args ...any) error

// driver is one of the two packages under test.
type driver struct {
	do         func(ctx context.Context, fn func(ctx context.Context, exec exec) (*receipt, error), opts ...inbox.Option) (*receipt, error)
	reconciler guard.Reconciler
	cleaner    func(inbox.CleanerConfig) *inbox.Cleaner
	pool       *pgxpool.Pool // to look at the tables, whichever the driver
	db         *sql.DB
}

// drivers runs a test over both, each in an empty schema with the two tables.
func drivers(t *testing.T, test func(t *testing.T, d *driver)) {
	t.Helper()
	for _, name := range []string{"database/sql", "pgx"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, openDriver(t, name == "pgx"))
		})
	}
}

func openDriver(t *testing.T, native bool) *driver {
	t.Helper()
	url := database.Schema(t)
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	d := &driver{pool: pool, db: db}
	if native {
		d.do, d.reconciler = doOver(pool), pgxinbox.Reconciler(pool)
		d.cleaner = func(c inbox.CleanerConfig) *inbox.Cleaner { return pgxinbox.NewCleaner(pool, c) }
		require.NoError(t, pgxinbox.EnsureTable(t.Context(), pool))
	} else {
		d.do = func(ctx context.Context, fn func(context.Context, exec) (*receipt, error), opts ...inbox.Option) (*receipt, error) {
			return inbox.Do(ctx, db, func(ctx context.Context, tx *sql.Tx) (*receipt, error) {
				return fn(ctx, func(ctx context.Context, query string, args ...any) error {
					_, err := tx.ExecContext(ctx, query, args...)
					return err
				})
			}, opts...)
		}
		d.reconciler = inbox.Reconciler(db)
		d.cleaner = func(c inbox.CleanerConfig) *inbox.Cleaner { return inbox.NewCleaner(db, c) }
		require.NoError(t, inbox.EnsureTable(t.Context(), db))
	}
	_, err = pool.Exec(t.Context(), "CREATE TABLE charges (id TEXT PRIMARY KEY, orders TEXT NOT NULL)")
	require.NoError(t, err)
	return d
}

func doOver(db pgxinbox.DB) func(context.Context, func(context.Context, exec) (*receipt, error), ...inbox.Option) (*receipt, error) {
	return func(ctx context.Context, fn func(context.Context, exec) (*receipt, error), opts ...inbox.Option) (*receipt, error) {
		return pgxinbox.Do(ctx, db, func(ctx context.Context, tx pgx.Tx) (*receipt, error) {
			return fn(ctx, execOf(tx))
		}, opts...)
	}
}

func execOf(tx pgx.Tx) exec {
	return func(ctx context.Context, query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}
}

var charges atomic.Int64

// charge is the effect: it is told apart from every other run's.
func charge(ctx context.Context, exec exec) (*receipt, error) {
	id := fmt.Sprintf("ch-%d", charges.Add(1))
	if err := exec(ctx, "INSERT INTO charges (id, orders) VALUES ($1, '4471')", id); err != nil {
		return nil, err
	}
	return &receipt{ChargeId: id, Order: "4471"}, nil
}

// effects are the ids of the charges that were committed.
func (d *driver) effects(t *testing.T) []string {
	t.Helper()
	rows, err := d.pool.Query(t.Context(), "SELECT id FROM charges ORDER BY id")
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return ids
}

// rowState is the state of the only row, empty where there is none.
func (d *driver) rowState(t *testing.T) string {
	t.Helper()
	var state string
	err := d.pool.QueryRow(t.Context(), "SELECT state FROM dedupd_inbox").Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return ""
	}
	require.NoError(t, err)
	return state
}

// dedupd is the real server in this process, with a way to it that can be cut.
type dedupd struct {
	cc grpc.ClientConnInterface
	// away decides by the method's name whether dedupd can be reached.
	away atomic.Pointer[func(method string) bool]
}

func startDedupd(t *testing.T) *dedupd {
	t.Helper()
	store, err := embedded.OpenMemory(embedded.Options{})
	require.NoError(t, err)
	s, err := server.New(server.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return &dedupd{cc: s.Conn()}
}

func (d *dedupd) cut(methods ...string) {
	away := func(method string) bool {
		for _, m := range methods {
			if method == "/dedup.v1.DedupService/"+m {
				return true
			}
		}
		return false
	}
	d.away.Store(&away)
}

func (d *dedupd) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if away := d.away.Load(); away != nil && (*away)(method) {
		return status.Error(codes.Unavailable, "the connection was cut")
	}
	return d.cc.Invoke(ctx, method, args, reply, opts...)
}

func (d *dedupd) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}

// process is a service's process: an engine of its own.
func (d *dedupd) process(t *testing.T) *guard.Engine {
	t.Helper()
	return d.observed(t, guard.Observer{})
}

func (d *dedupd) observed(t *testing.T, o guard.Observer) *guard.Engine {
	t.Helper()
	e, err := guard.New(guard.Config{Dedup: dedupv1.NewDedupServiceClient(d), Namespace: "shop", Observer: o, CloseTime: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// fingerprint is that of a request for so much.
func fingerprint(amount int64) []*dedupv1.Fingerprint {
	f, err := interceptors.Fingerprint("/shop/Charge", &demov1.ChargeRequest{Order: "4471", Amount: amount})
	if err != nil {
		panic(err) //nolint:forbidigo // the request is a constant
	}
	return []*dedupv1.Fingerprint{f}
}

// call is the keyed call of every test.
func call(d *driver) guard.Call {
	return guard.Call{
		Operation: "/shop/Charge", Key: []byte("order 4471"), Fingerprints: fingerprint(1200),
		Lease: time.Second, Reconciler: d.reconciler, Basis: dedupv1.Basis_BASIS_INBOX,
	}
}

// handle runs handler as the gRPC door would.
func handle(ctx context.Context, e *guard.Engine, c guard.Call, handler func(ctx context.Context) (*receipt, error)) (*receipt, error) {
	var own *receipt
	var ownErr error
	res, err := e.Do(ctx, c, func(ctx context.Context, a guard.Attempt) guard.Ending {
		own, ownErr = handler(ctx)
		return interceptors.RunEnding(ctx, own, ownErr, a, policy.Default(), 0)
	})
	if err != nil {
		return nil, err
	}
	if res.Stored == nil {
		return own, ownErr
	}
	m, err := interceptors.AnswerOf(res.Stored.GetOutcome(), c.Operation)
	if err != nil {
		return nil, err
	}
	return m.(*receipt), nil //nolint:errcheck,forcetypeassert // nothing else is stored
}

// charging is the handler of most tests.
func charging(d *driver, opts ...inbox.Option) func(ctx context.Context) (*receipt, error) {
	return func(ctx context.Context) (*receipt, error) { return d.do(ctx, charge, opts...) }
}
