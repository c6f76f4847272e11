package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage"
)

// serveCmd runs the service until it is told to stop, or its store has stopped.
type serveCmd struct {
	storeFlags `embed:""`

	Listen   string `default:"127.0.0.1:7480" help:"Where gRPC listens. Without --tls-client-ca nobody is asked who they are: keep it on networks you trust."`
	HTTP     string `name:"http" default:"127.0.0.1:7481" help:"Where the console, JSON, /healthz, /readyz and /metrics listen; empty for nowhere."`
	OpenHTTP bool   `name:"open-http-without-auth" help:"Let --http listen beyond this machine. Nobody is asked for a password there."`

	serverTLS `embed:"" prefix:"tls-"`

	ShowKeys bool `help:"Show keys and callers in the console. Without it they are masked, since they may be secrets."`

	Retention  span     `default:"7d" help:"How long a completed record is kept: 1m to 400d."`
	Tombstone  span     `default:"30d" help:"How long after that a repeat is refused instead of run: 0s to 400d."`
	MaxOutcome byteSize `default:"1MiB" help:"Largest response that is stored: 1 byte to 4MiB. Larger ones are left out of their record."`

	DeadLetterCap  int64 `default:"100000" help:"Open dead letters that a namespace may have: 1 to 10000000. At the cap new ones are refused; nothing that is kept is dropped."`
	DeadLetterHold span  `default:"30d" help:"How long a closed dead letter is kept: 1m to 400d."`

	alertFlags `embed:"" prefix:"alert-"`

	Drain span `default:"20s" help:"How long calls in progress may take to finish after SIGTERM or SIGINT; a second signal ends the process at once."`

	LogLevel  slog.Level `default:"info" placeholder:"LEVEL" help:"Log this and above: debug, info, warn, error."`
	LogFormat string     `enum:"auto,text,json" default:"auto" help:"How log lines look: text, json, or auto, which is text on a terminal and json elsewhere."`

	tracing   `embed:""`
	collector `embed:""`
}

// Validate is called by the parser: what cannot work is refused before anything
// is opened.
func (c *serveCmd) Validate() error {
	var errs []error
	if err := c.storeFlags.check(); err != nil {
		errs = append(errs, err)
	}
	if err := checkAddress("listen", c.Listen); err != nil {
		errs = append(errs, err)
	}
	if c.HTTP != "" {
		if err := checkAddress("http", c.HTTP); err != nil {
			errs = append(errs, err)
		} else if !c.OpenHTTP && c.ClientCA == "" && !isLoopback(c.HTTP) {
			errs = append(errs, fmt.Errorf("--http %s would be open to other machines without authentication; keep it on 127.0.0.1, ask for certificates by --tls-client-ca, or say --open-http-without-auth", c.HTTP))
		}
	}
	errs = append(errs,
		within("retention", c.Retention, span(storage.MinRetention), span(storage.MaxRetention), span.String),
		within("tombstone", c.Tombstone, 0, span(storage.MaxTombstone), span.String),
		within("max-outcome", c.MaxOutcome, 1, storage.CeilMaxOutcome, byteSize.String),
		within("dead-letter-cap", c.DeadLetterCap, 1, server.MaxEntryCap, func(n int64) string { return strconv.FormatInt(n, 10) }),
		within("dead-letter-hold", c.DeadLetterHold, span(storage.MinRetention), span(storage.MaxRetention), span.String),
		c.serverTLS.check(),
		c.alertFlags.check(),
		within("drain", c.Drain, span(time.Second), span(time.Hour), span.String),
		c.tracing.check(),
		c.collector.check(),
	)
	return joinUsage(errs...)
}

// Run opens the store and the ports, says where they are, and serves. A store that
// stops after a failed write ends it, so that whoever supervises the process starts
// it again: opening recovers, or says what is still wrong.
func (c *serveCmd) Run(ctx context.Context, s streams) (err error) {
	log := newLogger(s.err, c.LogLevel, c.LogFormat)
	c.tune(ctx, log)
	registry := server.NewRegistry()
	life, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	tracer, flush, err := c.provider(ctx, log)
	if err != nil {
		return err
	}
	defer flush()
	secure, err := c.serverTLS.config(log)
	if err != nil {
		return err
	}
	store, where, err := c.open(ctx, log, registry, fail)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	tombstone := time.Duration(c.Tombstone)
	srv, err := server.New(server.Config{
		Store: store, Logger: log, Registry: registry, Version: build().Version, ShowKeys: c.ShowKeys, TracerProvider: tracer,
		Retention: time.Duration(c.Retention), Tombstone: &tombstone, MaxOutcome: int(c.MaxOutcome),
		EntryCap: int(c.DeadLetterCap), EntryHold: time.Duration(c.DeadLetterHold), Alerts: c.alertFlags.config(), TLS: secure,
		DrainTimeout: time.Duration(c.Drain),
	})
	if err != nil {
		return err
	}
	grpcLis, err := listen(ctx, "listen", c.Listen)
	if err != nil {
		return err
	}
	var httpLis net.Listener
	if c.HTTP != "" {
		if httpLis, err = listen(ctx, "http", c.HTTP); err != nil {
			return errors.Join(err, grpcLis.Close())
		}
	}
	if err := c.greet(s, where, grpcLis, httpLis); err != nil {
		return err
	}
	err = srv.Run(life, grpcLis, httpLis)
	if life.Err() == nil || ctx.Err() != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w; %w", context.Cause(life), err)
	}
	return context.Cause(life)
}

// greet says where everything is and what to type next.
func (c *serveCmd) greet(s streams, where string, grpcLis, httpLis net.Listener) error {
	addr := grpcLis.Addr().String()
	flag, scheme, plain := "", "http", " -plaintext"
	if addr != "127.0.0.1:7480" {
		flag = " --addr " + addr
	}
	if c.Cert != "" {
		flag, scheme, plain = flag+" --addr-tls", "https", ""
	}
	lines := []string{
		"dedupd " + build().Version,
		"  grpc  " + addr,
	}
	if httpLis != nil {
		lines = append(lines, "  http  "+scheme+"://"+httpLis.Addr().String()+" (console, JSON, /healthz /readyz /metrics)")
	}
	lines = append(lines,
		"  data  "+where,
		fmt.Sprintf("  keep  outcomes for %s, then refuse repeats for %s", c.Retention, c.Tombstone),
		"  next  dedupd keys list"+flag+" · grpcurl"+plain+" "+addr+" list · Ctrl-C stops",
	)
	_, err := fmt.Fprintln(s.out, strings.Join(lines, "\n"))
	return err
}

// listen opens one port; the error names the flag that chose it.
func listen(ctx context.Context, flag, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case err == nil:
		return lis, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another process; stop it, or choose another address with --%s", addr, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("this user may not listen on %s; choose a port above 1023 with --%s", addr, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is no address of this machine; choose another with --%s", addr, flag)
	}
	return nil, fmt.Errorf("cannot listen on --%s %s: %w", flag, addr, err)
}

func checkAddress(flag, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // a number, or a name of this machine's list
	}
	if err != nil {
		return fmt.Errorf("--%s is %q; it takes host:port", flag, addr)
	}
	return nil
}

// isLoopback reports whether addr is reachable from this machine alone.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
