package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/dedupd/dedupd/storage"
)

// codecVersion is the first byte of a stored record, the lowest that can hold
// it: most records stay readable for the dedupd before. A new version gets a new
// number, and the old ones stay readable. Version 2 adds laterParts.
const codecVersion = 2

const (
	compressFrom = 1 << 10  // responses of at least this size are compressed
	maxResponse  = 16 << 20 // no stored response is larger than this
)

// Flags of a record: which parts follow, and its two booleans. The order of the
// times is that of timesOf.
const (
	flagOpen = 1 << iota
	flagBound
	flagOtherRun // the last running grant is not the current one
	flagOutcome
	flagResolved
	flagTimes // the first of numTimes bits
)

const (
	numTimes   = 9
	flagsOfOne = flagTimes<<numTimes - 1 // the flags of version 1
	flagPins   = flagTimes << numTimes
	flagReopen = flagPins << 1
	flagRedact = flagReopen << 1
	flagTrace  = flagRedact << 1
	laterParts = flagPins | flagReopen | flagRedact | flagTrace
	knownFlags = flagsOfOne | laterParts
)

// Flags of an outcome.
const (
	outcomeResponse = 1 << iota
	outcomeOmitted
	outcomeCompressed
	outcomeErased
	knownOutcomeFlags = 1<<iota - 1
)

var errCorrupt = errors.New("the stored record is damaged")

// codec turns records into bytes and back. It is safe for concurrent use.
type codec struct {
	zip   *zstd.Encoder
	unzip *zstd.Decoder
}

func newCodec() (*codec, error) {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxResponse), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return &codec{zip: zip, unzip: unzip}, nil
}

func (c *codec) close() { c.unzip.Close() }

// timesOf are the record's instants; those that are set are stored as their
// distance from its version, which is the time of its write.
func timesOf(r *storage.Record) [numTimes]*storage.Instant {
	return [numTimes]*storage.Instant{
		&r.LeaseEnd, &r.GrantedAt, &r.RunEnd, &r.PrevGrant, &r.CreatedAt,
		&r.HoldEnd, &r.CompletedAt, &r.ExpiresAt, &r.DropAt,
	}
}

// encode appends the record to b.
func (c *codec) encode(b []byte, r *storage.Record) []byte {
	times := timesOf(r)
	flags := flagsOf(r, times)
	version := byte(1)
	if flags&laterParts != 0 {
		version = 2
	}
	b = append(b, version)
	b = binary.AppendUvarint(b, flags)
	b = append(b, byte(r.State), byte(r.Mode), byte(r.ReleasedAs))
	for _, part := range [...]string{r.Identity.Namespace, r.Identity.Operation, r.Identity.Caller, r.Identity.Key} {
		b = appendString(b, part)
	}
	b = binary.AppendVarint(b, r.Version)
	b = binary.AppendVarint(b, int64(r.Fence)-r.Version)
	b = append(b, r.Attempt[:]...)
	if otherRun(r) {
		b = binary.AppendVarint(b, int64(r.RunFence)-r.Version)
		b = append(b, r.RunAttempt[:]...)
	}
	for _, t := range times {
		if *t != 0 {
			b = binary.AppendVarint(b, int64(*t)-r.Version)
		}
	}
	b = binary.AppendVarint(b, int64(r.Lease))
	b = binary.AppendVarint(b, r.Grants)
	b = appendFingerprint(b, r.Fingerprint)
	b = binary.AppendUvarint(b, uint64(len(r.Superseded)))
	for _, f := range r.Superseded {
		b = appendFingerprint(b, f)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Ended)))
	for i := range r.Ended {
		b = append(b, r.Ended[i][:]...)
	}
	if r.ResolvedFrom != 0 {
		b = binary.AppendVarint(b, r.ResolvedFrom)
	}
	b = appendString(b, r.Note)
	if r.Outcome != nil {
		b = c.appendOutcome(b, r.Outcome)
	}
	if flags&flagPins != 0 {
		b = binary.AppendVarint(b, int64(r.Pins))
	}
	if r.Reopened != nil {
		b = c.appendOutcome(b, r.Reopened)
	}
	if r.Redacted {
		b = append(b, r.RedactedID[:]...)
	}
	if flags&flagTrace != 0 {
		b = appendString(b, r.Trace)
	}
	return b
}

func otherRun(r *storage.Record) bool { return r.RunFence != r.Fence || r.RunAttempt != r.Attempt }

func flagsOf(r *storage.Record, times [numTimes]*storage.Instant) (flags uint64) {
	add := func(set bool, flag uint64) {
		if set {
			flags |= flag
		}
	}
	add(r.Open, flagOpen)
	add(r.Bound, flagBound)
	add(otherRun(r), flagOtherRun)
	add(r.Outcome != nil, flagOutcome)
	add(r.ResolvedFrom != 0, flagResolved)
	add(r.Pins != 0, flagPins)
	add(r.Reopened != nil, flagReopen)
	add(r.Redacted, flagRedact)
	add(len(r.Trace) > 0, flagTrace)
	for i, t := range times {
		add(*t != 0, flagTimes<<i)
	}
	return flags
}

func appendString[T ~string | ~[]byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendFingerprint(b []byte, f storage.Fingerprint) []byte {
	b = binary.AppendUvarint(b, uint64(len(f)))
	for i := range f {
		unknown := byte(0)
		if f[i].UnknownFields {
			unknown = 1
		}
		b = binary.AppendUvarint(b, uint64(f[i].Version))
		b = append(b, unknown)
		b = appendString(b, f[i].Server)
		b = appendString(b, f[i].Client)
	}
	return b
}

func (c *codec) appendOutcome(b []byte, o *storage.Outcome) []byte {
	flags, response := byte(0), o.Response
	if o.HasResponse {
		flags |= outcomeResponse
	}
	if o.Omitted {
		flags |= outcomeOmitted
	}
	if o.Erased {
		flags |= outcomeErased
	}
	if zipped := c.compress(response); zipped != nil {
		flags, response = flags|outcomeCompressed, zipped
	}
	b = append(b, flags)
	b = binary.AppendVarint(b, int64(o.Code))
	b = appendString(b, o.Status)
	b = appendString(b, o.TypeURL)
	b = binary.AppendVarint(b, o.Size)
	if o.Omitted {
		b = append(b, o.Sum[:]...)
	}
	if flags&outcomeCompressed != 0 {
		b = binary.AppendUvarint(b, uint64(len(o.Response)))
	}
	b = appendString(b, response)
	b = appendMetadata(b, o.Headers)
	return appendMetadata(b, o.Trailers)
}

func appendMetadata(b []byte, entries []storage.MetadataEntry) []byte {
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for i := range entries {
		b = appendString(b, entries[i].Key)
		b = appendString(b, entries[i].Value)
	}
	return b
}

// appendBlob appends bytes with a mark of whether they are compressed.
func (c *codec) appendBlob(b, blob []byte) []byte {
	if zipped := c.compress(blob); zipped != nil {
		b = append(b, 1)
		b = binary.AppendUvarint(b, uint64(len(blob)))
		return appendString(b, zipped)
	}
	b = append(b, 0)
	return appendString(b, blob)
}

// compress returns nil where it does not save an eighth.
func (c *codec) compress(b []byte) []byte {
	if len(b) < compressFrom {
		return nil
	}
	if zipped := c.zip.EncodeAll(b, nil); len(zipped) <= len(b)-len(b)/8 {
		return zipped
	}
	return nil
}

// decode reads a record and keeps nothing of b.
func (c *codec) decode(b []byte) (*storage.Record, error) {
	if len(b) == 0 {
		return nil, errCorrupt
	}
	if b[0] == 0 || b[0] > codecVersion {
		return nil, fmt.Errorf("the record has version %d, this dedupd reads up to %d: use the newer dedupd that wrote it", b[0], codecVersion)
	}
	d := decoder{rest: string(b[1:])}
	r := &storage.Record{}
	flags := d.uvarint()
	if flags&^uint64(knownFlags) != 0 || b[0] == 1 && flags&laterParts != 0 {
		return nil, errCorrupt
	}
	r.State, r.Mode, r.ReleasedAs = storage.State(d.byte()), storage.Mode(d.byte()), storage.Effect(d.byte())
	r.Open, r.Bound = flags&flagOpen != 0, flags&flagBound != 0
	r.Identity = storage.Identity{Namespace: d.string(), Operation: d.string(), Caller: d.string(), Key: d.string()}
	r.Version = d.varint()
	r.Fence = storage.Fence(d.varint() + r.Version)
	d.fill(r.Attempt[:])
	r.RunFence, r.RunAttempt = r.Fence, r.Attempt
	if flags&flagOtherRun != 0 {
		r.RunFence = storage.Fence(d.varint() + r.Version)
		d.fill(r.RunAttempt[:])
	}
	for i, t := range timesOf(r) {
		if flags&(flagTimes<<i) != 0 {
			*t = storage.Instant(d.varint() + r.Version)
		}
	}
	d.grants(r)
	if flags&flagResolved != 0 {
		r.ResolvedFrom = d.varint()
	}
	r.Note = d.string()
	if flags&flagOutcome != 0 {
		r.Outcome = d.outcome(c.unzip)
	}
	d.later(r, flags, c.unzip)
	if d.bad || d.rest != "" {
		return nil, errCorrupt
	}
	return r, nil
}
