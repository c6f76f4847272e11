package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// authority signs certificates for 127.0.0.1.
type authority struct {
	dir  string
	file string // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.file, _ = a.sign(t, "authority")
	return a
}

// sign writes a certificate and its key, and returns where.
func (a *authority) sign(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	made := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * day),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: a.cert == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if a.cert == nil {
		a.cert, a.key = made, key
	}
	der, err := x509.CreateCertificate(rand.Reader, made, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	write := func(suffix, kind string, content []byte) string {
		file := filepath.Join(a.dir, name+suffix)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
		return file
	}
	return write(".pem", "CERTIFICATE", der), write(".key", "PRIVATE KEY", private)
}

func TestServeByTLSOnBothPorts(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	cert, key := a.sign(t, "server")
	s := serve(t, "--in-memory", "--tls-cert", cert, "--tls-key", key)
	stdout, _ := exits(t, exitDone, "keys", "list", "--addr", s.grpc, "--addr-ca", a.file)
	require.Equal(t, "no records\n", stdout)
	for _, plain := range [][]string{nil, {"--addr-tls"}} {
		_, stderr := exits(t, exitFailed, append([]string{"keys", "list", "--addr", s.grpc}, plain...)...)
		require.Contains(t, stderr, "--addr-ca", "what to do")
	}

	roots, err := authorities("ca", a.file)
	require.NoError(t, err)
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	reply, err := web.Get(s.http + "/readyz")
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	require.Equal(t, http.StatusOK, reply.StatusCode)
	web.CloseIdleConnections()
	require.Equal(t, exitDone, s.ends(t, syscall.SIGTERM))

	s = serve(t, "--in-memory")
	_, stderr := exits(t, exitFailed, "keys", "list", "--addr", s.grpc, "--addr-ca", a.file)
	require.Contains(t, stderr, "plain text")
}

func TestServeAsksClientsForACertificate(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	cert, key := a.sign(t, "server")
	s := serve(t, "--in-memory", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", a.file)
	mine, myKey := a.sign(t, "operator")
	exits(t, exitDone, "keys", "list", "--addr", s.grpc, "--addr-ca", a.file, "--addr-cert", mine, "--addr-key", myKey)
	theirs, theirKey := other.sign(t, "stranger")
	for _, without := range [][]string{nil, {"--addr-cert", theirs, "--addr-key", theirKey}} {
		_, stderr := exits(t, exitFailed, append([]string{"keys", "list", "--addr", s.grpc, "--addr-ca", a.file}, without...)...)
		require.Contains(t, stderr, "--addr-cert", "what to do")
	}
	roots, err := authorities("ca", a.file)
	require.NoError(t, err)
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	_, err = web.Get(s.http + "/console/") //nolint:bodyclose // there is none
	require.ErrorContains(t, err, "certificate required")
	require.Equal(t, exitDone, s.ends(t, syscall.SIGTERM))
}

func TestACertificateIsRenewedInPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		cert, key := a.sign(t, "server")
		var log bytes.Buffer
		config, err := serverTLS{Cert: cert, Key: key}.config(slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		shown := func() []byte {
			c, err := config.GetConfigForClient(nil)
			require.NoError(t, err)
			return c.Certificates[0].Certificate[0]
		}
		first := shown()
		a.sign(t, "server") // another, in its place
		require.Equal(t, first, shown(), "not for every connection")
		time.Sleep(recheck) //nolint:forbidigo // in a bubble
		second := shown()
		require.NotEqual(t, first, second)

		require.NoError(t, os.WriteFile(key, []byte("half"), 0o600))
		time.Sleep(recheck) //nolint:forbidigo // in a bubble
		require.Equal(t, second, shown(), "the last good one")
		require.Contains(t, log.String(), "the new certificate is not used")
	})
}

func TestServeRefusesHalfOfACertificate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	cert, key := a.sign(t, "server")
	for says, args := range map[string][]string{
		"belong together":          {"--tls-cert", cert},
		"shows one":                {"--tls-client-ca", a.file},
		"are of no use":            {"--tls-cert", key, "--tls-key", cert},
		"holds no PEM certificate": {"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key},
	} {
		_, stderr := exits(t, exitUsage, append([]string{"serve", "--in-memory", "--listen", "127.0.0.1:0"}, args...)...)
		require.Contains(t, stderr, says)
	}
}
