package interceptors

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

const (
	// MaxKey is the greatest length of a key, in bytes.
	MaxKey = 255

	hashedKeyPrefix = "sha256:"
	childKeyPrefix  = "ck1:"
)

// Key makes a key from business facts, such as Key("charge", "order", id): the
// same facts give the same key in every process, on every retry and after every
// restart. Name what the intent is, never what changes between its attempts
// (times, tokens, attempt numbers).
//
// The parts are joined by ':', with '%' and ':' inside a part written as %25 and
// %3A, so ("a:b", "c") and ("a", "b:c") differ. A result over 255 bytes, or one
// that starts with a prefix of dedupd's own ("sha256:", "ck1:"), becomes
// "sha256:" and the hexadecimal SHA-256 of it.
//
// It refuses, with INVALID_ARGUMENT and KEY_INVALID, no parts, an empty part,
// and a part that starts or ends with white space: such a part is a fact that is
// missing or misread, and every caller that misses it would share the key.
func Key(parts ...string) (string, error) {
	if len(parts) == 0 {
		return "", keyInvalid("a key needs at least one part")
	}
	var b strings.Builder
	for i, part := range parts {
		if part == "" {
			return "", keyInvalid(fmt.Sprintf("part %d of %d of the key is empty", i+1, len(parts)))
		}
		if spaceAtEnd(part) {
			return "", keyInvalid(fmt.Sprintf("part %d of %d of the key starts or ends with white space; it is refused, not trimmed", i+1, len(parts)))
		}
		if i > 0 {
			b.WriteByte(':')
		}
		for j := range len(part) { // by bytes: a part need not be UTF-8
			switch c := part[j]; c {
			case '%':
				b.WriteString("%25")
			case ':':
				b.WriteString("%3A")
			default:
				b.WriteByte(c)
			}
		}
	}
	key := b.String()
	if len(key) > MaxKey || strings.HasPrefix(key, hashedKeyPrefix) || strings.HasPrefix(key, childKeyPrefix) {
		sum := sha256.Sum256([]byte(key))
		key = hashedKeyPrefix + hex.EncodeToString(sum[:])
	}
	return key, nil
}

// freshKey returns a UUID of version 7 (RFC 9562): a key for one intent that has
// no name of its own. Its order by time keeps new keys together in a store.
func freshKey(now time.Time) string {
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

// validateKey refuses a key that dedupd would refuse, before anything is sent.
func validateKey(key string) error {
	if n := len(key); n == 0 || n > MaxKey {
		return keyInvalid(fmt.Sprintf("key is %d bytes, 1 to %d are allowed", n, MaxKey))
	}
	if spaceAtEnd(key) {
		return keyInvalid("key starts or ends with white space; it is refused, not trimmed")
	}
	return nil
}

func spaceAtEnd(s string) bool {
	first, _ := utf8.DecodeRuneInString(s)
	last, _ := utf8.DecodeLastRuneInString(s)
	return unicode.IsSpace(first) || unicode.IsSpace(last)
}

func keyInvalid(message string) error {
	return refusal{
		reason:  dedupv1.Reason_REASON_KEY_INVALID,
		message: message,
		field:   HeaderKey,
	}.err()
}
