package storage

import (
	"slices"
	"time"
)

// Case is what one transaction reads: a record, which may be nil, and its open
// entries, oldest first. An entry that the request names is among them even if
// it is closed. A store may leave the entries out where the record has no Pins,
// unless the request is about an entry or the answer tells a Conflict: then it
// reads them and judges again, if there are any.
type Case struct {
	Record  *Record
	Entries []*DeadLetter
}

// Change is what one transaction writes.
type Change struct {
	Record  *Record       // in place of the one read; nil: nothing to write
	Forget  bool          // delete the record and all of its entries, closed ones too
	Entries []*DeadLetter // new, or in place of those with the same id
	Redact  bool          // the record's closed entries are to be redacted as well (Redacted)
}

// ReplayClaim proves to Reserve that the caller replays an entry. The record is
// then the entry's, whoever the caller is.
type ReplayClaim struct {
	Entry EntryID
	Token ClaimToken
}

// Park asks for an entry; one open entry of the record and kind takes it in.
type Park struct {
	Entry DeadLetter // ID, State, Pinned, Count, times of the store, claim and results are not read
	Terms Terms
	Full  bool // the namespace is at its cap: set by the store, which counts
}

// Claim asks to replay an entry.
type Claim struct {
	Entry    EntryID
	Token    ClaimToken
	Lease    time.Duration // zero means DefaultClaim
	Operator bool          // a person asked: may open a final error
	Force    bool          // also where the record is expired, or absent for longer than the retention
	Terms    Terms
}

// Settle ends a claim.
type Settle struct {
	Entry     EntryID
	Token     ClaimToken
	Result    EntryResult
	Code      int32  // of ResultFailed
	Status    []byte // likewise
	Signature string // likewise
	NotBefore time.Duration
	Terms     Terms
}

// Requeue puts an entry back for the owner's replayer.
type Requeue struct {
	Entry EntryID
	Note  string
}

// Discard closes an entry without a replay.
type Discard struct {
	Entry EntryID
	Note  string
	Terms Terms
}

// Redact erases what a record and its entries tell of a person: caller, key,
// outcome, requests, metadata, notes. Id, fingerprint and state stay, so that
// repeats are still recognized.
type Redact struct{ Note string }

// Forget deletes a record and its entries.
type Forget struct{ Note string }

// ListEntries chooses entries; zero values choose all.
type ListEntries struct {
	Namespace string
	Operation string
	Caller    []byte
	Record    RecordID
	Kinds     []EntryKind
	States    []EntryState // as judged now
	Codes     []int32
	Signature string
	OlderThan time.Duration // by ParkedAt
	YoungerTo time.Duration // by ParkedAt; zero: no bound
	Ready     bool          // only what a claim by filter may take: parked, with a request, NotBefore over
	Requested bool          // only what Requeue asked a replay for
	Newest    bool          // newest first
	After     EntryID       // in that order; zero starts at the first
	Limit     int           // at least 1
}

// OpenOnly reports whether q chooses no closed entry.
func (q ListEntries) OpenOnly() bool {
	closed := func(s EntryState) bool { return s != EntryParked && s != EntryReplaying }
	return q.Ready || len(q.States) > 0 && !slices.ContainsFunc(q.States, closed)
}

// EntryPage is a part of a listing. It may be short, even empty, and still have
// a next one.
type EntryPage struct {
	Entries []*DeadLetter
	Now     Instant
	Next    EntryID // the After of the next page; zero after the last
}

// EntryGroup is what entries of one operation, kind, code and signature have in
// common.
type EntryGroup struct {
	Namespace string
	Operation string
	Kind      EntryKind
	Code      int32
	Signature string
	Entries   int64
	Count     int64 // Parks
	Oldest    Instant
	Newest    Instant
	Sample    EntryID // the newest
}

// Census counts what needs somebody; it reads all unfinished records and open
// entries, so it is asked for now and then, not for every call.
type Census struct {
	Unfinished []UnfinishedCount
	Entries    []EntryCount
	Now        Instant
}

// UnfinishedCount counts the unfinished records of one operation.
type UnfinishedCount struct {
	Namespace string
	Operation string
	State     State // RESERVED or UNKNOWN, as judged now
	Records   int64
	Oldest    Instant // earliest GrantedAt
}

// EntryCount counts the open entries of one namespace and kind.
type EntryCount struct {
	Namespace string
	Kind      EntryKind
	Entries   int64
	Oldest    Instant
}

// Wants reports whether q chooses e, now; its place in the listing is not
// looked at.
func (q ListEntries) Wants(e *DeadLetter, now Instant) bool {
	state := e.StateAt(now)
	switch {
	case q.Namespace != "" && e.Identity.Namespace != q.Namespace,
		q.Operation != "" && e.Identity.Operation != q.Operation,
		len(q.Caller) > 0 && e.Identity.Caller != string(q.Caller),
		q.Record != RecordID{} && e.Record != q.Record,
		len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind),
		len(q.States) > 0 && !slices.Contains(q.States, state),
		len(q.Codes) > 0 && !slices.Contains(q.Codes, e.Code),
		q.Signature != "" && e.Signature != q.Signature,
		q.OlderThan > 0 && e.ParkedAt > now.Add(-q.OlderThan),
		q.YoungerTo > 0 && e.ParkedAt < now.Add(-q.YoungerTo),
		q.Ready && (state != EntryParked || !e.HasRequest || now < e.NotBefore),
		q.Requested && !e.Requested:
		return false
	}
	return true
}
