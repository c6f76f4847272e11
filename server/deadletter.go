package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// Bounds of one Claim by filter.
const (
	claimPage  = 200 // entries that are asked for at once
	claimPages = 50  // pages that are looked through, most of them empty
	claimSpare = 32  // entries kept in hand for those that somebody else claims first
)

// answerRoom is how large an answer may be before its last entry, which is smaller
// than 5 MiB: together they stay below MaxMessage.
const answerRoom = 3 << 20

// room is what is left of it.
type room int

func (r *room) take(e *dedupv1.DeadLetter) *dedupv1.DeadLetter {
	*r -= room(proto.Size(e))
	return e
}

// deadLetterService keeps what needs somebody. It dials nobody: entries are
// claimed, sent and settled by their owner's process or an operator's tool.
type deadLetterService struct {
	dedupv1.UnimplementedDeadLetterServiceServer
	*core
	signer *signer
}

func (s *deadLetterService) Park(ctx context.Context, req *dedupv1.ParkRequest) (*dedupv1.ParkResponse, error) {
	q, message, err := s.parkOf(req)
	if err != nil {
		return nil, err
	}
	if q.Entry.Signature, err = s.signature(ctx, &q.Entry, message); err != nil {
		return nil, err
	}
	ans, err := s.store.Park(ctx, q)
	if err != nil {
		return nil, err
	}
	if ans.Verdict == storage.VerdictFull {
		s.metrics.capped(cmp.Or(q.Entry.Identity.Namespace, namespaceOf(ans)))
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	s.metrics.parked(ans)
	return &dedupv1.ParkResponse{Entry: entryTo(ans.Entry, ans.Now, false), Created: ans.Entry.Count == 1}, nil
}

// signature signs the message of an entry's failure. Where the entry names its record
// by its id only, the store knows the key to mask; where it does not know it either,
// nothing of the message is told.
func (s *deadLetterService) signature(ctx context.Context, e *storage.DeadLetter, message string) (string, error) {
	who := e.Identity
	if who.Key == "" && message != "" {
		ans, err := s.store.Lookup(ctx, e.Record, storage.Lookup{})
		if err != nil {
			return "", err
		}
		if ans.Record == nil { // a dead letter may know it
			page, err := s.store.Entries(ctx, storage.ListEntries{Record: e.Record, Limit: 1})
			if err != nil {
				return "", err
			}
			if len(page.Entries) > 0 {
				ans.Entry = page.Entries[0]
			}
		}
		who = answerIdentity(ans)
	}
	if who.Key == "" {
		return "", nil
	}
	return s.signer.sign(message, who), nil
}

func (s *deadLetterService) List(ctx context.Context, req *dedupv1.DeadLetterServiceListRequest) (*dedupv1.DeadLetterServiceListResponse, error) {
	q, err := entriesOf(req.GetFilter(), req.GetPageSize())
	if err != nil {
		return nil, err
	}
	q.Newest = req.GetNewestFirst()
	if q.After, err = entryPageOf(req.GetPageToken(), q.Newest); err != nil {
		return nil, err
	}
	page, err := s.store.Entries(ctx, q)
	if err != nil {
		return nil, err
	}
	res := &dedupv1.DeadLetterServiceListResponse{NextPageToken: entryPageToken(q.Newest, page.Next)}
	left := room(answerRoom)
	for _, e := range page.Entries {
		res.Entries = append(res.Entries, left.take(entryTo(e, page.Now, false)))
		if left <= 0 && e != page.Entries[len(page.Entries)-1] {
			res.NextPageToken = entryPageToken(q.Newest, e.ID)
			break
		}
	}
	return res, nil
}

func (s *deadLetterService) Get(ctx context.Context, req *dedupv1.DeadLetterServiceGetRequest) (*dedupv1.DeadLetterServiceGetResponse, error) {
	ans, err := s.store.Entry(ctx, entryIDOf(req.GetEntryId()))
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	return &dedupv1.DeadLetterServiceGetResponse{Entry: wholeEntryTo(ans)}, nil
}

// wholeEntryTo tells an entry with its request and the state of its record.
func wholeEntryTo(ans storage.Answer) *dedupv1.DeadLetter {
	out := entryTo(ans.Entry, ans.Now, true)
	out.RecordState = stateOf(ans.State)
	return out
}

func (s *deadLetterService) Groups(ctx context.Context, req *dedupv1.GroupsRequest) (*dedupv1.GroupsResponse, error) {
	q, err := entriesOf(req.GetFilter(), req.GetLimit())
	if err != nil {
		return nil, err
	}
	groups, err := s.store.Groups(ctx, q)
	if err != nil {
		return nil, err
	}
	q.Limit = 1
	page, err := s.store.Entries(ctx, q) // for the store's clock: ages are counted by no other
	if err != nil {
		return nil, err
	}
	res := &dedupv1.GroupsResponse{}
	for _, g := range groups {
		res.Groups = append(res.Groups, groupTo(g, page.Now))
	}
	return res, nil
}

func (s *deadLetterService) Claim(ctx context.Context, req *dedupv1.ClaimRequest) (*dedupv1.ClaimResponse, error) {
	q := storage.Claim{
		Token:    tokenOf(req.GetToken()),
		Lease:    req.GetLease().AsDuration(),
		Operator: req.GetOperator(),
		Terms:    s.terms,
	}
	if len(req.GetEntryIds()) > 0 {
		return s.claimNamed(ctx, q, req.GetEntryIds())
	}
	ids, limit, err := s.claimable(ctx, req)
	if err != nil {
		return nil, err
	}
	res, left := &dedupv1.ClaimResponse{}, room(answerRoom)
	for _, id := range ids {
		if len(res.Entries) == limit || left <= 0 {
			break
		}
		q.Entry = id
		ans, err := s.claim(ctx, q)
		if err != nil {
			return nil, err // a repeat is told what is claimed so far
		}
		if ans.Verdict == storage.VerdictOK { // else somebody else was faster, or the record is not free
			res.Entries = append(res.Entries, left.take(wholeEntryTo(ans)))
		}
	}
	return res, nil
}

// claimNamed claims each of some entries, or tells what is in the way.
func (s *deadLetterService) claimNamed(ctx context.Context, q storage.Claim, ids [][]byte) (*dedupv1.ClaimResponse, error) {
	res, left := &dedupv1.ClaimResponse{}, room(answerRoom)
	seen := map[storage.EntryID]bool{}
	for _, id := range ids {
		q.Entry = entryIDOf(id)
		switch {
		case seen[q.Entry]:
			continue
		case left <= 0:
			res.Refusals = append(res.Refusals, &dedupv1.ClaimRefusal{
				EntryId: id, Reason: dedupv1.Reason_REASON_QUOTA_EXCEEDED,
				Message: "the answer is full; claim it in another call",
			})
			continue
		}
		seen[q.Entry] = true
		ans, err := s.claim(ctx, q)
		if err != nil {
			return nil, err // as above
		}
		if ans.Verdict == storage.VerdictOK {
			res.Entries = append(res.Entries, left.take(wholeEntryTo(ans)))
		} else {
			res.Refusals = append(res.Refusals, refusalTo(id, ans))
		}
	}
	return res, nil
}

func (s *deadLetterService) claim(ctx context.Context, q storage.Claim) (storage.Answer, error) {
	ans, err := s.store.Claim(ctx, q)
	if q.Operator {
		s.auditEntry(ctx, "claim", q.Entry, "", ans, err)
	}
	return ans, err
}

// claimable is what a Claim by filter may try, in order, and how many it wants: what
// a repeat of it already holds, and nothing else; or what operators have asked
// for, then the oldest.
func (s *deadLetterService) claimable(ctx context.Context, req *dedupv1.ClaimRequest) ([]storage.EntryID, int, error) {
	limit := int(cmp.Or(req.GetLimit(), 1))
	q, err := entriesOf(req.GetFilter(), claimPage)
	if err != nil {
		return nil, 0, err
	}
	token := tokenOf(req.GetToken())
	q.States = []storage.EntryState{storage.EntryReplaying}
	held, err := s.chosen(ctx, q, claimPage, func(e *storage.DeadLetter) bool { return e.Claim == token })
	if err != nil || len(held) > 0 {
		return held, len(held), err
	}
	q.States, q.Ready, q.Requested = nil, true, true
	ids, err := s.chosen(ctx, q, limit+claimSpare, func(*storage.DeadLetter) bool { return true })
	if err != nil || req.GetRequestedOnly() || len(ids) >= limit+claimSpare {
		return ids, limit, err
	}
	q.Requested = false
	others, err := s.chosen(ctx, q, limit+claimSpare, func(e *storage.DeadLetter) bool { return !e.Requested })
	return append(ids, others...), limit, err
}

// chosen pages through entries for the first that are wanted.
func (s *deadLetterService) chosen(ctx context.Context, q storage.ListEntries, limit int, want func(*storage.DeadLetter) bool) ([]storage.EntryID, error) {
	var ids []storage.EntryID
	for range claimPages {
		page, err := s.store.Entries(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			if len(ids) < limit && want(e) {
				ids = append(ids, e.ID)
			}
		}
		if q.After = page.Next; page.Next == (storage.EntryID{}) || len(ids) == limit {
			break
		}
	}
	return ids, nil
}

// refusalTo says why an entry was not claimed.
func refusalTo(id []byte, ans storage.Answer) *dedupv1.ClaimRefusal {
	r := refused(ans.Verdict)
	out := &dedupv1.ClaimRefusal{EntryId: id, Reason: r.reason, Message: r.message}
	if ans.Entry != nil {
		out.State = entryStateTo(ans.Entry.StateAt(ans.Now))
		out.Message = explainEntry(ans)
	}
	return out
}

// explainEntry says in words what is in the way of a call on an entry.
func explainEntry(ans storage.Answer) string {
	e := ans.Entry
	switch ans.Verdict {
	case storage.VerdictInProgress:
		return fmt.Sprintf("a run of the key is going on; ask again in %s", max(ans.RetryAfter, minRetryAfter))
	case storage.VerdictKeyExpired:
		return "its record is past its retention, so a replay could be a second run; send the request under a new key if that is right"
	case storage.VerdictEntryChanged:
		switch e.StateAt(ans.Now) {
		case storage.EntryReplaying:
			return fmt.Sprintf("another replay has claimed it for %s more", e.ClaimEnd.Sub(ans.Now))
		case storage.EntryResolved:
			return "it is resolved"
		case storage.EntryDiscarded:
			return "it was discarded"
		case storage.EntryParked:
			switch {
			case e.Kind == storage.EntryConflict:
				return "it is the trace of a double effect and is never replayed; an operator looks into it, then discards it"
			case !e.HasRequest:
				return "no request is kept with it, so there is nothing to send; an operator may claim it to settle it by hand"
			}
			return "the claim of this token is over; claim it anew with another token"
		}
	case storage.VerdictOK, storage.VerdictGranted, storage.VerdictCompleted, storage.VerdictOutcomeUnknown,
		storage.VerdictKeyReused, storage.VerdictStaleHolder, storage.VerdictNotReconciled, storage.VerdictRecordChanged,
		storage.VerdictNotFound, storage.VerdictClaimInvalid, storage.VerdictFull:
	}
	return refused(ans.Verdict).message
}

func (s *deadLetterService) Settle(ctx context.Context, req *dedupv1.SettleRequest) (*dedupv1.SettleResponse, error) {
	code, message, err := failureOf(req.GetStatus(), "status")
	if err != nil {
		return nil, err
	}
	q := storage.Settle{
		Entry:     entryIDOf(req.GetEntryId()),
		Token:     tokenOf(req.GetToken()),
		Result:    resultFrom(req.GetResult()),
		NotBefore: req.GetNotBefore().AsDuration(),
		Terms:     s.terms,
	}
	if q.Result == storage.ResultFailed {
		q.Code, q.Status = code, req.GetStatus()
		if message != "" { // only the entry knows the key to mask
			ans, err := s.store.Entry(ctx, q.Entry)
			if err != nil {
				return nil, err
			}
			if ans.Verdict != storage.VerdictOK {
				return nil, refusalOf(ans)
			}
			if q.Signature, err = s.signature(ctx, ans.Entry, message); err != nil {
				return nil, err
			}
		}
	}
	ans, err := s.store.Settle(ctx, q)
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	return &dedupv1.SettleResponse{Entry: entryTo(ans.Entry, ans.Now, false)}, nil
}

func (s *deadLetterService) Requeue(ctx context.Context, req *dedupv1.RequeueRequest) (*dedupv1.RequeueResponse, error) {
	answers, err := s.eachEntry(ctx, "requeue", req, func(id storage.EntryID) (storage.Answer, error) {
		return s.store.Requeue(ctx, storage.Requeue{Entry: id, Note: req.GetNote()})
	})
	return &dedupv1.RequeueResponse{Answers: answers}, err
}

func (s *deadLetterService) Discard(ctx context.Context, req *dedupv1.DiscardRequest) (*dedupv1.DiscardResponse, error) {
	answers, err := s.eachEntry(ctx, "discard", req, func(id storage.EntryID) (storage.Answer, error) {
		return s.store.Discard(ctx, storage.Discard{Entry: id, Note: req.GetNote(), Terms: s.terms})
	})
	return &dedupv1.DiscardResponse{Answers: answers}, err
}

// eachEntry does one thing to many entries and tells each one's answer: what goes
// wrong with one is its own. Every one is audited.
func (s *deadLetterService) eachEntry(ctx context.Context, act string, req interface {
	GetEntryIds() [][]byte
	GetNote() string
}, do func(storage.EntryID) (storage.Answer, error),
) ([]*dedupv1.EntryAnswer, error) {
	answers, left := make([]*dedupv1.EntryAnswer, 0, len(req.GetEntryIds())), room(answerRoom)
	for _, b := range req.GetEntryIds() {
		id := entryIDOf(b)
		ans, err := do(id)
		s.auditEntry(ctx, act, id, req.GetNote(), ans, err)
		if ctx.Err() != nil {
			return nil, ctx.Err() // nobody reads the rest
		}
		out := &dedupv1.EntryAnswer{EntryId: b}
		switch {
		case err != nil:
			r := unavailable("the store cannot be reached; try again")
			out.Reason, out.Message = r.reason, r.message
			s.log.LogAttrs(ctx, slog.LevelError, "the store failed", slog.String("call", act),
				slog.String("entry", hex.EncodeToString(b)), slog.Any("error", err))
		case ans.Verdict != storage.VerdictOK:
			out.Reason, out.Message = refused(ans.Verdict).reason, refused(ans.Verdict).message
			if ans.Entry != nil {
				out.Entry, out.Message = entryTo(ans.Entry, ans.Now, false), explainEntry(ans)
			}
		default:
			out.Entry = entryTo(ans.Entry, ans.Now, false)
		}
		if left <= 0 {
			out.Entry = nil // what came of it still fits
		}
		left.take(out.GetEntry())
		answers = append(answers, out)
	}
	return answers, nil
}

// namespaceOf is the namespace of an answer's record or entry.
func namespaceOf(ans storage.Answer) string { return answerIdentity(ans).Namespace }

// answerIdentity is whose record an answer is about, as far as it tells.
func answerIdentity(ans storage.Answer) storage.Identity {
	switch {
	case ans.Record != nil:
		return ans.Record.Identity
	case ans.Entry != nil:
		return ans.Entry.Identity
	}
	return storage.Identity{}
}
