package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dedupd/dedupd/server/console"
)

// writeTimeout lets a call be held for as long as a Reserve may wait.
const writeTimeout = 45 * time.Second

// httpServer is the HTTP port: /healthz says that the process lives, /readyz
// whether it should get work, with the reason in one line, /metrics what it has
// counted; the services as Connect, gRPC-Web and JSON; and the console. With
// loopback it serves the last two under a name of this machine only.
func (s *Server) httpServer(loopback bool) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeLine(w, http.StatusOK, "alive")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reason := s.health.notReady(); reason != "" {
			writeLine(w, http.StatusServiceUnavailable, reason)
			return
		}
		writeLine(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Registry, promhttp.HandlerOpts{Registry: s.cfg.Registry}))
	rpc := guarded(loopback, connectHandlers(s.conn))
	for _, service := range ownServices() {
		mux.Handle("/"+service.ServiceName+"/", rpc)
	}
	mux.Handle("/console/", guarded(loopback, http.StripPrefix("/console", console.New(s.conn, console.Options{
		ShowKeys: s.cfg.ShowKeys, Version: s.cfg.Version,
	}))))
	mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusSeeOther))
	return &http.Server{
		Handler:           mux,
		TLSConfig:         s.cfg.TLS,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// guarded keeps other sites' pages, open in an operator's browser, from calling
// what is served without a password: requests from another origin, and, on a
// port that only this machine reaches, requests under another machine's name
// (DNS rebinding).
func guarded(loopback bool, next http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	sameOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeLine(w, http.StatusForbidden, "refused: the request comes from another site's page")
	}))
	return sameOrigin.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loopback && !localName(r.Host) {
			writeLine(w, http.StatusMisdirectedRequest,
				"refused: this port serves this machine only; open it as localhost or 127.0.0.1")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), overHTTP{}, certified(r.RemoteAddr, r.TLS))))
	}))
}

// localName reports whether host, with or without a port, means this machine.
func localName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// onLoopback reports whether only this machine reaches the listener.
func onLoopback(lis net.Listener) bool {
	if lis == nil {
		return true
	}
	addr, ok := lis.Addr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// overHTTP is the key of the address that a call in process came from over HTTP.
type overHTTP struct{}

func writeLine(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text+"\n") // the peer's loss
}
