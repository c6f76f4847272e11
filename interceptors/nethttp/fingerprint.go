package nethttp

import (
	"crypto/sha256"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

const (
	fingerprintVersion = 1
	fingerprintDomain  = "dedup.http.v1"
	webhookDomain      = "dedup.webhook.v1"
)

// Fingerprint returns the fingerprint, version 1, of an HTTP request to an
// operation: SHA-256 over these parts, each prefixed by its length as four bytes,
// big endian:
//
//	"dedup.http.v1", operation, method, path, query, media type, content encoding, body
//
// Path and query are compared as RFC 3986 compares them: percent-encoded
// unreserved characters are decoded, other encodings have upper-case digits. The
// query's parameters are sorted by name; those of one name keep their order. The
// media type is lower case, without its parameters; the content encoding is lower
// case. The body is its bytes, unread and unchanged: a client that retries sends
// the same bytes again. No other header takes part.
//
// The rule has vectors in proto/dedup/v1/testdata/vectors/http.json.
func Fingerprint(operation string, r *http.Request, body []byte) *dedupv1.Fingerprint {
	sum := sha256.Sum256(keying.LengthPrefixed(
		fingerprintDomain, operation, r.Method, canonicalPath(r.URL), canonicalQuery(r.URL.RawQuery),
		mediaType(r.Header.Get("Content-Type")), strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))), string(body),
	))
	return &dedupv1.Fingerprint{Version: fingerprintVersion, Digest: sum[:]}
}

// webhookFingerprint is that of an event: of what its deliveries have in common.
func webhookFingerprint(operation string, same []byte) *dedupv1.Fingerprint {
	sum := sha256.Sum256(keying.LengthPrefixed(webhookDomain, operation, string(same)))
	return &dedupv1.Fingerprint{Version: fingerprintVersion, Digest: sum[:]}
}

func canonicalPath(u *url.URL) string {
	if path := canonicalEscapes(u.EscapedPath()); path != "" {
		return path
	}
	return "/"
}

func canonicalQuery(raw string) string {
	if raw == "" {
		return ""
	}
	params := strings.Split(raw, "&")
	for i, p := range params {
		params[i] = canonicalEscapes(p)
	}
	slices.SortStableFunc(params, func(a, b string) int {
		nameA, _, _ := strings.Cut(a, "=")
		nameB, _, _ := strings.Cut(b, "=")
		return strings.Compare(nameA, nameB)
	})
	return strings.Join(params, "&")
}

// canonicalEscapes writes percent-encodings in one way.
func canonicalEscapes(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if hi, lo := unhex(s[i+1]), unhex(s[i+2]); hi >= 0 && lo >= 0 {
				if c := byte(hi<<4 | lo); unreserved(c) { //nolint:gosec // two digits of four bits
					b.WriteByte(c)
				} else {
					b.WriteString(strings.ToUpper(s[i : i+3]))
				}
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func unhex(c byte) int { return strings.IndexByte("0123456789abcdef", c|0x20) }

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func mediaType(contentType string) string {
	if t, _, err := mime.ParseMediaType(contentType); err == nil {
		return t
	}
	return strings.ToLower(strings.TrimSpace(contentType))
}
