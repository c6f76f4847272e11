package nethttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/nethttp"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// flaky loses the connection, after the handler has run, for the first tries.
func flaky(h http.Handler, lost int64) http.Handler {
	var calls atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) > lost {
			h.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler) //nolint:forbidigo // cuts the connection
	})
}

func TestRequestsOverARealConnectionHaveOneEffect(t *testing.T) { // A01
	t.Parallel()
	w := newWorld(t)
	srv := httptest.NewServer(flaky(w.wrap(t), 3))
	defer srv.Close()
	quick, err := policy.NewBackoff(time.Millisecond, time.Millisecond, 1)
	require.NoError(t, err)
	rt, err := nethttp.NewTransport(nethttp.TransportConfig{Base: srv.Client().Transport, Backoff: &quick})
	require.NoError(t, err)
	client := &http.Client{Transport: rt}

	r := slowRequest(t, srv.URL+"/orders", `{"item":"book"}`)
	resp, err := client.Do(r)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.JSONEq(t, `{"order":1}`, string(body))
	require.Equal(t, "true", resp.Header.Get(nethttp.HeaderReplayed))
	end, ok := nethttp.EndOf(resp)
	require.True(t, ok)
	require.Equal(t, 4, end.Attempts)
	require.Equal(t, 1, w.count())

	bare, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/orders", strings.NewReader("{}"))
	require.NoError(t, err)
	srv.Close()
	_, err = client.Do(bare) //nolint:bodyclose // there is none
	require.Error(t, err)
	require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown, "no connection was had, so nothing was sent")
}
