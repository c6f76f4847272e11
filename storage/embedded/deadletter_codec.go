package embedded

import (
	"encoding/binary"
	"fmt"

	"github.com/dedupd/dedupd/storage"
)

// The first byte of every stored dead letter, and of its request, is the lowest
// version that holds it, so that the dedupd before reads what it can.
const (
	entryVersion       = 1
	entryVersionReplay = 2 // may have entryReplayFailed
)

// Flags of a dead letter: its booleans, and which parts follow.
const (
	entryPinned = 1 << iota
	entryRequest
	entryByOperator
	entryRequested
	entryClaimed
	entryParented
	entryConflict
	entryClosed
	conflictSuccess
	entryReplayFailed
	knownEntryFlags = 1<<iota - 1
)

// encodeEntry appends the dead letter, without its id and request, to b.
func (c *codec) encodeEntry(b []byte, e *storage.DeadLetter) []byte {
	flags := entryFlags(e)
	version := byte(entryVersion)
	if flags&entryReplayFailed != 0 {
		version = entryVersionReplay
	}
	b = append(b, version)
	b = binary.AppendUvarint(b, flags)
	b = append(b, byte(e.Kind), byte(e.State), byte(e.Result))
	b = append(b, e.Record[:]...)
	for _, part := range [...]string{
		e.Identity.Namespace, e.Identity.Operation, e.Identity.Caller, e.Identity.Key, e.Target, e.Method, e.TypeURL,
	} {
		b = appendString(b, part)
	}
	b = binary.AppendVarint(b, e.RequestSize)
	b = appendMetadata(b, e.Metadata)
	b = appendFingerprint(b, e.Fingerprint)
	b = binary.AppendVarint(b, int64(e.Code))
	b = appendString(b, e.Status)
	b = appendString(b, e.Signature)
	b = binary.AppendUvarint(b, uint64(len(e.Attempts)))
	for _, a := range e.Attempts {
		b = binary.AppendVarint(b, int64(a.At))
		b = binary.AppendVarint(b, int64(a.Code))
	}
	b = append(b, e.ParkID[:]...)
	for _, n := range [...]int64{e.Count, int64(e.ParkedAt), int64(e.LastParkedAt), int64(e.NotBefore), e.Replays} {
		b = binary.AppendVarint(b, n)
	}
	b = appendString(b, e.Note)
	return appendEntryParts(b, e, flags)
}

func entryFlags(e *storage.DeadLetter) (flags uint64) {
	add := func(set bool, flag uint64) {
		if set {
			flags |= flag
		}
	}
	add(e.Pinned, entryPinned)
	add(e.HasRequest, entryRequest)
	add(e.ByOperator, entryByOperator)
	add(e.Requested, entryRequested)
	add(e.Claim != (storage.ClaimToken{}) || e.ClaimEnd != 0 || e.ClaimFence != 0, entryClaimed)
	add(e.Parent != (storage.EntryID{}), entryParented)
	add(e.Conflict != nil, entryConflict)
	add(e.Conflict != nil && e.Conflict.Success, conflictSuccess)
	add(e.ClosedAt != 0 || e.DropAt != 0, entryClosed)
	add(len(e.ReplayStatus) > 0, entryReplayFailed)
	return flags
}

func appendEntryParts(b []byte, e *storage.DeadLetter, flags uint64) []byte {
	if flags&entryClaimed != 0 {
		b = append(b, e.Claim[:]...)
		b = binary.AppendVarint(b, int64(e.ClaimEnd))
		b = binary.AppendVarint(b, int64(e.ClaimFence))
	}
	if flags&entryParented != 0 {
		b = append(b, e.Parent[:]...)
	}
	if flags&entryClosed != 0 {
		b = binary.AppendVarint(b, int64(e.ClosedAt))
		b = binary.AppendVarint(b, int64(e.DropAt))
	}
	if c := e.Conflict; c != nil {
		b = binary.AppendVarint(b, int64(c.RefusedFence))
		b = binary.AppendVarint(b, int64(c.RecordFence))
		b = append(b, c.RefusedHash[:]...)
		b = append(b, c.RecordHash[:]...)
		b = binary.AppendVarint(b, int64(c.At))
	}
	if flags&entryReplayFailed != 0 {
		b = appendString(b, e.ReplayStatus)
	}
	return b
}

// decodeEntry reads a dead letter and keeps nothing of b.
func (c *codec) decodeEntry(id storage.EntryID, b []byte) (*storage.DeadLetter, error) {
	if err := entryVersionOf(b); err != nil {
		return nil, err
	}
	d := decoder{rest: string(b[1:])}
	flags := d.uvarint()
	if flags&^uint64(knownEntryFlags) != 0 || flags&entryConflict == 0 && flags&conflictSuccess != 0 ||
		b[0] < entryVersionReplay && flags&entryReplayFailed != 0 {
		return nil, errCorrupt
	}
	e := &storage.DeadLetter{
		ID: id, Pinned: flags&entryPinned != 0, HasRequest: flags&entryRequest != 0,
		ByOperator: flags&entryByOperator != 0, Requested: flags&entryRequested != 0,
	}
	e.Kind, e.State, e.Result = storage.EntryKind(d.byte()), storage.EntryState(d.byte()), storage.EntryResult(d.byte())
	d.fill(e.Record[:])
	e.Identity = storage.Identity{Namespace: d.string(), Operation: d.string(), Caller: d.string(), Key: d.string()}
	e.Target, e.Method, e.TypeURL = d.string(), d.string(), d.string()
	e.RequestSize = d.varint()
	e.Metadata = d.metadata()
	e.Fingerprint = d.fingerprint()
	e.Code, e.Status, e.Signature = d.int32(), d.bytes(), d.string()
	e.Attempts = d.attempts()
	d.fill(e.ParkID[:])
	e.Count, e.ParkedAt, e.LastParkedAt = d.varint(), storage.Instant(d.varint()), storage.Instant(d.varint())
	e.NotBefore, e.Replays = storage.Instant(d.varint()), d.varint()
	e.Note = d.string()
	d.entryParts(e, flags)
	if d.bad || d.rest != "" {
		return nil, errCorrupt
	}
	return e, nil
}

func entryVersionOf(b []byte) error {
	switch {
	case len(b) == 0:
		return errCorrupt
	case b[0] == 0:
		return errCorrupt
	case b[0] > entryVersionReplay:
		return fmt.Errorf("the dead letter has version %d, this dedupd reads up to %d: use the newer dedupd that wrote it", b[0], entryVersionReplay)
	}
	return nil
}

func (d *decoder) attempts() []storage.EntryAttempt {
	const least = 2 // bytes of an attempt
	n := d.count(least)
	if n == 0 {
		return nil
	}
	all := make([]storage.EntryAttempt, n)
	for i := range all {
		all[i] = storage.EntryAttempt{At: storage.Instant(d.varint()), Code: d.int32()}
	}
	return all
}

func (d *decoder) entryParts(e *storage.DeadLetter, flags uint64) {
	if flags&entryClaimed != 0 {
		d.fill(e.Claim[:])
		e.ClaimEnd, e.ClaimFence = storage.Instant(d.varint()), storage.Fence(d.varint())
	}
	if flags&entryParented != 0 {
		d.fill(e.Parent[:])
	}
	if flags&entryClosed != 0 {
		e.ClosedAt, e.DropAt = storage.Instant(d.varint()), storage.Instant(d.varint())
	}
	if flags&entryConflict != 0 {
		c := &storage.Conflict{Success: flags&conflictSuccess != 0}
		c.RefusedFence, c.RecordFence = storage.Fence(d.varint()), storage.Fence(d.varint())
		d.fill(c.RefusedHash[:])
		d.fill(c.RecordHash[:])
		c.At = storage.Instant(d.varint())
		e.Conflict = c
	}
	if flags&entryReplayFailed != 0 {
		e.ReplayStatus = d.bytes()
	}
}

// encodeBody appends a request to b, compressed where that saves an eighth.
func (c *codec) encodeBody(b, request []byte) []byte {
	b = append(b, entryVersion)
	return c.appendBlob(b, request)
}

// decodeBody reads a request and keeps nothing of b.
func (c *codec) decodeBody(b []byte) ([]byte, error) {
	if err := entryVersionOf(b); err != nil {
		return nil, err
	}
	d := decoder{rest: string(b[1:])}
	request := d.blob(c.unzip)
	if d.bad || d.rest != "" {
		return nil, errCorrupt
	}
	return request, nil
}
