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

func TestALargeBodyIsStreamedAndClosedOnce(t *testing.T) {
	t.Parallel()
	got := make(chan int64, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			n = -1
		}
		got <- n
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	rt, err := nethttp.NewTransport(nethttp.TransportConfig{Base: srv.Client().Transport, MaxBody: 10})
	require.NoError(t, err)
	body := &closing{Reader: strings.NewReader(strings.Repeat("x", 1<<20))}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, body)
	require.NoError(t, err)
	require.NoError(t, nethttp.SetKey(r, "a"))
	resp, err := (&http.Client{Transport: rt}).Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, int64(1<<20), <-got)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "it is not held, so it is not sent again")
	require.Equal(t, int64(1), body.closed.Load())
}

// closing counts how often it is closed.
type closing struct {
	io.Reader
	closed atomic.Int64
}

func (c *closing) Close() error {
	c.closed.Add(1)
	return nil
}
