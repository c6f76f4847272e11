package interceptors

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestConnectionsKeepTheirOwnUntilTheyAreClosed(t *testing.T) { // E10 F01
	t.Parallel()
	config, err := newClientConfig(nil)
	require.NoError(t, err)
	known := newConns(config)
	dial := func() *grpc.ClientConn {
		cc, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		return cc
	}
	first, second := dial(), dial()
	of := known.of(first)
	require.NotSame(t, of, known.of(second))
	require.NotSame(t, of, known.of(nil), "calls made by hand")
	require.NoError(t, second.Close())
	third := dial()
	known.of(third)
	require.Same(t, of, known.of(first))
	require.Len(t, known.known, 3, "the closed one is forgotten")
	require.NoError(t, first.Close())
	require.NoError(t, third.Close())
}
