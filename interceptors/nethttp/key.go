package nethttp

import (
	"errors"
	"net/http"
	"strings"

	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

// Headers that the middleware and the transport send and read.
const (
	// HeaderKey carries the key: an sf-string of RFC 9651, in quotes, or the bare
	// token. Both name the same key, and the same as gRPC's idempotency-key.
	HeaderKey = "Idempotency-Key"
	// HeaderReplayed is "true" on a response that an earlier run gave.
	HeaderReplayed = "Idempotency-Replayed"
	// HeaderExpires tells when the stored response ends, in RFC 3339.
	HeaderExpires = "Idempotency-Expires"
	// HeaderRecord carries the record id in hexadecimal, on every keyed response.
	HeaderRecord = "Idempotency-Record"
	// HeaderEffect says of a response of 400 and above what its run left behind, which
	// the status alone does not tell: "none"; "repeatable", effects that only the same
	// request may complete; or "unknown".
	HeaderEffect = "Idempotency-Effect"
)

var (
	errTwoKeys   = errors.New("the " + HeaderKey + " header is there twice with different keys, send one")
	errBareKey   = errors.New("the " + HeaderKey + ` header must be a string in quotes: "…"`)
	errSFString  = errors.New("the " + HeaderKey + " header starts with a quote but is no string of RFC 9651")
	errKeyToken  = errors.New("the " + HeaderKey + " header holds bytes that are not visible ASCII; put the key in quotes if it has spaces")
	errKeyParams = errors.New("the " + HeaderKey + " header has something after the string that are no parameters of RFC 9651")
)

// headerKey returns the key that a request carries, and whether it carries one.
// An empty header is malformed, not absent.
func headerKey(h http.Header, strict bool) (key string, ok bool, err error) {
	for _, value := range h.Values(HeaderKey) {
		k, err := parseKey(strings.Trim(value, " \t"), strict)
		if err != nil {
			return "", false, err
		}
		if ok && (k != key || strict) {
			return "", false, errTwoKeys
		}
		key, ok = k, true
	}
	return key, ok, nil
}

// parseKey reads one header value.
func parseKey(value string, strict bool) (string, error) {
	key := value
	if strings.HasPrefix(value, `"`) {
		text, rest, err := sfString(value)
		if err != nil {
			return "", err
		}
		if !sfParameters(rest) {
			return "", errKeyParams
		}
		key = text
	} else {
		if strict {
			return "", errBareKey
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "", errKeyToken
		}
	}
	if fault := keying.Fault(key); fault != "" {
		return "", errors.New(fault)
	}
	return key, nil
}

// sfString reads the sf-string that s starts with.
func sfString(s string) (text, rest string, err error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], nil
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", errSFString
			}
			b.WriteByte(s[i])
		case c < ' ' || c > '~':
			return "", "", errSFString
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errSFString
}

// sfParameters reports whether s is parameters of an sf-item, which say nothing
// to us: ";name" or ";name=value", the value a string or a token.
func sfParameters(s string) bool {
	for s != "" {
		if s[0] != ';' {
			return false
		}
		s = strings.TrimLeft(s[1:], " ")
		name := len(s) - len(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz0123456789_-.*"))
		if name == 0 || s[0] != '*' && (s[0] < 'a' || s[0] > 'z') {
			return false
		}
		if s = s[name:]; !strings.HasPrefix(s, "=") {
			continue
		}
		s = s[1:]
		if strings.HasPrefix(s, `"`) {
			_, rest, err := sfString(s)
			if err != nil {
				return false
			}
			s = rest
			continue
		}
		end := strings.IndexByte(s+";", ';')
		if end == 0 || strings.ContainsFunc(s[:end], func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == ',' }) {
			return false
		}
		s = s[end:]
	}
	return true
}

// quoted writes a key of printable ASCII as an sf-string.
func quoted(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// printable reports whether an sf-string can hold key.
func printable(key string) bool {
	return !strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' })
}

// SetKey writes a key into a request's header, as an sf-string: the same on every
// retry, after a restart of the process too, best made by interceptors.Key from
// business facts. It refuses what is no key of 1-255 bytes of printable ASCII
// without spaces at either end.
func SetKey(r *http.Request, key string) error {
	if fault := keying.Fault(key); fault != "" {
		return errors.New(fault)
	}
	if !printable(key) {
		return errors.New("a key in an HTTP header must be printable ASCII; make it by interceptors.Key, or encode it")
	}
	r.Header.Set(HeaderKey, quoted(key))
	return nil
}
