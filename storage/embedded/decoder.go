package embedded

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/dedupd/dedupd/storage"
)

// decoder reads from the front of rest, of which the strings it returns are
// parts. After a fault it is bad and returns zeros.
type decoder struct {
	rest string
	bad  bool
}

func (d *decoder) fail() {
	d.bad, d.rest = true, ""
}

// take returns the next n bytes.
func (d *decoder) take(n uint64) string {
	if n > uint64(len(d.rest)) {
		d.fail()
		return ""
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) byte() byte {
	if s := d.take(1); s != "" {
		return s[0]
	}
	return 0
}

func (d *decoder) fill(b []byte) { copy(b, d.take(uint64(len(b)))) }

func (d *decoder) uvarint() uint64 {
	var buf [binary.MaxVarintLen64]byte
	v, n := binary.Uvarint(buf[:copy(buf[:], d.rest)])
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) varint() int64 {
	v := d.uvarint()
	n := int64(v >> 1)
	if v&1 != 0 {
		return ^n
	}
	return n
}

func (d *decoder) string() string { return d.take(d.uvarint()) }

func (d *decoder) bytes() []byte {
	if s := d.string(); s != "" {
		return []byte(s)
	}
	return nil
}

// count reads the number of elements that follow, each of at least size bytes.
func (d *decoder) count(size uint64) int {
	n := d.uvarint()
	if n > uint64(len(d.rest))/size {
		d.fail()
		return 0
	}
	return int(n) //nolint:gosec // at most len(rest)
}

// grants reads what a record remembers of its grants and requests.
func (d *decoder) grants(r *storage.Record) {
	r.Lease = time.Duration(d.varint())
	r.Grants = d.varint()
	r.Fingerprint = d.fingerprint()
	if n := d.count(1); n > 0 {
		r.Superseded = make([]storage.Fingerprint, n)
		for i := range r.Superseded {
			r.Superseded[i] = d.fingerprint()
		}
	}
	if n := d.count(uint64(len(storage.AttemptID{}))); n > 0 {
		r.Ended = make([]storage.AttemptID, n)
		for i := range r.Ended {
			d.fill(r.Ended[i][:])
		}
	}
}

// later reads the parts that version 2 added.
func (d *decoder) later(r *storage.Record, flags uint64, unzip *zstd.Decoder) {
	if flags&flagPins != 0 {
		r.Pins = d.int32()
	}
	if flags&flagReopen != 0 {
		r.Reopened = d.outcome(unzip)
	}
	if r.Redacted = flags&flagRedact != 0; r.Redacted {
		d.fill(r.RedactedID[:])
	}
	if flags&flagTrace != 0 {
		r.Trace = d.bytes()
	}
}

func (d *decoder) int32() int32 {
	v := d.varint()
	short := int32(v) //nolint:gosec // checked next
	if v != int64(short) {
		d.fail()
	}
	return short
}

func (d *decoder) fingerprint() storage.Fingerprint {
	const least = 4 // bytes of an empty digest
	n := d.count(least)
	if n == 0 {
		return nil
	}
	f := make(storage.Fingerprint, n)
	for i := range f {
		version, unknown := d.uvarint(), d.byte()
		if version > math.MaxUint32 || unknown > 1 {
			d.fail()
			return nil
		}
		f[i] = storage.Digest{Version: uint32(version), UnknownFields: unknown == 1, Server: d.string(), Client: d.string()}
	}
	return f
}

func (d *decoder) outcome(unzip *zstd.Decoder) *storage.Outcome {
	flags := d.byte()
	code := d.int32()
	if flags&^knownOutcomeFlags != 0 || d.bad {
		d.fail()
		return nil
	}
	o := &storage.Outcome{
		Code: code, HasResponse: flags&outcomeResponse != 0, Omitted: flags&outcomeOmitted != 0, Erased: flags&outcomeErased != 0,
	}
	o.Status = d.bytes()
	o.TypeURL = d.string()
	o.Size = d.varint()
	if o.Omitted {
		d.fill(o.Sum[:])
	}
	if flags&outcomeCompressed != 0 {
		o.Response = d.unzip(unzip)
	} else {
		o.Response = d.bytes()
	}
	o.Headers = d.metadata()
	o.Trailers = d.metadata()
	return o
}

// blob reads what appendBlob wrote.
func (d *decoder) blob(unzip *zstd.Decoder) []byte {
	switch d.byte() {
	case 0:
		return d.bytes()
	case 1:
		return d.unzip(unzip)
	}
	d.fail()
	return nil
}

// unzip reads a compressed response: its length and its compressed bytes.
func (d *decoder) unzip(unzip *zstd.Decoder) []byte {
	size := d.uvarint()
	zipped := d.bytes()
	if size > maxResponse {
		d.fail()
		return nil
	}
	b, err := unzip.DecodeAll(zipped, make([]byte, 0, size))
	if err != nil || uint64(len(b)) != size {
		d.fail()
		return nil
	}
	return b
}

func (d *decoder) metadata() []storage.MetadataEntry {
	const least = 2 // bytes of an empty entry
	n := d.count(least)
	if n == 0 {
		return nil
	}
	entries := make([]storage.MetadataEntry, n)
	for i := range entries {
		entries[i] = storage.MetadataEntry{Key: d.string(), Value: d.bytes()}
	}
	return entries
}
