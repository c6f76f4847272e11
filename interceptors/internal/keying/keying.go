// Package keying makes and checks keys, for every door that takes them: gRPC's
// interceptors and HTTP's. It has the limits of a key, fresh keys, and the keys
// that a keyed run's own calls get. It knows no transport, and reads no context.
package keying

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// Max is the greatest length of a key, in bytes.
	Max = 255
	// ChildPrefix starts the keys of a keyed run's own calls.
	ChildPrefix = "ck1:"

	childDomain = "dedup.ck.v1"
	childChars  = 32
)

// Fault says why dedupd would refuse a key, without quoting it; empty where it
// would not.
func Fault(key string) string {
	if n := len(key); n == 0 || n > Max {
		return fmt.Sprintf("key is %d bytes, 1 to %d are allowed", n, Max)
	}
	if SpaceAtEnd(key) {
		return "key starts or ends with white space; it is refused, not trimmed"
	}
	return ""
}

// SpaceAtEnd reports whether s starts or ends with white space.
func SpaceAtEnd(s string) bool {
	first, _ := utf8.DecodeRuneInString(s)
	last, _ := utf8.DecodeLastRuneInString(s)
	return unicode.IsSpace(first) || unicode.IsSpace(last)
}

// Fresh returns a UUID of version 7 (RFC 9562): a key for one intent that has
// no name of its own. Its order by time keeps new keys together in a store.
func Fresh(now time.Time) string {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // it never fails: the runtime ends the process first
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(u[:6], ms[2:])
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	text := make([]byte, 0, 36)
	for i, part := range [...][]byte{u[:4], u[4:6], u[6:8], u[8:10], u[10:]} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, part)
	}
	return string(text)
}

// Child names a call of the run of parent that was given no key: the run has
// made so many of the same method and request before, and they succeeded.
func Child(parent []byte, method string, digest []byte, earlier uint64) string {
	return shortHash(childDomain, string(parent), method, string(digest), string(binary.BigEndian.AppendUint64(nil, earlier)))
}

// Step names a call of the run of parent by the step that it is. It never meets
// Child: no method's name is empty.
func Step(parent []byte, step string) string {
	return shortHash(childDomain, string(parent), "", step)
}

// IsChild reports whether a run of the same request gives its call this key
// again.
func IsChild(key string) bool { return strings.HasPrefix(key, ChildPrefix) }

func shortHash(parts ...string) string {
	sum := sha256.Sum256(LengthPrefixed(parts...))
	return ChildPrefix + base64.RawURLEncoding.EncodeToString(sum[:])[:childChars]
}

// LengthPrefixed joins parts, each with its length before it as four bytes, big
// endian: no two lists of parts give the same bytes.
func LengthPrefixed(parts ...string) []byte {
	var b []byte
	for _, part := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part))) //nolint:gosec // names, hashes and bounded bodies
		b = append(b, part...)
	}
	return b
}
