package server

import (
	"cmp"
	"context"
	"fmt"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// Bounds of one Claim by filter.
const (
	claimPage  = 200 // entries that are asked for at once
	claimPages = 50  // pages that are looked through, most of them empty
	claimSpare = 32  // entries kept in hand for those that somebody else claims first
)

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
