package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// recheck is how long a certificate is used before its files are read again.
const recheck = time.Minute

// serverTLS is how serve proves who it is, and who may call.
type serverTLS struct {
	Cert     string `type:"existingfile" placeholder:"FILE" help:"PEM certificate with its chain: both ports are then served by TLS only. It is read again every minute, so renew it in place."`
	Key      string `type:"existingfile" placeholder:"FILE" help:"PEM key of --tls-cert."`
	ClientCA string `name:"client-ca" type:"existingfile" placeholder:"FILE" help:"Serve only clients with a certificate by one of these PEM authorities, on both ports. Whoever has one may do everything."`
}

func (f serverTLS) check() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("--tls-cert and --tls-key belong together")
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key: who asks others for a certificate shows one")
	}
	return nil
}

// config is how both ports are served; nil means plain text.
func (f serverTLS) config(log *slog.Logger) (*tls.Config, error) {
	if f.Cert == "" {
		return nil, nil //nolint:nilnil // plain text is no fault
	}
	first, err := f.load()
	if err != nil {
		return nil, err
	}
	renewed := renewing{files: f, log: log, config: first, read: time.Now()}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: first.Certificates, NextProtos: first.NextProtos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return renewed.get(), nil },
	}, nil
}

// load reads the files.
func (f serverTLS) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, usagef("--tls-cert %s and --tls-key %s are of no use: %v", f.Cert, f.Key, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if f.ClientCA == "" {
		return c, nil
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.ClientCAs, err = authorities("tls-client-ca", f.ClientCA)
	return c, err
}

// renewing is a configuration whose files may be replaced.
type renewing struct {
	files serverTLS
	log   *slog.Logger

	mu     sync.Mutex
	config *tls.Config
	read   time.Time
}

// get returns the configuration of files that are at most recheck old. Files that
// are of no use, half written perhaps, change nothing.
func (r *renewing) get() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.read) < recheck {
		return r.config
	}
	r.read = time.Now()
	fresh, err := r.files.load()
	if err != nil {
		r.log.Error("the new certificate is not used, the last good one goes on", slog.Any("error", err))
		return r.config
	}
	r.config = fresh
	return r.config
}

// authorities reads the certificates to trust.
func authorities(flag, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, usagef("--%s: %v", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("--%s %s holds no PEM certificate", flag, file)
	}
	return pool, nil
}

// clientTLS is how the operator's tools reach a server.
type clientTLS struct {
	TLS  bool   `name:"tls" help:"Reach --addr by TLS, with the system's authorities."`
	CA   string `name:"ca" type:"existingfile" placeholder:"FILE" help:"Reach --addr by TLS, with these PEM authorities."`
	Cert string `type:"existingfile" placeholder:"FILE" help:"PEM certificate to show to --addr."`
	Key  string `type:"existingfile" placeholder:"FILE" help:"PEM key of --addr-cert."`
}

func (f clientTLS) credentials() (credentials.TransportCredentials, error) {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return nil, usagef("--addr-cert and --addr-key belong together")
	case !f.TLS && f.CA == "" && f.Cert == "":
		return insecure.NewCredentials(), nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if f.CA != "" {
		if c.RootCAs, err = authorities("addr-ca", f.CA); err != nil {
			return nil, err
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, usagef("--addr-cert %s and --addr-key %s are of no use: %v", f.Cert, f.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(c), nil
}
