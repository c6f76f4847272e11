package nethttp_test

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/nethttp"
)

// curl asks a real server as a client in any language would.
func curl(t *testing.T, args ...string) (status int, header http.Header, text string) {
	t.Helper()
	path, err := exec.LookPath("curl")
	require.NoError(t, err, "install curl (Debian package curl)")
	out, err := exec.CommandContext(t.Context(), path, append([]string{"-sS", "-i", "--max-time", "30", "-H", "Expect:"}, args...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(out)), nil)
	require.NoError(t, err, string(out))
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, resp.Header, string(body)
}

// TestTheDraftByCurl is draft-ietf-httpapi-idempotency-key-header-07 by its
// sections, and what we add to it, one request after the other.
func TestTheDraftByCurl(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	running, finish := make(chan struct{}), make(chan struct{})
	w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) {
		if r.URL.Path == "/slow" {
			close(running)
			<-finish
		}
		if r.URL.Path == "/faulty" {
			nethttp.SayOutcomeUnknown(r.Context())
			rw.WriteHeader(http.StatusBadGateway)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		rw.Header().Set("Location", "/orders/1")
		rw.Header().Set("Set-Cookie", "session=1")
		rw.WriteHeader(http.StatusCreated)
		_, _ = rw.Write(body)
		if r.URL.Path == "/large" {
			_, _ = rw.Write(make([]byte, 1<<20))
		}
	}
	required := nethttp.Route{Policy: &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED}}
	srv := httptest.NewServer(w.wrap(t, nethttp.WithRoute("/orders", required), nethttp.WithMaxBody(100)))
	defer srv.Close()
	strict := httptest.NewServer(w.wrap(t, nethttp.Strict()))
	defer strict.Close()

	const key, body = `Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"`, `{"item":"book"}`
	problemOf := func(word string) string { return `"type":"` + nethttp.ProblemBase + word + `"` }
	for _, c := range []struct {
		name   string
		args   []string
		status int
		body   string // is in it
		header map[string]string
		runs   int // in all, after it
	}{
		{"2.7: a key is required", []string{srv.URL + "/orders", "-d", body}, 400, problemOf("key-required"), map[string]string{"Content-Type": "application/problem+json"}, 0},
		{"2.1: the key is no string", []string{srv.URL + "/orders", "-d", body, "-H", `Idempotency-Key: "8e03`}, 400, problemOf("key-invalid"), nil, 0},
		{"2.1: nor is it empty", []string{srv.URL + "/orders", "-d", body, "-H", `Idempotency-Key;`}, 400, problemOf("key-invalid"), nil, 0},
		{"2.6: first time: it runs", []string{srv.URL + "/orders", "-d", body, "-H", key}, 201, body, map[string]string{"Set-Cookie": "session=1", "Idempotency-Replayed": ""}, 1},
		{"2.6: repeated: the first answer", []string{srv.URL + "/orders", "-d", body, "-H", key}, 201, body, map[string]string{"Idempotency-Replayed": "true", "Location": "/orders/1", "Set-Cookie": ""}, 1},
		{"the bare form is the same key", []string{srv.URL + "/orders", "-d", body, "-H", strings.ReplaceAll(key, `"`, "")}, 201, body, map[string]string{"Idempotency-Replayed": "true"}, 1},
		{"unless strict", []string{strict.URL + "/orders", "-d", body, "-H", strings.ReplaceAll(key, `"`, "")}, 400, problemOf("key-invalid"), nil, 1},
		{"2.7: another payload", []string{srv.URL + "/orders", "-d", `{"item":"pen"}`, "-H", key}, 422, problemOf("key-reused"), nil, 1},
		{"another caller", []string{srv.URL + "/orders", "-d", body, "-H", key, "-H", "Authorization: Bearer bob"}, 201, body, map[string]string{"Idempotency-Replayed": ""}, 2},
		{"no caller", []string{srv.URL + "/orders", "-d", body, "-H", key, "-H", "Authorization:"}, 401, `"about:blank"`, nil, 2},
		{"GET takes none", []string{srv.URL + "/orders", "-H", key}, 201, "", map[string]string{"Idempotency-Record": ""}, 3},
		{"too large", []string{srv.URL + "/orders", "-d", strings.Repeat("x", 101), "-H", `Idempotency-Key: "l"`}, 413, "100 bytes", nil, 3},
		{"PATCH too", []string{srv.URL + "/orders", "-X", "PATCH", "-d", body, "-H", key}, 201, body, map[string]string{"Idempotency-Replayed": ""}, 4},
		{"PATCH too, repeated", []string{srv.URL + "/orders", "-X", "PATCH", "-d", body, "-H", key}, 201, body, map[string]string{"Idempotency-Replayed": "true"}, 4},
		{"an answer too large to keep", []string{srv.URL + "/large", "-d", body, "-H", key}, 201, body, nil, 5},
		{"is not given twice", []string{srv.URL + "/large", "-d", body, "-H", key}, 410, problemOf("outcome-not-stored"), nil, 5},
		{"nobody knows", []string{srv.URL + "/faulty", "-d", body, "-H", key}, 502, "", nil, 6},
		{"nobody knows, repeated", []string{srv.URL + "/faulty", "-d", body, "-H", key}, 409, problemOf("outcome-unknown"), map[string]string{"Retry-After": "1"}, 6},
	} {
		if !strings.Contains(strings.Join(c.args, " "), "Authorization") {
			c.args = append(c.args, "-H", "Authorization: Bearer ada")
		}
		status, header, got := curl(t, c.args...)
		require.Equal(t, c.status, status, "%s: %s", c.name, got)
		require.Contains(t, got, c.body, c.name)
		for name, value := range c.header {
			require.Equal(t, value, header.Get(name), "%s: %s", c.name, name)
		}
		require.Equal(t, c.runs, w.count(), c.name)
	}

	first := make(chan int, 1)
	slow := slowRequest(t, srv.URL+"/slow", body)
	go func() {
		resp, err := srv.Client().Transport.RoundTrip(slow)
		if err != nil {
			first <- 0
			return
		}
		_ = resp.Body.Close()
		first <- resp.StatusCode
	}()
	<-running
	status, header, got := curl(t, srv.URL+"/slow", "-d", body, "-H", key, "-H", "Authorization: Bearer ada", "-H", "Content-Type: application/json")
	require.Equal(t, http.StatusConflict, status, "2.7: the first request is in progress")
	require.Contains(t, got, problemOf("in-progress"))
	require.Equal(t, "1", header.Get("Retry-After"))
	close(finish)
	require.Equal(t, http.StatusCreated, <-first)

	w.down.Store(true)
	status, header, got = curl(t, srv.URL+"/orders", "-d", body, "-H", key, "-H", "Authorization: Bearer ada")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, got, problemOf("store-unavailable"))
	require.Equal(t, "1", header.Get("Retry-After"))
	require.Equal(t, 7, w.count())
}

func slowRequest(t *testing.T, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header = http.Header{"Authorization": {"Bearer ada"}, "Content-Type": {"application/json"}}
	require.NoError(t, nethttp.SetKey(r, "8e03978e-40d5-43dd-bc93-6894a57f9324"))
	return r
}
