package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"log/slog"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
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
	if q.Entry.Parent != (storage.EntryID{}) { // an operator has edited another
		s.auditEdit(ctx, q.Entry.Parent, req.GetNote(), ans, err)
	}
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

func (s *deadLetterService) Settle(ctx context.Context, req *dedupv1.SettleRequest) (*dedupv1.SettleResponse, error) {
	if _, _, err := failureOf(req.GetStatus(), "status"); err != nil {
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
		q.Status = req.GetStatus()
	}
	ans, err := s.store.Settle(ctx, q)
	s.auditSettle(ctx, ans)
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
