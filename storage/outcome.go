package storage

import (
	"crypto/sha256"
	"encoding/binary"
)

// MetadataEntry is one header or trailer value.
type MetadataEntry struct {
	Key   string
	Value []byte
}

// Outcome is what a repeat gets back.
type Outcome struct {
	Code   int32  // the status code inside Status; 0 is OK
	Status []byte // google.rpc.Status, byte for byte; empty is OK

	// The response of a success: HasResponse tells an empty one from none, and
	// Omitted one that was too large to keep, of which Size and Sum remain.
	HasResponse bool
	Omitted     bool
	TypeURL     string
	Response    []byte
	Size        int64
	Sum         [sha256.Size]byte // of the response's bytes, only where Omitted
	// Erased: all but Code and Size is redacted (Omitted is set too), and Sum is
	// the hash of the outcome as it was.
	Erased bool

	Headers  []MetadataEntry
	Trailers []MetadataEntry
}

// Success reports whether the outcome is a success; one that an operator did not
// tell (nil) is.
func (o *Outcome) Success() bool { return o == nil || o.Code == 0 }

// erased is o without what may tell of a person; its hash stays.
func (o *Outcome) erased() *Outcome {
	if o == nil || o.Erased {
		return o
	}
	return &Outcome{Code: o.Code, Omitted: true, Size: max(o.Size, int64(len(o.Response))), Sum: o.Hash(), Erased: true}
}

// Hash identifies the outcome: SHA-256 over "dedup.outcome.v1", the status, how
// many responses there are (0 or 1) with type URL and SHA-256 of the bytes, and
// the number, keys and values of headers and of trailers. Every number is eight
// bytes, big endian, and every string has its length before it. An omitted
// response hashes as the response itself would, an erased outcome as what was
// erased. A nil outcome has the zero hash.
func (o *Outcome) Hash() (sum [sha256.Size]byte) {
	if o == nil {
		return sum
	}
	if o.Erased {
		return o.Sum
	}
	h := sha256.New()
	var buf []byte
	count := func(n int) {
		buf = binary.BigEndian.AppendUint64(buf[:0], uint64(n)) //nolint:gosec // a length
		h.Write(buf)
	}
	field := func(b []byte) {
		count(len(b))
		h.Write(b)
	}
	field([]byte("dedup.outcome.v1"))
	field(o.Status)
	if o.HasResponse || o.Omitted {
		response := o.Sum
		if !o.Omitted {
			response = sha256.Sum256(o.Response)
		}
		count(1)
		field([]byte(o.TypeURL))
		field(response[:])
	} else {
		count(0)
	}
	for _, md := range [...][]MetadataEntry{o.Headers, o.Trailers} {
		count(len(md))
		for _, e := range md {
			field([]byte(e.Key))
			field(e.Value)
		}
	}
	h.Sum(sum[:0])
	return sum
}
