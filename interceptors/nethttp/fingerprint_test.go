package nethttp

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/interceptors/guard"
)

func TestFingerprintsOfTheVectors(t *testing.T) { // C01
	t.Parallel()
	var file struct {
		Requests []struct {
			Name, Operation, Method, Target, Body, Path, Query, Digest string
			ContentType                                                string `json:"content_type"`
			ContentEncoding                                            string `json:"content_encoding"`
			MediaType                                                  string `json:"media_type"`
		}
	}
	data, err := os.ReadFile("../../proto/dedup/v1/testdata/vectors/http.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &file))
	require.NotEmpty(t, file.Requests)
	for _, v := range file.Requests {
		target, err := url.Parse(v.Target)
		require.NoError(t, err, v.Name)
		body, err := hex.DecodeString(v.Body)
		require.NoError(t, err)
		r := &http.Request{Method: v.Method, URL: target, Header: http.Header{}}
		r.Header.Set("Content-Type", v.ContentType)
		r.Header.Set("Content-Encoding", v.ContentEncoding)
		require.Equal(t, v.Path, canonicalPath(target), v.Name)
		require.Equal(t, v.Query, canonicalQuery(target.RawQuery), v.Name)
		require.Equal(t, v.MediaType, mediaType(v.ContentType), v.Name)
		fp := Fingerprint(v.Operation, r, body)
		require.Equal(t, v.Digest, hex.EncodeToString(fp.GetDigest()), v.Name)
		require.EqualValues(t, 1, fp.GetVersion())
	}
}

func TestOperationsAreShortAndPrintable(t *testing.T) {
	t.Parallel()
	at := func(method, path, pattern string) *http.Request {
		return &http.Request{Method: method, URL: &url.URL{Path: path}, Pattern: pattern}
	}
	long := "/" + string(make([]byte, 300))
	for _, c := range []struct {
		route *route
		r     *http.Request
		want  string
	}{
		{&route{}, at("POST", "/orders", ""), "POST /orders"},
		{&route{}, at("POST", "/orders/1", "POST /orders/{id}"), "POST /orders/{id}"},
		{&route{pattern: "/orders/{id}"}, at("PUT", "/orders/1", ""), "PUT /orders/{id}"},
		{&route{pattern: "POST api.test/orders"}, at("POST", "/orders", "/"), "POST api.test/orders"},
		{&route{pattern: "GET /orders"}, at("HEAD", "/orders", ""), "HEAD /orders"},
		{&route{}, at("POST", "/caf\u00e9", ""), "POST /caf%C3%A9"},
	} {
		require.Equal(t, c.want, c.route.operation(c.r))
	}
	for _, r := range []*http.Request{at("POST", long, ""), at("P\x01ST", "/", ""), at(long, "/", "")} {
		name := (&route{}).operation(r)
		require.LessOrEqual(t, len(name), guard.MaxOperation)
		require.True(t, printable(name))
		require.Equal(t, name, (&route{}).operation(r))
	}
}
