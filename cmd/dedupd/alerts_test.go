package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

func TestServeTellsItsWebhookOfANewDeadLetter(t *testing.T) {
	t.Parallel()
	type message struct {
		Status      string            `json:"status"`
		GroupLabels map[string]string `json:"groupLabels"`
		ExternalURL string            `json:"externalURL"`
	}
	received := make(chan message, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Errorf("decode: %v", err)
		}
		received <- m
	}))
	t.Cleanup(hook.Close)
	s := serve(t, "--in-memory", "--alert-webhook", hook.URL, "--alert-every", "1s")
	cc, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	_, err = dedupv1.NewDeadLetterServiceClient(cc).Park(t.Context(), &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: identity("k")}, ParkId: make([]byte, 16),
		Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: "/x.Y/Z",
	})
	require.NoError(t, err)
	m := <-received
	require.Equal(t, "firing", m.Status)
	require.Equal(t, map[string]string{"alertname": "DedupdDeadLetters", "namespace": identity("k").GetNamespace()}, m.GroupLabels)
	require.Equal(t, s.http, m.ExternalURL)
	require.Equal(t, exitDone, s.ends(t, syscall.SIGTERM))
}
