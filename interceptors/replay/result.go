package replay

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Outcome is what came of a replay.
type Outcome string

// The outcomes. All but SKIPPED_LIVE and FAILED are the end of the entry.
const (
	// Replayed: the handler ran, with success.
	Replayed Outcome = "REPLAYED"
	// AlreadyDone: the work had been done before; nothing was run.
	AlreadyDone Outcome = "ALREADY_DONE"
	// Superseded: the caller's own retry, another replay or an operator settled it
	// meanwhile.
	Superseded Outcome = "SUPERSEDED"
	// SkippedLive: a run of the key, or another replay of the entry, is going on.
	// Nothing was sent.
	SkippedLive Outcome = "SKIPPED_LIVE"
	// Failed: it is parked again; Err says why.
	Failed Outcome = "FAILED"
	// Unprotected: the service did the work without looking at the key, so nothing
	// keeps the caller's own retry from doing it again. The entry is closed, since
	// another replay would be one more time, and nothing more is sent there.
	Unprotected Outcome = "UNPROTECTED"
)

// Done reports whether nothing is left to do.
func (o Outcome) Done() bool { return o == Replayed || o == AlreadyDone || o == Superseded }

// Result is what came of one entry.
type Result struct {
	// EntryID is the entry's id, 16 bytes.
	EntryID []byte
	// Entry is the entry as it was claimed, with its request; nil where it was not.
	Entry *dedupv1.DeadLetter
	// Outcome says what came of it.
	Outcome Outcome
	// Err is why it failed, as the service or dedupd answered; nil otherwise.
	Err error
	// Reason is dedupd's, where it would not give the entry for a replay;
	// KEY_EXPIRED: the key's time is over, so that nobody knows any more whether the
	// work was done.
	Reason dedupv1.Reason

	tried bool // the service may have run something
	keys  bool // the service has shown that it looks at keys
}

// reached is what the result tells of the service.
func (r Result) reached() reach {
	if r.Err != nil {
		switch codeOf(r.Err) { //nolint:exhaustive // the codes of a service that is not there
		case codes.Unavailable, codes.DeadlineExceeded:
			return silent
		}
	}
	if r.keys {
		return protected
	}
	return answered
}

func codeOf(err error) codes.Code { return policy.StatusOf(err).Code() }

// replay sends a claimed entry and settles it.
func (r *Replayer) replay(ctx context.Context, e *dedupv1.DeadLetter, token []byte) Result {
	res := Result{EntryID: e.GetEntryId(), Entry: e, Outcome: SkippedLive}
	if err := r.parentOpen(ctx, e); err != nil {
		res.Outcome, res.Err = Failed, err
	} else if ctx.Err() == nil {
		trailer, err := r.send(ctx, e, token)
		res.judge(trailer, err)
	}
	if res.Outcome == Unprotected && !r.unprotected.Swap(true) {
		r.Logger.LogAttrs(ctx, slog.LevelError, "a replay's service does not look at keys, nothing more is sent to it",
			slog.String("operation", e.GetIdentity().GetOperation()), slog.String("record", guard.ShortRecordID(e.GetRecordId())))
	}
	r.settle(ctx, &res, token)
	if r.Observer.Settled != nil {
		r.Observer.Settled(res)
	}
	return res
}

var (
	errUnprotected = status.Error(codes.FailedPrecondition, "the service did the work, but does not look at keys: nothing keeps the caller's own retry from doing it again; is it the right service?")
	errDiscarded   = status.Error(codes.FailedPrecondition, "it was discarded; nothing was sent")
	errNoKeys      = status.Error(codes.FailedPrecondition, "nothing was sent: the service does not look at keys, as an answer before has shown")
)

// parentOpen says why an entry that was edited from another must wait: of the two
// one is sent, the other never.
func (r *Replayer) parentOpen(ctx context.Context, e *dedupv1.DeadLetter) error {
	if len(e.GetParentId()) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, metadata.MD{}), askTime)
	defer cancel()
	got, err := r.DeadLetters.Get(ctx, &dedupv1.DeadLetterServiceGetRequest{EntryId: e.GetParentId()})
	if reason, _ := interceptors.ReasonOf(err); reason == dedupv1.Reason_REASON_ENTRY_NOT_FOUND {
		return nil
	}
	if err != nil {
		return status.Error(codes.Unavailable, "nothing was sent: dedupd does not tell what became of the entry that this one was edited from")
	}
	parent, id := got.GetEntry(), hex.EncodeToString(e.GetParentId())
	switch {
	case parent.GetState() == dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, parent.GetState() == dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING:
		return status.Error(codes.FailedPrecondition, "nothing was sent: it was edited from "+id+", which is open still; run that edit again, or discard one of the two")
	case parent.GetResult() == dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED, parent.GetResult() == dedupv1.ReplayResult_REPLAY_RESULT_ALREADY_DONE:
		return status.Error(codes.FailedPrecondition, "nothing was sent: "+id+", which it was edited from, has been done; discard this one")
	}
	return nil
}

// judge says what the service's answer means.
func (r *Result) judge(trailer metadata.MD, err error) {
	replayed := len(trailer[interceptors.TrailerReplayed]) == 1
	named := len(trailer[interceptors.TrailerRecord]) > 0
	reason, refused := interceptors.ReasonOf(err)
	r.tried, r.keys = true, named
	switch {
	case err == nil && replayed:
		r.Outcome = AlreadyDone
	case err == nil && !named:
		r.Outcome, r.Err = Unprotected, errUnprotected
	case err == nil:
		r.Outcome = Replayed
	case refused && reason == dedupv1.Reason_REASON_IN_PROGRESS:
		r.Outcome, r.tried = SkippedLive, false
	default:
		r.Outcome, r.Err = Failed, err
		// Else nobody was there, or turned it away before its handler.
		r.tried = codeOf(err) != codes.Unavailable || errors.Is(err, interceptors.ErrOutcomeUnknown)
	}
}

// settle ends the claim. Where dedupd cannot be told the claim lapses by itself,
// and the record keeps what was done.
func (r *Replayer) settle(ctx context.Context, res *Result, token []byte) {
	req := &dedupv1.SettleRequest{EntryId: res.EntryID, Token: token, Result: dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK}
	switch {
	case res.Outcome == Replayed || res.Outcome == Unprotected:
		req.Result = dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED
	case res.Outcome == AlreadyDone:
		req.Result = dedupv1.ReplayResult_REPLAY_RESULT_ALREADY_DONE
	case res.Outcome == Failed:
		req.NotBefore = durationpb.New(r.fail.Wait(int(min(res.Entry.GetReplays(), 1000)), 0, rand.Int64N))
		if res.tried {
			req.Result, req.Status = dedupv1.ReplayResult_REPLAY_RESULT_FAILED, encoded(res.Err)
		}
	case res.tried || ctx.Err() == nil:
		hint, _ := interceptors.RetryAfter(res.Err)
		req.NotBefore = durationpb.New(max(hint, time.Second))
	}
	ctx = context.WithoutCancel(ctx)
	entry, err := r.tell(ctx, req)
	if err != nil {
		r.Logger.LogAttrs(ctx, slog.LevelWarn, "dedupd was not told how a replay ended; its claim lapses by itself",
			slog.String("operation", res.Entry.GetIdentity().GetOperation()), slog.String("code", codeOf(err).String()))
		return
	}
	res.settled(entry)
}

// tell sends a Settle until it is answered; where the claim is no longer ours, it
// returns the entry as it is.
func (r *Replayer) tell(ctx context.Context, req *dedupv1.SettleRequest) (*dedupv1.DeadLetter, error) {
	for n := 0; ; n++ {
		try, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, metadata.MD{}), askTime)
		resp, err := r.DeadLetters.Settle(try, req)
		reason, _ := interceptors.ReasonOf(err)
		if reason == dedupv1.Reason_REASON_ENTRY_CHANGED {
			var got *dedupv1.DeadLetterServiceGetResponse
			got, err = r.DeadLetters.Get(try, &dedupv1.DeadLetterServiceGetRequest{EntryId: req.GetEntryId()})
			cancel()
			return got.GetEntry(), err
		}
		cancel()
		if err == nil || n+1 == settleTries || !passing(err) {
			return resp.GetEntry(), err
		}
		tries.Pause(ctx, r.ask.Wait(n, 0, rand.Int64N))
	}
}

func passing(err error) bool {
	switch codeOf(err) { //nolint:exhaustive // the codes that pass
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unknown, codes.ResourceExhausted:
		return true
	}
	return false
}

// settled takes over what the record says of the entry.
func (r *Result) settled(e *dedupv1.DeadLetter) {
	if r.Outcome == Unprotected {
		return // the record knows nothing of it
	}
	switch e.GetState() {
	case dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED:
		switch e.GetResult() {
		case dedupv1.ReplayResult_REPLAY_RESULT_REPLAYED:
			r.Outcome, r.Err = Replayed, nil
		case dedupv1.ReplayResult_REPLAY_RESULT_ALREADY_DONE:
			r.Outcome, r.Err = AlreadyDone, nil
		case dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED:
			r.Outcome, r.Err = Superseded, nil
		case dedupv1.ReplayResult_REPLAY_RESULT_UNSPECIFIED, dedupv1.ReplayResult_REPLAY_RESULT_FAILED,
			dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK:
		}
	case dedupv1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED:
		r.Outcome, r.Err = Failed, errDiscarded
	case dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING: // by somebody else
		if r.Outcome == Failed {
			r.Outcome, r.Err = SkippedLive, nil
		}
	case dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, dedupv1.DeadLetterState_DEAD_LETTER_STATE_UNSPECIFIED:
	}
}

// refusedClaim is what came of an entry that dedupd would not give.
func refusedClaim(id []byte, refusals []*dedupv1.ClaimRefusal) Result {
	res := Result{EntryID: id, Outcome: Failed, Err: status.Error(codes.NotFound, "dedupd did not give the entry for a replay")}
	for _, refusal := range refusals {
		res.Reason = refusal.GetReason()
		res.Err = status.Error(codes.FailedPrecondition, refusal.GetMessage())
		switch refusal.GetState() {
		case dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED:
			res.Outcome, res.Err = Superseded, nil
		case dedupv1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED:
			res.Outcome, res.Err = Failed, errDiscarded
		case dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING:
			res.Outcome, res.Err = SkippedLive, nil
		case dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, dedupv1.DeadLetterState_DEAD_LETTER_STATE_UNSPECIFIED:
			if refusal.GetReason() == dedupv1.Reason_REASON_IN_PROGRESS {
				res.Outcome, res.Err = SkippedLive, nil
			}
		}
	}
	return res
}

// encoded is the status of an error as bytes, without its details where they
// are too large to keep.
func encoded(err error) []byte {
	const maxStatus = 64 << 10
	s := policy.StatusOf(err).Proto()
	if b, err := proto.Marshal(s); err == nil && len(b) <= maxStatus {
		return b
	}
	b, _ := proto.Marshal(&statuspb.Status{Code: s.GetCode()}) // a number cannot fail to encode
	return b
}
