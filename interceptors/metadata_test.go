package interceptors

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func TestIncomingKeys(t *testing.T) { // C06, C08
	t.Parallel()
	md := metadata.Pairs
	for _, tt := range []struct {
		name    string
		md      metadata.MD
		want    string
		refused string
	}{
		{"none", md(), "", ""},
		{"no metadata at all", nil, "", ""},
		{"by the text header", md(HeaderKey, "k"), "k", ""},
		{"by the binary header", md(HeaderKeyBin, "\x00\xff"), "\x00\xff", ""},
		{"ASCII by the binary header", md(HeaderKeyBin, "k"), "k", ""},
		{"equal by both", md(HeaderKey, "k", HeaderKeyBin, "k"), "k", ""},
		{"the same twice", md(HeaderKey, "k", HeaderKey, "k"), "k", ""},
		{"different by both", md(HeaderKey, "k", HeaderKeyBin, "l"), "", "two different keys"},
		{"different twice", md(HeaderKey, "k", HeaderKey, "l"), "", "two different keys"},
		{"different twice, binary", md(HeaderKeyBin, "k", HeaderKeyBin, "l"), "", "two different keys"},
		{"empty", md(HeaderKey, ""), "", "0 bytes"},
		{"empty, binary", md(HeaderKeyBin, ""), "", "0 bytes"},
		{"empty beside a good one", md(HeaderKey, "k", HeaderKeyBin, ""), "", "0 bytes"},
		{"white space", md(HeaderKey, "  "), "", "white space"},
		{"white space at an end", md(HeaderKeyBin, "k\n"), "", "white space"},
		{"255 bytes", md(HeaderKey, strings.Repeat("k", 255)), strings.Repeat("k", 255), ""},
		{"256 bytes", md(HeaderKey, strings.Repeat("k", 256)), "", "256 bytes"},
		{"not ASCII by the text header", md(HeaderKey, "ключ"), "", HeaderKeyBin},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			key, ok, err := incomingKey(tt.md)
			require.Equal(t, tt.want, key)
			require.Equal(t, tt.want != "", ok)
			if tt.refused == "" {
				require.NoError(t, err)
				return
			}
			requireRefusal(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
			require.ErrorContains(t, err, tt.refused)
			require.Equal(t, HeaderKey, fieldOf(t, err))
		})
	}
}

func TestOutgoingKeyIsSetOnACopy(t *testing.T) { // C12
	t.Parallel()
	shared := metadata.Pairs("x-trace", "1", HeaderKey, "old")
	parent := metadata.NewOutgoingContext(t.Context(), shared)
	appended := metadata.AppendToOutgoingContext(parent, HeaderKeyBin, "\xff", "x-more", "2")
	for _, key := range []string{"new", "ключ"} {
		md, _ := metadata.FromOutgoingContext(setOutgoingKey(appended, key))
		got, ok, err := incomingKey(md)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, key, got)
		require.Equal(t, []string{"1"}, md.Get("x-trace"))
		require.Equal(t, []string{"2"}, md.Get("x-more"))
	}
	require.Equal(t, metadata.Pairs("x-trace", "1", HeaderKey, "old"), shared)
	appendedMD, _ := metadata.FromOutgoingContext(appended)
	_, _, err := incomingKey(appendedMD)
	requireRefusal(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
}

// keyEcho answers with the key that arrived.
type keyEcho struct {
	demov1.UnimplementedPaymentsServiceServer
}

func (keyEcho) Charge(ctx context.Context, _ *demov1.ChargeRequest) (*demov1.ChargeResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	key, _, err := incomingKey(md)
	if err != nil {
		return nil, err
	}
	return &demov1.ChargeResponse{}, grpc.SetTrailer(ctx, metadata.Pairs("echo-bin", key))
}

func TestKeysCrossARealConnectionUnchanged(t *testing.T) { // C08
	t.Parallel()
	listener := bufconn.Listen(1 << 16)
	srv := grpc.NewServer()
	demov1.RegisterPaymentsServiceServer(srv, keyEcho{})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///keys",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		srv.Stop()
		require.NoError(t, <-served)
	})
	client := demov1.NewPaymentsServiceClient(conn)
	for _, key := range []string{"plain", "a, b;c", "ключ", "😀", "\x00\xff", "a\nb", "+/=,", strings.Repeat("\xfe", 255)} {
		var trailer metadata.MD
		_, err := client.Charge(setOutgoingKey(t.Context(), key), &demov1.ChargeRequest{}, grpc.Trailer(&trailer))
		require.NoError(t, err)
		require.Equal(t, []string{key}, trailer.Get("echo-bin"))
	}
}
