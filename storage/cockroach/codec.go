package cockroach

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/dedupd/dedupd/storage"
)

// What SQL does not judge is kept in bytes columns. The first byte of a value is
// its format; empty is none. A newer format is refused by name, never guessed.
const (
	formatV1 = 1

	compressFrom = 1 << 10 // smaller responses are not worth it
	maxDecoded   = storage.CeilMaxOutcome
)

// Flags of an outcome.
const (
	flagResponse = 1 << iota
	flagOmitted
	flagCompressed
	flagErased
)

// Flags of a digest.
const flagUnknownFields = 1

// errCorrupt: a column does not hold what this release writes.
var errCorrupt = errors.New("a stored value cannot be read: it was written by a newer release or outside dedupd")

// codec encodes outcomes. It is safe for concurrent use.
type codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newCodec() (*codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxDecoded))
	if err != nil {
		return nil, err
	}
	return &codec{enc: enc, dec: dec}, nil
}

// outcome encodes o; nil is nil.
func (c *codec) outcome(o *storage.Outcome) []byte {
	if o == nil {
		return nil
	}
	var flags byte
	response := o.Response
	if o.HasResponse {
		flags |= flagResponse
	}
	if o.Omitted {
		flags |= flagOmitted
	}
	if o.Erased {
		flags |= flagErased
	}
	if packed, ok := c.pack(response); ok {
		response = packed
		flags |= flagCompressed
	}
	b := make([]byte, 0, 64+len(o.Status)+len(o.TypeURL)+len(response))
	b = append(b, formatV1, flags)
	b = binary.AppendVarint(b, int64(o.Code))
	b = appendBytes(b, o.Status)
	b = appendBytes(b, o.TypeURL)
	b = appendBytes(b, response)
	b = binary.AppendVarint(b, o.Size)
	if o.Omitted {
		b = append(b, o.Sum[:]...)
	}
	return appendMetadata(appendMetadata(b, o.Headers), o.Trailers)
}

func appendMetadata(b []byte, entries []storage.MetadataEntry) []byte {
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for _, e := range entries {
		b = appendBytes(b, e.Key)
		b = appendBytes(b, e.Value)
	}
	return b
}

// pack compresses b where that is worth it.
func (c *codec) pack(b []byte) ([]byte, bool) {
	if len(b) < compressFrom {
		return nil, false
	}
	packed := c.enc.EncodeAll(b, make([]byte, 0, len(b)))
	return packed, len(packed) <= len(b)-len(b)/8
}

// unpack is what pack has compressed.
func (c *codec) unpack(b []byte) ([]byte, error) {
	plain, err := c.dec.DecodeAll(b, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return plain, nil
}

// readOutcome decodes what outcome encoded, into memory of its own.
func (c *codec) readOutcome(b []byte) (*storage.Outcome, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := newReader(b)
	flags := r.byte()
	o := &storage.Outcome{HasResponse: flags&flagResponse != 0, Omitted: flags&flagOmitted != 0, Erased: flags&flagErased != 0}
	o.Code = int32(r.varint()) //nolint:gosec // written from an int32
	o.Status = r.clone()
	o.TypeURL = string(r.bytes())
	if response := r.bytes(); flags&flagCompressed != 0 && r.err == nil {
		plain, err := c.unpack(response)
		if err != nil {
			return nil, err
		}
		o.Response = plain
	} else if len(response) > 0 {
		o.Response = append([]byte(nil), response...)
	}
	o.Size = r.varint()
	if o.Omitted {
		copy(o.Sum[:], r.take(sha256.Size))
	}
	o.Headers, o.Trailers = r.metadata(), r.metadata()
	return o, r.end()
}

// appendFingerprint encodes f, without a format byte of its own.
func appendFingerprint(b []byte, f storage.Fingerprint) []byte {
	b = binary.AppendUvarint(b, uint64(len(f)))
	for _, d := range f {
		b = binary.AppendUvarint(b, uint64(d.Version))
		var flags byte
		if d.UnknownFields {
			flags |= flagUnknownFields
		}
		b = append(b, flags)
		b = appendBytes(b, d.Server)
		b = appendBytes(b, d.Client)
	}
	return b
}

// encodeFingerprint encodes the fingerprint of a record.
func encodeFingerprint(f storage.Fingerprint) []byte {
	return appendFingerprint([]byte{formatV1}, f)
}

// encodeFingerprints encodes superseded fingerprints; none is empty.
func encodeFingerprints(fs []storage.Fingerprint) []byte {
	if len(fs) == 0 {
		return []byte{}
	}
	b := binary.AppendUvarint([]byte{formatV1}, uint64(len(fs)))
	for _, f := range fs {
		b = appendFingerprint(b, f)
	}
	return b
}

func readFingerprint(b []byte) (storage.Fingerprint, error) {
	r := newReader(b)
	f := r.fingerprint()
	return f, r.end()
}

func readFingerprints(b []byte) ([]storage.Fingerprint, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := newReader(b)
	var fs []storage.Fingerprint
	for range r.count() {
		fs = append(fs, r.fingerprint())
	}
	return fs, r.end()
}

// encodeAttempts joins ended attempt ids; none is empty.
func encodeAttempts(ids []storage.AttemptID) []byte {
	b := make([]byte, 0, len(ids)*len(storage.AttemptID{}))
	for _, id := range ids {
		b = append(b, id[:]...)
	}
	return b
}

func readAttempts(b []byte) ([]storage.AttemptID, error) {
	const size = len(storage.AttemptID{})
	if len(b)%size != 0 {
		return nil, errCorrupt
	}
	var ids []storage.AttemptID
	for ; len(b) > 0; b = b[size:] {
		ids = append(ids, storage.AttemptID(b[:size]))
	}
	return ids, nil
}

func appendBytes[T string | []byte](b []byte, v T) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

// reader reads a value; after the first fault everything is empty.
type reader struct {
	b   []byte
	err error
}

// newReader begins behind the format byte.
func newReader(b []byte) *reader {
	r := &reader{b: b}
	if r.byte() != formatV1 {
		r.fail()
	}
	return r
}

func (r *reader) fail() { r.err, r.b = errCorrupt, nil }

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if v := r.take(1); len(v) == 1 {
		return v[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads how many elements follow; each takes at least one byte.
func (r *reader) count() uint64 {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return n
}

func (r *reader) bytes() []byte { return r.take(r.uvarint()) }

func (r *reader) clone() []byte {
	v := r.bytes()
	if len(v) == 0 {
		return nil
	}
	return append([]byte(nil), v...)
}

func (r *reader) metadata() []storage.MetadataEntry {
	var entries []storage.MetadataEntry
	for range r.count() {
		entries = append(entries, storage.MetadataEntry{Key: string(r.bytes()), Value: r.clone()})
	}
	return entries
}

func (r *reader) fingerprint() storage.Fingerprint {
	var f storage.Fingerprint
	for range r.count() {
		d := storage.Digest{Version: uint32(r.uvarint()), UnknownFields: r.byte()&flagUnknownFields != 0} //nolint:gosec // written from a uint32
		d.Server, d.Client = string(r.bytes()), string(r.bytes())
		f = append(f, d)
	}
	return f
}

// end reports a fault; a value has nothing behind its end.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail()
	}
	return r.err
}
