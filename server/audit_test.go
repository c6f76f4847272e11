package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

func TestTheAuditNamesWhoShowedACertificate(t *testing.T) {
	t.Parallel()
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "night shift"}}}}
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	for name, ctx := range map[string]context.Context{
		"over gRPC": peer.NewContext(t.Context(), &peer.Peer{Addr: addr, AuthInfo: credentials.TLSInfo{State: state}}),
		"over HTTP": peer.NewContext(t.Context(), &peer.Peer{Addr: inProcess{over: certified(addr.String(), &state)}}),
	} {
		b := setup(t)
		b.core.audit(ctx, "forget", "asked for", "ok")
		require.Contains(t, b.logs.String(), "127.0.0.1:4711", name)
		require.Contains(t, b.logs.String(), "CN=night shift", name)
	}
	require.Equal(t, "1.2.3.4:5", certified("1.2.3.4:5", nil))
	require.Equal(t, "1.2.3.4:5", certified("1.2.3.4:5", &tls.ConnectionState{}))
}
