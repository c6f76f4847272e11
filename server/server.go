package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// Defaults and limits of the server.
const (
	// DefaultDrainTimeout is how long Run lets calls finish before it cuts them.
	DefaultDrainTimeout = 20 * time.Second
	// DefaultSweepEvery is the pause between two rounds of deleting.
	DefaultSweepEvery = time.Minute
	// StreamWorkers is how many goroutines per processor wait for calls with a
	// stack that has grown already. A call spends most of its time in an fsync;
	// with a worker for each call of a usual load, a sixth of the processor's
	// time does not go into growing stacks.
	StreamWorkers = 128
	// MaxEntryCap is the highest Config.EntryCap.
	MaxEntryCap = 10_000_000
	// MaxMessage is the largest gRPC message either way, in bytes.
	MaxMessage = 8 << 20
	// MaxMetadata is how large a gRPC call's metadata may be, in bytes as HTTP/2
	// counts them.
	MaxMetadata = 64 << 10
	// MaxStreams is how many calls one connection may have open: far more than a
	// process holds at once, as a held call must not keep the Complete out that it
	// waits for, and few enough that a connection which opens calls and sends
	// nothing takes some 300 MB and not all there is.
	MaxStreams = 16_384
)

// Config is what a server is made of; zero values mean the stated defaults.
type Config struct {
	// Store keeps the records; required. The server does not close it.
	Store storage.Store
	// Logger gets everything that is logged; nil discards. Calls are logged at
	// debug level, faults and conflicts at error level, what operators do at info
	// level under the group "audit". No line holds a key, a request or a response.
	Logger *slog.Logger
	// Registry gets the metrics and is served on /metrics. nil means a fresh one
	// with the Go runtime's and the process's own metrics. Two servers cannot
	// share one.
	Registry *prometheus.Registry
	// TracerProvider makes a span of every call over the network, as a child of
	// the caller's (W3C trace context); nil traces nothing and costs nothing.
	TracerProvider trace.TracerProvider
	// Retention of a settled record: 1 min to 400 d; zero means
	// storage.DefaultRetention.
	Retention time.Duration
	// Tombstone is how long a repeat past the retention is refused with
	// KEY_EXPIRED: 0 (not at all) to 400 d; nil means storage.DefaultTombstone.
	Tombstone *time.Duration
	// MaxOutcome is the largest response that Complete takes, in bytes: up to
	// storage.CeilMaxOutcome; zero means storage.DefaultMaxOutcome.
	MaxOutcome int
	// DrainTimeout is how long Run lets calls finish once its context has ended;
	// zero means DefaultDrainTimeout.
	DrainTimeout time.Duration
	// SweepEvery is the pause between two rounds of deleting records whose time
	// is over; zero means DefaultSweepEvery.
	SweepEvery time.Duration
	// EntryCap is how many open dead letters a namespace may have, up to
	// MaxEntryCap; zero means storage.DefaultEntryCap. At the cap Park is refused;
	// nothing that is kept is dropped.
	EntryCap int
	// EntryHold is how long a closed dead letter is kept: 1 min to 400 d; zero means
	// storage.DefaultEntryHold.
	EntryHold time.Duration
	// Alerts are sent to a webhook; without a URL there are none.
	Alerts AlertConfig
	// TLS serves both ports; nil serves them in plain text. Its NextProtos, and those
	// of what GetConfigForClient returns, must hold h2.
	TLS *tls.Config
	// Version is told as the metric dedupd_build_info.
	Version string
	// ShowKeys shows keys in the console; without it they are masked.
	ShowKeys bool

	validator protovalidate.Validator // of the proto's limits; nil makes one
}

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = NewRegistry()
	}
	if c.Tombstone == nil {
		c.Tombstone = new(storage.DefaultTombstone)
	}
	c.Retention = cmp.Or(c.Retention, storage.DefaultRetention)
	c.MaxOutcome = cmp.Or(c.MaxOutcome, storage.DefaultMaxOutcome)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DefaultDrainTimeout)
	c.SweepEvery = cmp.Or(c.SweepEvery, DefaultSweepEvery)
	c.EntryCap = cmp.Or(c.EntryCap, storage.DefaultEntryCap)
	c.EntryHold = cmp.Or(c.EntryHold, storage.DefaultEntryHold)
	c.Alerts = c.Alerts.withDefaults()
	return c
}

func (c Config) validate() error {
	switch {
	case c.Store == nil:
		return errors.New("server: set Config.Store")
	case c.Retention < storage.MinRetention || c.Retention > storage.MaxRetention:
		return fmt.Errorf("server: retention is %s, set %s to %s", c.Retention, storage.MinRetention, storage.MaxRetention)
	case *c.Tombstone < 0 || *c.Tombstone > storage.MaxTombstone:
		return fmt.Errorf("server: tombstone is %s, set 0 to %s", *c.Tombstone, storage.MaxTombstone)
	case c.MaxOutcome < 1 || c.MaxOutcome > storage.CeilMaxOutcome:
		return fmt.Errorf("server: largest outcome is %d bytes, set 1 to %d", c.MaxOutcome, storage.CeilMaxOutcome)
	case c.DrainTimeout < 0:
		return fmt.Errorf("server: drain timeout is %s, set a positive one", c.DrainTimeout)
	case c.SweepEvery < 0:
		return fmt.Errorf("server: sweep interval is %s, set a positive one", c.SweepEvery)
	case c.EntryCap < 1 || c.EntryCap > MaxEntryCap:
		return fmt.Errorf("server: cap of dead letters is %d, set 1 to %d", c.EntryCap, MaxEntryCap)
	case c.EntryHold < storage.MinRetention || c.EntryHold > storage.MaxRetention:
		return fmt.Errorf("server: closed dead letters are kept for %s, set %s to %s", c.EntryHold, storage.MinRetention, storage.MaxRetention)
	}
	return c.Alerts.validate()
}

// NewRegistry returns a registry with the metrics of the Go runtime and the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Server is one dedupd. It is safe for concurrent use.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	gate    *gate
	waiters *waiters
	health  *healthLoop
	sweeper *sweeper
	overdue *overdue
	alerter *alerter
	core    *core
	unary   grpc.UnaryServerInterceptor
	conn    *conn
	streams context.Context // ends the streams that would outlast a drain
	cut     context.CancelFunc
	ran     atomic.Bool

	healthServer *health.Server
}

// New makes a server that is ready for Conn; Run opens it to the network. It
// fails on a setting out of its limits, or on a registry that already holds a
// server's metrics.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger, gate: newGate(), waiters: newWaiters(cfg.Store)}
	s.streams, s.cut = context.WithCancel(context.Background())
	hot := newHotKeys()
	counted := &census{
		store: cfg.Store, log: s.log,
		label: func(name string) string { return s.metrics.namespace(name) },
		made:  func() map[seriesKey]int64 { _, created, _ := s.metrics.ledger.sums(); return created },
	}
	var err error
	s.metrics, err = newMetrics(cfg.Registry, cfg.Version, newCensusMetrics(counted),
		gauge("dedupd_waiters", "Callers held until another holder is done.", func() float64 { return float64(s.waiters.held()) }),
		gauge("dedupd_hottest_key_repeats", "About how often the key that comes back most often was asked for again of late.", hot.most),
	)
	if err != nil {
		return nil, err
	}
	s.healthServer = health.NewServer()
	s.health = newHealthLoop(cfg.Store, s.healthServer, s.log)
	s.sweeper = &sweeper{store: cfg.Store, every: cfg.SweepEvery, log: s.log, swept: s.metrics.swept}
	s.core = &core{
		store: newRetrying(cfg.Store, s.metrics, cfg.TracerProvider),
		terms: storage.Terms{
			Retention: cfg.Retention, Tombstone: *cfg.Tombstone, EntryCap: cfg.EntryCap, EntryHold: cfg.EntryHold,
		},
		maxOutcome: cfg.MaxOutcome,
		skew:       cfg.Store.Skew(),
		waiters:    s.waiters,
		metrics:    s.metrics,
		hot:        hot,
		census:     counted,
		began:      time.Now(),
		version:    cfg.Version,
		log:        s.log,
	}
	s.overdue = &overdue{
		store: s.core.store, every: overdueEvery, terms: s.core.terms, census: counted, metrics: s.metrics, log: s.log,
	}
	s.alerter = newAlerter(cfg.Alerts, s.core, cfg.Store, s.health.notReady)
	s.unary, err = s.unaryChain()
	if err != nil {
		return nil, err
	}
	s.conn = newConn(s.unary)
	s.register(s.conn)
	return s, nil
}

func (s *Server) register(to grpc.ServiceRegistrar) {
	dedupv1.RegisterDedupServiceServer(to, &dedupService{core: s.core})
	dedupv1.RegisterDeadLetterServiceServer(to, &deadLetterService{core: s.core, signer: newSigner()})
	dedupv1.RegisterAdminServiceServer(to, &adminService{core: s.core})
	grpc_health_v1.RegisterHealthServer(to, s.healthServer)
}

// grpcServer is made by Run: its workers start with it.
func (s *Server) grpcServer() *grpc.Server {
	g := grpc.NewServer(s.options()...)
	s.register(g)
	reflection.Register(g)
	return g
}

func (s *Server) options() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.UnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.streamChain()...),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.ConnectionTimeout(10 * time.Second),
		// A peer that vanished must not keep its connection, and one that pings
		// more often than this is not one of ours.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.MaxHeaderListSize(MaxMetadata),
		grpc.MaxConcurrentStreams(MaxStreams),
		grpc.NumStreamWorkers(uint32(StreamWorkers * runtime.GOMAXPROCS(0))), //nolint:gosec // some hundreds
	}
	if s.cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.cfg.TLS)))
	}
	if s.cfg.TracerProvider != nil {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(s.cfg.TracerProvider),
			otelgrpc.WithPropagators(propagation.TraceContext{}),
		)))
	}
	return opts
}

// Conn is the server in process: no network, the same chain, the same answers.
// Deadlines, cancellation, metadata, limits and statuses with details behave as
// on the wire, and messages are copied. It carries unary calls; usable before
// Run, and refused with UNAVAILABLE after Run has returned.
func (s *Server) Conn() grpc.ClientConnInterface { return s.conn }

// Run serves gRPC on grpcLis and HTTP on httpLis, which may be nil, until ctx
// ends. Then it drains: health says NOT_SERVING, held callers are answered
// IN_PROGRESS, new Reserves are turned away with UNAVAILABLE, calls that have
// begun finish, and whoever completes, extends or releases meanwhile is served;
// then it stops. Calls left over after the drain timeout are cut, which is an
// error. It closes both listeners. A server runs once.
func (s *Server) Run(ctx context.Context, grpcLis, httpLis net.Listener) error {
	if s.ran.Swap(true) {
		return errors.New("server: Run was called before; make a new server")
	}
	// Background work outlives ctx: it ends when the drain is over.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	group, work := errgroup.WithContext(work)
	if httpLis != nil {
		s.alerter.external = "http://" + httpLis.Addr().String()
	}
	for _, run := range []func(context.Context){
		s.health.run, s.sweeper.run, s.overdue.run, s.core.census.run, s.core.hot.run, s.alerter.run,
	} {
		group.Go(func() error { run(work); return nil })
	}
	server, web := s.grpcServer(), s.httpServer(onLoopback(httpLis))
	group.Go(func() error {
		if err := server.Serve(grpcLis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve grpc: %w", err)
		}
		return nil
	})
	if httpLis != nil {
		group.Go(func() error {
			serve := web.Serve
			if s.cfg.TLS != nil {
				serve = func(lis net.Listener) error { return web.ServeTLS(lis, "", "") }
			}
			if err := serve(httpLis); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve http: %w", err)
			}
			return nil
		})
	}
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-work.Done(): // a listener failed
		}
		err := s.drain(server)
		if err == nil {
			s.log.Info("stopped: every call was answered")
		}
		answered, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if web.Shutdown(answered) != nil { // the calls are answered: what is left reads too slowly
			_ = web.Close()
		}
		stop(nil)
		return err
	})
	return group.Wait()
}

// drain ends the service in order. It has a clock of its own: the context that
// asked for it has ended.
func (s *Server) drain(server *grpc.Server) error {
	late := time.NewTimer(s.cfg.DrainTimeout)
	defer late.Stop()
	s.log.Info("draining", slog.Duration("timeout", s.cfg.DrainTimeout))
	s.health.drain()
	begun := s.gate.drain()
	s.waiters.drain()
	select {
	case <-begun:
	case <-late.C:
		return s.cutOff(server)
	}
	s.cut()
	ended := make(chan struct{})
	go func() {
		server.GracefulStop()
		<-s.gate.stop()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-late.C:
		return s.cutOff(server)
	}
}

// cutOff stops at once.
func (s *Server) cutOff(server *grpc.Server) error {
	s.gate.stop()
	n := s.gate.active()
	s.cut()
	s.conn.cut()
	server.Stop()
	return fmt.Errorf("server: %d calls were cut off after the drain timeout of %s", n, s.cfg.DrainTimeout)
}
