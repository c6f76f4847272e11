package server

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func TestMetadataIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.use(b.serve(t).cc)
	for size, code := range map[int]codes.Code{MaxMetadata / 2: codes.OK, MaxMetadata: codes.Internal} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("a", size))
		_, err := b.admin.Stats(ctx, &dedupv1.StatsRequest{})
		require.Equal(t, code, status.Code(err), "%d bytes: %v", size, err)
	}
}

// A connection that opens calls and sends nothing takes memory for each.
func TestTheCallsOfOneConnectionAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grpcServer()
	lis := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- g.Serve(lis) }()
	cc, err := lis.DialContext(t.Context())
	require.NoError(t, err)
	_, err = cc.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	require.NoError(t, err)
	head := make([]byte, 9) // of the server's SETTINGS
	_, err = io.ReadFull(cc, head)
	require.NoError(t, err)
	settings := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	_, err = io.ReadFull(cc, settings)
	require.NoError(t, err)
	const maxConcurrentStreams = 3
	most := uint32(0)
	for ; len(settings) >= 6; settings = settings[6:] {
		if binary.BigEndian.Uint16(settings) == maxConcurrentStreams {
			most = binary.BigEndian.Uint32(settings[2:])
		}
	}
	require.EqualValues(t, MaxStreams, most)
	require.NoError(t, cc.Close())
	g.Stop()
	require.NoError(t, <-served)
}
