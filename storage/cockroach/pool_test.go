package cockroach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/internal/pgtest"
	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/storagetest"
)

// B15: callers that give up cost no connection, and the server has no more sessions
// than the pool allows.
func TestManyCallersWithShortDeadlinesDoNotChurnTheConnections(t *testing.T) {
	t.Parallel()
	const conns = 5
	opts := migrated(t)
	name := "b15-" + fmt.Sprint(time.Now().UnixNano())
	s := open(t, Options{URL: opts.URL + "&application_name=" + name, MaxConns: conns, NoGather: true})
	s.statements[kindReserve] = func(ctx context.Context, conn *pgxpool.Conn, calls []*call) ([]*storage.Answer, error) {
		if _, err := conn.Exec(ctx, "SELECT pg_sleep(0.02)"); err != nil {
			return nil, err
		}
		return s.reserveAll(ctx, conn, calls)
	}
	var gaveUp atomic.Int64
	var burst sync.WaitGroup
	for i := range 500 {
		burst.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			_, err := newHolder(fmt.Sprint(i)).reserve(ctx, s)
			if errors.Is(err, context.DeadlineExceeded) {
				gaveUp.Add(1)
			} else if err != nil {
				t.Errorf("reserve: %v", err)
			}
		})
	}
	over := make(chan struct{})
	go func() { burst.Wait(); close(over) }()
	most := sessions(t, opts.URL, name, over)
	require.Positive(t, gaveUp.Load())
	require.LessOrEqual(t, most, conns+2)
	require.LessOrEqual(t, s.pool.Stat().NewConnsCount(), int64(conns), "no connection was lost")
	granted(t, s, newHolder("after"))
}

// sessions counts the server's sessions of an application until over; the most.
func sessions(t *testing.T, dsn, name string, over <-chan struct{}) int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(t.Context()) //nolint:errcheck // it only read
	most := 0
	for {
		var n int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, name).Scan(&n))
		most = max(most, n)
		select {
		case <-over:
			return most
		default:
		}
	}
}

func TestConnectionsBeginAtAnyNodeAndKnowAllOthers(t *testing.T) {
	t.Parallel()
	first := map[string]bool{}
	for range 100 {
		cfg, err := pgx.ParseConfig("postgres://u@a:1,b:2,c:3/d?sslmode=prefer")
		require.NoError(t, err)
		rotate(cfg)
		first[cfg.Host] = true
		require.NotNil(t, cfg.TLSConfig, "TLS is preferred at whatever node")
		hosts := map[string]bool{cfg.Host: true}
		for _, f := range cfg.Fallbacks {
			hosts[f.Host] = true
		}
		require.Len(t, hosts, 3)
		require.Len(t, cfg.Fallbacks, 5)
	}
	require.Len(t, first, 3)
}

// spread is several replicas behind one name: each call goes to the next.
type spread struct {
	*Store
	stores []*Store
	next   *atomic.Int64
}

func (s spread) any() *Store { return s.stores[int(s.next.Add(1))%len(s.stores)] }

func (s spread) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	return s.any().Reserve(ctx, q)
}

func (s spread) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return s.any().BeginRun(ctx, id, q)
}

func (s spread) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return s.any().Complete(ctx, id, q)
}

func (s spread) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return s.any().Extend(ctx, id, q)
}

func (s spread) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return s.any().Release(ctx, q)
}

func (s spread) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return s.any().Lookup(ctx, id, q)
}

func (s spread) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return s.any().Redact(ctx, id, q)
}

func (s spread) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return s.any().Forget(ctx, id, q)
}

func (s spread) Park(ctx context.Context, q storage.Park) (storage.Answer, error) {
	return s.any().Park(ctx, q)
}

func (s spread) Claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	return s.any().Claim(ctx, q)
}

func (s spread) Settle(ctx context.Context, q storage.Settle) (storage.Answer, error) {
	return s.any().Settle(ctx, q)
}

func (s spread) Discard(ctx context.Context, q storage.Discard) (storage.Answer, error) {
	return s.any().Discard(ctx, q)
}

func (s spread) Close() error {
	var err error
	for _, store := range s.stores {
		err = errors.Join(err, store.Close())
	}
	return err
}

func TestThreeReplicasAreOneStore(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(tb testing.TB) storagetest.Harness {
		tb.Helper()
		opts := Options{URL: server.Schema(tb), MaxConns: 4}
		_, err := Migrate(tb.Context(), opts)
		require.NoError(tb, err)
		s := spread{next: new(atomic.Int64)}
		for range 3 {
			s.stores = append(s.stores, open(tb, opts))
		}
		s.Store = s.stores[0]
		return storagetest.Harness{Store: s, OverCap: len(s.stores) - 1, Advance: func(d time.Duration) {
			for _, store := range s.stores {
				store.clock.advance(d)
			}
		}}
	})
}

// B02, B13: what was acknowledged is there after a crash of the database, and what
// was not is answered when it is asked again; nothing is granted twice.
func TestEveryAcknowledgedWriteOutlivesACrashOfTheDatabaseUnderLoad(t *testing.T) {
	t.Parallel()
	own, err := pgtest.StartPrivate()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Stop()) })
	opts := Options{URL: own.URL()}
	_, err = Migrate(t.Context(), opts)
	require.NoError(t, err)
	s := open(t, opts)
	const callers, each = 8, 40
	var begun sync.WaitGroup
	begun.Add(callers)
	var load sync.WaitGroup
	var lost atomic.Int64
	held := make([]*holder, callers*each)
	for i := range callers {
		load.Go(func() {
			for j := range each {
				h := newHolder(fmt.Sprintf("%d-%d", i, j))
				held[i*each+j] = h
				again(t, &lost, func() (storage.Answer, error) { return h.reserve(t.Context(), s) }, storage.VerdictGranted)
				if j == each/4 {
					begun.Done()
				}
				if j%2 == 0 {
					again(t, &lost, func() (storage.Answer, error) { return h.complete(t.Context(), s) }, storage.VerdictOK)
				}
			}
		})
	}
	begun.Wait()
	require.NoError(t, own.Kill())
	require.NoError(t, own.Restart())
	load.Wait()
	t.Logf("%d calls met the crash and were asked again", lost.Load())
	for i, h := range held {
		ans, err := s.Lookup(t.Context(), h.id, storage.Lookup{})
		require.NoError(t, err)
		require.Equal(t, int64(1), ans.Record.Grants)
		require.Equal(t, h.fence, ans.Record.Fence)
		want := storage.StateReserved
		if i%each%2 == 0 {
			want = storage.StateCompleted
		}
		require.Equal(t, want.String(), ans.State.String())
	}
}

// again asks until it is answered.
func again(t *testing.T, lost *atomic.Int64, call func() (storage.Answer, error), want storage.Verdict) {
	t.Helper()
	for {
		ans, err := call()
		switch {
		case err == nil && ans.Verdict == want:
			return
		case err == nil || !errors.Is(err, storage.ErrUnavailable):
			t.Errorf("%s, %v", ans.Verdict, err)
			return
		}
		lost.Add(1)
	}
}
