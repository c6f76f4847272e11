package interceptors

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

const (
	fingerprintVersion = 1
	fingerprintDomain  = "dedup.fp.v1"
	fingerprintWire    = "1:" // what the header's value starts with
)

// Fingerprint returns the fingerprint, version 1, of a request to an operation:
// what tells two requests under one key apart. Two messages have the same digest
// if they are equal, however they were encoded and in whatever order their maps
// were sent; fields marked (dedup.v1.fingerprint) = FINGERPRINT_RULE_IGNORE take
// no part. The rule, byte by byte, is in proto/dedup/v1/testdata/vectors.
//
// It works for generated and dynamic messages, and only reads m. It fails for a nil
// m, and for one whose unknown fields were set by hand to bytes that are no wire
// format.
func Fingerprint(operation string, m proto.Message) (*dedupv1.Fingerprint, error) {
	if m == nil {
		return nil, errNilMessage
	}
	var w canonicalWriter
	w.message(m.ProtoReflect())
	if w.err != nil {
		return nil, w.err
	}
	h := sha256.New()
	h.Write(keying.LengthPrefixed(fingerprintDomain, operation))
	h.Write(w.bytes())
	return &dedupv1.Fingerprint{
		Version:       fingerprintVersion,
		Digest:        h.Sum(nil),
		UnknownFields: w.unknown,
	}, nil
}

var errNilMessage = errors.New("a fingerprint needs a message, not nil")

// wireFingerprint returns the value of HeaderFingerprint for f.
func wireFingerprint(f *dedupv1.Fingerprint) string {
	return fingerprintWire + hex.EncodeToString(f.GetDigest())
}

// clientDigest returns the version 1 digest that the client sent along, nil if
// it sent none. Digests of other versions are passed over: a newer client sends
// several. A malformed one, or two that differ, is refused with INPUT_INVALID.
func clientDigest(md metadata.MD) ([]byte, error) {
	var digest []byte
	for _, value := range md[HeaderFingerprint] {
		version, text, ok := strings.Cut(value, ":")
		if !ok || version == "" || len(version) > 10 || strings.Trim(version, "0123456789") != "" {
			return nil, fingerprintInvalid("must be <version>:<hexadecimal digest>")
		}
		if version+":" != fingerprintWire {
			continue
		}
		d, err := hex.DecodeString(text)
		if err != nil || len(d) != sha256.Size {
			return nil, fingerprintInvalid("of version 1 must have 64 hexadecimal digits")
		}
		if digest != nil && !bytes.Equal(d, digest) {
			return nil, fingerprintInvalid("is sent twice with different digests")
		}
		digest = d
	}
	return digest, nil
}

func fingerprintInvalid(what string) error {
	return refusal{
		reason:  dedupv1.Reason_REASON_INPUT_INVALID,
		message: "the " + HeaderFingerprint + " header " + what,
		field:   HeaderFingerprint,
	}.err()
}
