package cockroach

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dedupd/dedupd/storage"
)

// entryColumns are the columns of a dead letter but its request, in the order of
// entryRow.targets and entryArgs.
const entryColumns = `e.id, e.revision, e.record_id, e.namespace, e.operation, e.caller, e.key, e.kind, e.state, e.pinned, ` +
	`e.code, e.signature, e.parks, e.parked_at, e.last_parked_at, e.claim_end, e.not_before, e.requested, e.has_request, ` +
	`e.closed_at, e.drop_at, e.detail, e.replay_status`

// entry is a dead letter as it was read.
type entry struct {
	*storage.DeadLetter
	revision int64
}

// entryRow receives one row; what it holds is the driver's until the next one.
type entryRow struct {
	e        storage.DeadLetter
	revision int64

	id, record, caller, key   pgtype.DriverBytes
	signature, detail, packed pgtype.DriverBytes
	replayStatus              pgtype.DriverBytes
}

// targets are what entryColumns are scanned into.
func (r *entryRow) targets() []any {
	e := &r.e
	return []any{
		&r.id, &r.revision, &r.record, &e.Identity.Namespace, &e.Identity.Operation, &r.caller, &r.key,
		(*uint8)(&e.Kind), (*uint8)(&e.State), &e.Pinned,
		&e.Code, &r.signature, &e.Count, (*stamp)(&e.ParkedAt), (*stamp)(&e.LastParkedAt),
		(*stamp)(&e.ClaimEnd), (*stamp)(&e.NotBefore), &e.Requested, &e.HasRequest,
		(*stamp)(&e.ClosedAt), (*stamp)(&e.DropAt), &r.detail, &r.replayStatus,
	}
}

// scanEntry reads an entry without its request.
func (c *codec) scanEntry(rows pgx.Rows) (entry, error) {
	var r entryRow
	if err := rows.Scan(r.targets()...); err != nil {
		return entry{}, err
	}
	return r.entry()
}

// scanWholeEntry reads an entry with its request in the last column.
func (c *codec) scanWholeEntry(rows pgx.Rows) (entry, error) {
	var r entryRow
	if err := rows.Scan(append(r.targets(), &r.packed)...); err != nil {
		return entry{}, err
	}
	e, err := r.entry()
	if err == nil && e.HasRequest {
		e.Request, err = c.readRequest(r.packed)
	}
	return e, err
}

func (r *entryRow) entry() (entry, error) {
	e := &r.e
	if len(r.id) != len(e.ID) || len(r.record) != len(e.Record) {
		return entry{}, errCorrupt
	}
	e.ID, e.Record = storage.EntryID(r.id), storage.RecordID(r.record)
	e.Identity.Caller, e.Identity.Key, e.Signature = string(r.caller), string(r.key), string(r.signature)
	if len(r.replayStatus) > 0 {
		e.ReplayStatus = bytes.Clone(r.replayStatus)
	}
	if err := readDetail(r.detail, e); err != nil {
		return entry{}, fmt.Errorf("detail: %w", err)
	}
	return entry{e, r.revision}, nil
}

// entryArgs are the values of entryColumns for e.
func entryArgs(e *storage.DeadLetter, revision int64) []any {
	return []any{
		e.ID[:], revision, e.Record[:], e.Identity.Namespace, e.Identity.Operation, []byte(e.Identity.Caller), []byte(e.Identity.Key),
		int16(e.Kind), int16(e.State), e.Pinned,
		e.Code, []byte(e.Signature), e.Count, at(e.ParkedAt), at(e.LastParkedAt),
		at(e.ClaimEnd), at(e.NotBefore), e.Requested, e.HasRequest,
		at(e.ClosedAt), at(e.DropAt), encodeDetail(e), notNull(e.ReplayStatus),
	}
}

// Flags of an entry's detail, and of its conflict.
const (
	detailByOperator = 1 << iota
	detailConflict
	detailSuccess
)

// encodeDetail encodes what SQL does not judge of an entry, but for its request.
func encodeDetail(e *storage.DeadLetter) []byte {
	var flags byte
	if e.ByOperator {
		flags |= detailByOperator
	}
	if e.Conflict != nil {
		flags |= detailConflict
		if e.Conflict.Success {
			flags |= detailSuccess
		}
	}
	b := make([]byte, 0, 256+len(e.Status))
	b = append(b, formatV1, flags)
	for _, s := range [...]string{e.Target, e.Method, e.TypeURL, e.Note} {
		b = appendBytes(b, s)
	}
	b = binary.AppendVarint(b, e.RequestSize)
	b = appendMetadata(b, e.Metadata)
	b = appendFingerprint(b, e.Fingerprint)
	b = appendBytes(b, e.Status)
	b = binary.AppendUvarint(b, uint64(len(e.Attempts)))
	for _, a := range e.Attempts {
		b = binary.AppendVarint(b, int64(a.At))
		b = binary.AppendVarint(b, int64(a.Code))
	}
	b = append(b, e.ParkID[:]...)
	b = append(b, e.Parent[:]...)
	b = append(b, e.Claim[:]...)
	b = binary.AppendVarint(b, int64(e.ClaimFence))
	b = binary.AppendVarint(b, e.Replays)
	b = append(b, byte(e.Result))
	if c := e.Conflict; c != nil {
		b = binary.AppendVarint(b, int64(c.RefusedFence))
		b = binary.AppendVarint(b, int64(c.RecordFence))
		b = append(b, c.RefusedHash[:]...)
		b = append(b, c.RecordHash[:]...)
		b = binary.AppendVarint(b, int64(c.At))
	}
	return b
}

// readDetail decodes what encodeDetail encoded, into memory of its own.
func readDetail(b []byte, e *storage.DeadLetter) error {
	r := newReader(b)
	flags := r.byte()
	e.ByOperator = flags&detailByOperator != 0
	e.Target, e.Method, e.TypeURL, e.Note = string(r.bytes()), string(r.bytes()), string(r.bytes()), string(r.bytes())
	e.RequestSize = r.varint()
	e.Metadata = r.metadata()
	e.Fingerprint = r.fingerprint()
	e.Status = r.clone()
	for range r.count() {
		e.Attempts = append(e.Attempts, storage.EntryAttempt{At: storage.Instant(r.varint()), Code: int32(r.varint())}) //nolint:gosec // written from an int32
	}
	copy(e.ParkID[:], r.take(uint64(len(e.ParkID))))
	copy(e.Parent[:], r.take(uint64(len(e.Parent))))
	copy(e.Claim[:], r.take(uint64(len(e.Claim))))
	e.ClaimFence = storage.Fence(r.varint())
	e.Replays = r.varint()
	e.Result = storage.EntryResult(r.byte())
	if flags&detailConflict != 0 {
		c := &storage.Conflict{
			RefusedFence: storage.Fence(r.varint()), RecordFence: storage.Fence(r.varint()), Success: flags&detailSuccess != 0,
		}
		copy(c.RefusedHash[:], r.take(uint64(len(c.RefusedHash))))
		copy(c.RecordHash[:], r.take(uint64(len(c.RecordHash))))
		c.At = storage.Instant(r.varint())
		e.Conflict = c
	}
	return r.end()
}

// request encodes the bytes of a request.
func (c *codec) request(b []byte) []byte {
	if packed, ok := c.pack(b); ok {
		return append([]byte{formatV1, flagCompressed}, packed...)
	}
	return append([]byte{formatV1, 0}, b...)
}

// readRequest decodes what request encoded, into memory of its own.
func (c *codec) readRequest(b []byte) ([]byte, error) {
	r := newReader(b)
	flags := r.byte()
	switch {
	case r.err != nil:
		return nil, fmt.Errorf("request: %w", r.err)
	case flags&flagCompressed != 0:
		return c.unpack(r.b)
	case len(r.b) == 0:
		return nil, nil
	}
	return append([]byte(nil), r.b...), nil
}
