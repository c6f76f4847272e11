package interceptors

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

const (
	// MaxKey is the greatest length of a key, in bytes.
	MaxKey = keying.Max

	hashedKeyPrefix = "sha256:"
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
		if keying.SpaceAtEnd(part) {
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
	if len(key) > MaxKey || strings.HasPrefix(key, hashedKeyPrefix) || strings.HasPrefix(key, keying.ChildPrefix) {
		sum := sha256.Sum256([]byte(key))
		key = hashedKeyPrefix + hex.EncodeToString(sum[:])
	}
	return key, nil
}

// validateKey refuses a key that dedupd would refuse, before anything is sent.
func validateKey(key string) error {
	if fault := keying.Fault(key); fault != "" {
		return keyInvalid(fault)
	}
	return nil
}

func keyInvalid(message string) error {
	return refusal{
		reason:  dedupv1.Reason_REASON_KEY_INVALID,
		message: message,
		field:   HeaderKey,
	}.err()
}
