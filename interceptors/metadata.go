package interceptors

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
)

// Metadata that the interceptors send and read. Names ending in -bin carry any
// bytes; gRPC encodes and decodes their base64 itself.
const (
	// HeaderKey carries a key of printable ASCII.
	HeaderKey = "idempotency-key"
	// HeaderKeyBin carries any other key. The same bytes by either header are the
	// same key.
	HeaderKeyBin = "idempotency-key-bin"
	// HeaderFingerprint carries the client's digest of the request, as
	// "<version>:<hexadecimal digest>".
	HeaderFingerprint = "idempotency-fingerprint"
	// HeaderAttempt carries the number of the try, counted from 1, for logs.
	HeaderAttempt = "idempotency-attempt"
	// HeaderReplay says that the call replays a dead letter, as "<entry>.<token>":
	// the entry's id and the claim's token, 32 lower-case hexadecimal digits each.
	HeaderReplay = "idempotency-replay"
	// TrailerReplayed is "true" on an answer that an earlier run gave.
	TrailerReplayed = "idempotency-replayed"
	// TrailerExpires tells when the stored answer ends, in RFC 3339.
	TrailerExpires = "idempotency-expires"
	// TrailerRecord carries the record id in hexadecimal, on every keyed reply.
	TrailerRecord = "idempotency-record"
	// TrailerEffect says of a handler's error what its run left behind, which the code
	// alone does not tell: "none"; "repeatable", effects that only the same request
	// may complete; or "unknown".
	TrailerEffect = "idempotency-effect"
	// TrailerTrace carries the trace context of the run that a replayed answer goes
	// back to, as in a traceparent header.
	TrailerTrace = "idempotency-traceparent"
	// TrailerUnprotected is "true" on the answer of a handler that ran without
	// protection, since dedupd could not be reached and its method fails open: the
	// record named beside it knows nothing of this run.
	TrailerUnprotected = "idempotency-unprotected"
)

// carriesKey reports whether an incoming call has a key, be it one that is
// refused. It copies nothing: most calls have none.
func carriesKey(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, HeaderKey))+len(metadata.ValueFromIncomingContext(ctx, HeaderKeyBin)) > 0
}

// incomingKey returns the key that a call's metadata carries, and whether it
// carries one. A key that breaks a limit, or two that differ, is refused with
// KEY_INVALID; an empty one is never taken for none.
func incomingKey(md metadata.MD) (key string, ok bool, err error) {
	if len(md) == 0 { // as of most calls that have none
		return "", false, nil
	}
	for _, header := range [...]string{HeaderKey, HeaderKeyBin} {
		for _, value := range md[header] {
			if err := validateKey(value); err != nil {
				return "", false, err
			}
			if header == HeaderKey && !printableASCII(value) {
				return "", false, keyInvalid("the " + HeaderKey + " header holds bytes that are not printable ASCII, send them by " + HeaderKeyBin)
			}
			if ok && value != key {
				return "", false, keyInvalid("the call carries two different keys, send one")
			}
			key, ok = value, true
		}
	}
	return key, ok, nil
}

// setOutgoingKey returns ctx with key as the only key of its outgoing metadata:
// set, not appended, on a copy. The key must have passed validateKey.
func setOutgoingKey(ctx context.Context, key string) context.Context {
	md, ok := metadata.FromOutgoingContext(ctx) // a copy
	if !ok {
		md = metadata.MD{}
	}
	set, clear := HeaderKey, HeaderKeyBin
	if !printableASCII(key) {
		set, clear = clear, set
	}
	md.Set(set, key)
	md.Delete(clear)
	return metadata.NewOutgoingContext(ctx, md)
}

// printableASCII reports whether gRPC takes s as the value of a text header.
func printableASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
