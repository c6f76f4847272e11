package server

import (
	"cmp"
	"fmt"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// entryIDOf takes what the proto's rule has found to be 16 bytes.
func entryIDOf(b []byte) (id storage.EntryID) {
	copy(id[:], b)
	return id
}

// tokenOf takes what the proto's rule has found to be 16 bytes.
func tokenOf(b []byte) (t storage.ClaimToken) {
	copy(t[:], b)
	return t
}

// parkOf is a Park without its signature, and the message that the signature is
// made of. A request that is too large to keep is left out: the entry is then told
// to have none, which is better than no entry.
func (s *deadLetterService) parkOf(req *dedupv1.ParkRequest) (q storage.Park, message string, err error) {
	e := storage.DeadLetter{
		Kind:        kindFrom(req.GetKind()),
		Target:      req.GetTarget(),
		Method:      req.GetMethod(),
		Fingerprint: fingerprintOf(req.GetFingerprints()),
		ParkID:      attemptOf(req.GetParkId()),
		Parent:      entryIDOf(req.GetParentId()),
		Note:        req.GetNote(),
	}
	if e.Record, err = recordOf(req); err != nil {
		return q, "", err
	}
	if id := req.GetIdentity(); id != nil {
		e.Identity, _ = identityOf(id) // checked by recordOf
	}
	if r := req.GetRequest(); r != nil {
		e.RequestSize = int64(len(r.GetValue()))
		if e.RequestSize <= storage.MaxEntryRequest {
			e.HasRequest, e.TypeURL, e.Request = true, r.GetTypeUrl(), r.GetValue()
		}
	}
	if e.Metadata, err = metadataOf(req.GetMetadata(), "metadata"); err != nil {
		return q, "", err
	}
	e.Status = req.GetStatus()
	if e.Code, message, err = failureOf(e.Status, "status"); err != nil {
		return q, "", err
	}
	for _, a := range req.GetAttempts() {
		e.Attempts = append(e.Attempts, storage.EntryAttempt{At: storage.InstantOf(a.GetAt().AsTime()), Code: a.GetCode()})
	}
	return storage.Park{Entry: e, Terms: s.terms}, message, nil
}

// failureOf reads a serialised google.rpc.Status; none is code 0.
func failureOf(b []byte, field string) (code int32, message string, err error) {
	var st spb.Status
	if proto.Unmarshal(b, &st) != nil {
		return 0, "", invalid(field, "status is not a serialised google.rpc.Status")
	}
	return st.GetCode(), st.GetMessage(), nil
}

// entriesOf is a filter as the store takes it.
func entriesOf(f *dedupv1.DeadLetterFilter, limit int32) (storage.ListEntries, error) {
	q := storage.ListEntries{
		Namespace: f.GetNamespace(),
		Operation: f.GetOperation(),
		Codes:     f.GetCodes(),
		Signature: f.GetSignature(),
		OlderThan: f.GetOlderThan().AsDuration(),
		YoungerTo: f.GetYoungerThan().AsDuration(),
		Limit:     int(cmp.Or(limit, defaultPage)),
	}
	switch n := len(f.GetRecordId()); n {
	case 0:
	case len(q.Record):
		q.Record = storage.RecordID(f.GetRecordId())
	default:
		return q, invalid("filter.record_id", fmt.Sprintf("record_id is %d bytes, %d are needed, or none", n, len(q.Record)))
	}
	for _, k := range f.GetKinds() {
		q.Kinds = append(q.Kinds, kindFrom(k))
	}
	for _, s := range f.GetStates() {
		q.States = append(q.States, entryStateFrom(s))
	}
	if len(q.States) == 0 {
		q.States = openStates()
	}
	return q, nil
}

func openStates() []storage.EntryState {
	return []storage.EntryState{storage.EntryParked, storage.EntryReplaying}
}

func allEntryStates() []storage.EntryState {
	return append(openStates(), storage.EntryResolved, storage.EntryDiscarded)
}

// A page token is the order that it goes on in and the entry it goes on after.
const (
	oldestFirst byte = 1 + iota
	newestFirst
)

func orderOf(newest bool) byte {
	if newest {
		return newestFirst
	}
	return oldestFirst
}

// entryPageToken is nil after the last page.
func entryPageToken(newest bool, next storage.EntryID) []byte {
	if next == (storage.EntryID{}) {
		return nil
	}
	return append([]byte{orderOf(newest)}, next[:]...)
}

func entryPageOf(token []byte, newest bool) (storage.EntryID, error) {
	switch {
	case len(token) == 0:
		return storage.EntryID{}, nil
	case len(token) != 1+len(storage.EntryID{}) || token[0] != oldestFirst && token[0] != newestFirst:
		return storage.EntryID{}, invalid("page_token", "page_token is not one that a page has given")
	case token[0] != orderOf(newest):
		return storage.EntryID{}, invalid("page_token", "page_token is from a list in the other order; keep newest_first as it was")
	}
	return storage.EntryID(token[1:]), nil
}

// entryTo tells an entry, which may be nil, as judged at now.
func entryTo(e *storage.DeadLetter, now storage.Instant, withRequest bool) *dedupv1.DeadLetter {
	if e == nil {
		return nil
	}
	state := e.StateAt(now)
	out := &dedupv1.DeadLetter{
		EntryId:      e.ID[:],
		Kind:         kindTo(e.Kind),
		State:        entryStateTo(state),
		RecordId:     e.Record[:],
		Identity:     identityTo(e.Identity),
		Target:       e.Target,
		Method:       e.Method,
		RequestSize:  e.RequestSize,
		HasRequest:   e.HasRequest,
		Metadata:     metadataTo(e.Metadata),
		Status:       e.Status,
		Code:         e.Code,
		Signature:    e.Signature,
		Attempts:     attemptsTo(e.Attempts),
		Count:        e.Count,
		ParkedAt:     timeOf(e.ParkedAt),
		LastParkedAt: timeOf(e.LastParkedAt),
		Age:          wireDuration(now.Sub(e.ParkedAt)),
		Replays:      e.Replays,
		ReplayStatus: e.ReplayStatus,
		Result:       resultTo(e.Result),
		Note:         e.Note,
		Requested:    e.Requested,
		ClosedAt:     timeOf(e.ClosedAt),
		Conflict:     conflictTo(e.Conflict),
	}
	if withRequest && e.HasRequest {
		out.Request = &dedupv1.Response{TypeUrl: e.TypeURL, Value: e.Request}
	}
	if state == storage.EntryReplaying {
		out.ClaimLeft = wireDuration(e.ClaimEnd.Sub(now))
	}
	if e.Parent != (storage.EntryID{}) {
		out.ParentId = e.Parent[:]
	}
	return out
}

func attemptsTo(attempts []storage.EntryAttempt) []*dedupv1.CallAttempt {
	out := make([]*dedupv1.CallAttempt, len(attempts))
	for i, a := range attempts {
		out[i] = &dedupv1.CallAttempt{At: timeOf(a.At), Code: a.Code}
	}
	return out
}

func conflictTo(c *storage.Conflict) *dedupv1.ConflictInfo {
	if c == nil {
		return nil
	}
	out := &dedupv1.ConflictInfo{
		RefusedFence: int64(c.RefusedFence),
		RecordFence:  int64(c.RecordFence),
		Success:      c.Success,
		RefusedHash:  c.RefusedHash[:],
		At:           timeOf(c.At),
	}
	if c.RecordHash != ([32]byte{}) {
		out.RecordHash = c.RecordHash[:]
	}
	return out
}

func groupTo(g storage.EntryGroup, now storage.Instant) *dedupv1.DeadLetterGroup {
	return &dedupv1.DeadLetterGroup{
		Namespace: g.Namespace, Operation: g.Operation, Kind: kindTo(g.Kind), Code: g.Code, Signature: g.Signature,
		Entries: g.Entries, Count: g.Count, SampleId: g.Sample[:],
		OldestAge: wireDuration(now.Sub(g.Oldest)), NewestAge: wireDuration(now.Sub(g.Newest)),
	}
}

// The enums of the proto are those of storage, number by number; a test holds it.

func kindFrom(k dedupv1.DeadLetterKind) storage.EntryKind {
	return storage.EntryKind(k) //nolint:gosec // the proto's rules let known numbers pass only
}

func kindTo(k storage.EntryKind) dedupv1.DeadLetterKind { return dedupv1.DeadLetterKind(k) }

func entryStateFrom(s dedupv1.DeadLetterState) storage.EntryState {
	return storage.EntryState(s) //nolint:gosec // as above
}

func entryStateTo(s storage.EntryState) dedupv1.DeadLetterState { return dedupv1.DeadLetterState(s) }

func resultFrom(r dedupv1.ReplayResult) storage.EntryResult {
	return storage.EntryResult(r) //nolint:gosec // as above
}

func resultTo(r storage.EntryResult) dedupv1.ReplayResult { return dedupv1.ReplayResult(r) }
