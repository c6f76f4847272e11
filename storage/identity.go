package storage

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Limits of the identity's parts, in bytes.
const (
	MaxNamespace = 63
	MaxOperation = 255
	MaxCaller    = 255
	MaxKey       = 255
)

// RecordID is the hash that identifies a record.
type RecordID [sha256.Size]byte

// String returns the id in hex.
func (id RecordID) String() string { return hex.EncodeToString(id[:]) }

// Short returns the first 12 hex digits: what errors, logs and spans may show.
func (id RecordID) Short() string { return hex.EncodeToString(id[:6]) }

// Identity names one record by its four parts; Caller and Key hold any bytes.
type Identity struct {
	Namespace string
	Operation string
	Caller    string
	Key       string
}

// RecordID is SHA-256 over the four parts, each prefixed by its length as four
// bytes, big endian: ("a_b","c") and ("a","b_c") differ.
func (id Identity) RecordID() RecordID {
	size := 16 + len(id.Namespace) + len(id.Operation) + len(id.Caller) + len(id.Key)
	b := make([]byte, 0, size)
	for _, part := range [...]string{id.Namespace, id.Operation, id.Caller, id.Key} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part))) //nolint:gosec // parts are at most 255 bytes
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

// Validate reports the first part that breaks a limit as an *InvalidError. It
// judges raw input: nothing is trimmed or folded.
func (id Identity) Validate() error {
	if msg := namespaceFault(id.Namespace); msg != "" {
		return &InvalidError{Field: "identity.namespace", Message: msg}
	}
	if msg := operationFault(id.Operation); msg != "" {
		return &InvalidError{Field: "identity.operation", Message: msg}
	}
	if n := len(id.Caller); n > MaxCaller {
		return &InvalidError{Field: "identity.caller", Message: fmt.Sprintf("caller is %d bytes, at most %d are allowed", n, MaxCaller)}
	}
	if msg := keyFault(id.Key); msg != "" {
		return &InvalidError{Field: "identity.key", Message: msg, Key: true}
	}
	return nil
}

func namespaceFault(s string) string {
	if len(s) == 0 || len(s) > MaxNamespace {
		return fmt.Sprintf("namespace is %d bytes, 1 to %d are allowed", len(s), MaxNamespace)
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return "namespace may hold a-z 0-9 . _ - and starts with a letter or digit"
		}
	}
	return ""
}

func operationFault(s string) string {
	if len(s) == 0 || len(s) > MaxOperation {
		return fmt.Sprintf("operation is %d bytes, 1 to %d are allowed", len(s), MaxOperation)
	}
	if !utf8.ValidString(s) {
		return "operation is not valid UTF-8"
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return "operation holds a character that cannot be printed"
		}
	}
	return ""
}

func keyFault(s string) string {
	if len(s) == 0 || len(s) > MaxKey {
		return fmt.Sprintf("key is %d bytes, 1 to %d are allowed", len(s), MaxKey)
	}
	first, _ := utf8.DecodeRuneInString(s)
	last, _ := utf8.DecodeLastRuneInString(s)
	if unicode.IsSpace(first) || unicode.IsSpace(last) {
		return "key starts or ends with white space; it is refused, not trimmed"
	}
	return ""
}

// Digest is one version of a request's fingerprint.
type Digest struct {
	Version       uint32
	Server        string // made where the request was received
	Client        string // made where it was built; may be empty
	UnknownFields bool   // the server met fields that its build does not know
}

// Fingerprint tells two requests under one key apart: one digest per version of
// the hash rule that the sender knows.
type Fingerprint []Digest

// Same reports whether f and o are of the same request. They are compared under
// the highest version that both have; without one they differ. Where a side saw
// fields that its build does not know, the server's bytes may differ from
// attempt to attempt, and equal client digests count too.
func (f Fingerprint) Same(o Fingerprint) bool {
	var a, b *Digest
	for i := range f {
		for j := range o {
			if f[i].Version == o[j].Version && (a == nil || f[i].Version > a.Version) {
				a, b = &f[i], &o[j]
			}
		}
	}
	if a == nil {
		return false
	}
	return a.Server == b.Server ||
		(a.UnknownFields || b.UnknownFields) && a.Client != "" && a.Client == b.Client
}
