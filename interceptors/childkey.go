package interceptors

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/guard"
)

const (
	childKeyDomain = "dedup.ck.v1"
	childKeyChars  = 32
)

// ChildKey names the key of a step of a keyed handler's work, for WithKey: the
// same on every run of the same request, and different from every other step's
// and record's. Calls of a keyed handler that are given no key have one of their
// own, made from method and request; name the step where a second run may send
// another request for it. It fails with FAILED_PRECONDITION outside a keyed
// handler, and for an empty name.
func ChildKey(ctx context.Context, step string) (string, error) {
	parent := guard.RecordIDFrom(ctx)
	if parent == nil {
		return "", status.Error(codes.FailedPrecondition, "a child key is for the calls of a keyed handler, hand its context on")
	}
	if step == "" {
		return "", status.Error(codes.FailedPrecondition, "name the step that the child key is for")
	}
	return stepKey(parent, step), nil
}

// childKey names a call of the run of parent that was given no key: the run has
// made so many of the same method and request before, and they succeeded.
func childKey(parent []byte, method string, digest []byte, earlier uint64) string {
	return shortHash(childKeyDomain, string(parent), method, string(digest), string(binary.BigEndian.AppendUint64(nil, earlier)))
}

// stepKey never meets childKey: no method's name is empty.
func stepKey(parent []byte, step string) string {
	return shortHash(childKeyDomain, string(parent), "", step)
}

func shortHash(parts ...string) string {
	sum := sha256.Sum256(lengthPrefixed(parts...))
	return childKeyPrefix + base64.RawURLEncoding.EncodeToString(sum[:])[:childKeyChars]
}

func lengthPrefixed(parts ...string) []byte {
	var b []byte
	for _, part := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part))) //nolint:gosec // names and hashes are short
		b = append(b, part...)
	}
	return b
}

// isChildKey reports whether a run of the same request gives its call this key
// again. Key makes none that looks like it.
func isChildKey(key string) bool { return strings.HasPrefix(key, childKeyPrefix) }
