package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/replay"
)

const editClaim = time.Minute // of the entry that is edited

// edited sends another request in an entry's place, so that of the two one runs:
// under a claim, which keeps other replayers away, the old key is closed for its
// caller too, then the new entry is parked, the old one settled, and the new one
// sent. Interrupted anywhere, it can be run again: a new entry is not sent while
// the old one is open, and not after it was done (package replay).
func (r *replaying) edited(ctx context.Context, s streams, e *dedupv1.DeadLetter) error {
	if err := r.editable(e); err != nil {
		return err
	}
	child, err := r.childWith(ctx, s, e)
	if err != nil {
		return err
	}
	token := newID()
	claimed, err := r.claimEdited(ctx, e, token)
	if err != nil {
		return err
	}
	if claimed {
		if err := r.closeKey(ctx, e, token); err != nil {
			return errors.Join(err, r.giveBack(ctx, e, token))
		}
	}
	return r.succeed(ctx, e, child, func(ctx context.Context) error {
		_, err := r.dl.Settle(ctx, &dedupv1.SettleRequest{
			EntryId: e.GetEntryId(), Token: token, Result: dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED,
		})
		return err
	})
}

// childWith is the new entry, with the request that was typed.
func (r *replaying) childWith(ctx context.Context, s streams, e *dedupv1.DeadLetter) (*dedupv1.ParkRequest, error) {
	text, err := readEdit(r.Edit, s)
	if err != nil {
		return nil, usagef("--edit: %v", err)
	}
	types, err := r.typesOf(ctx, r.target, r.Timeout, e.GetMethod())
	if err != nil {
		return nil, err
	}
	msg, err := types.fromJSON(text)
	if err != nil {
		return nil, err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(value)
	child := childOf(e, ":"+hex.EncodeToString(sum[:8]))
	child.Request = &dedupv1.Response{TypeUrl: "type.googleapis.com/" + string(msg.Descriptor().FullName()), Value: value}
	return child, nil
}

// closeKey completes the old record with an error, by the claim: from here on its
// caller's own retry is refused. Where the work has been done, or nobody knows,
// the entry cannot be edited.
func (r *replaying) closeKey(ctx context.Context, e *dedupv1.DeadLetter, token []byte) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	dedup, attempt := dedupv1.NewDedupServiceClient(r.conn), newID()
	digest := sha256.Sum256(append([]byte("dedupd dlq edit"), e.GetEntryId()...))
	reply, err := dedup.Reserve(ctx, &dedupv1.ReserveRequest{
		Identity: e.GetIdentity(), AttemptId: attempt, Lease: durationpb.New(editClaim),
		Fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: digest[:]}},
		Replay:       &dedupv1.ReplayClaim{EntryId: e.GetEntryId(), Token: token},
	})
	reason, _ := interceptors.ReasonOf(err)
	switch {
	case reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN && r.Force:
		return nil // its key stays unknown, and is not run by itself
	case reason == dedupv1.Reason_REASON_KEY_REUSED:
		return errors.New("a part of the call may have been applied, or another request was made under its key; it was not edited, and nothing was sent")
	case err != nil && reason == dedupv1.Reason_REASON_UNSPECIFIED:
		// The grant may be there, unread: it would leave the old key unknown.
		_, _ = dedup.Release(ctx, &dedupv1.ReleaseRequest{
			Identity: e.GetIdentity(), AttemptId: attempt, Effect: dedupv1.Effect_EFFECT_NONE,
		})
		return err
	case err != nil:
		return err
	case reply.GetGranted() == nil:
		return errors.New("the work has been done, or is being done, meanwhile; it was not edited, and nothing was sent")
	}
	st, err := proto.Marshal(status.New(codes.FailedPrecondition, "an operator has replaced this call by an edited one").Proto())
	if err != nil {
		return err
	}
	_, err = dedup.Complete(ctx, &dedupv1.CompleteRequest{
		Identity: reply.GetReplayed(), AttemptId: attempt, Fence: reply.GetGranted().GetFence(), Outcome: &dedupv1.Outcome{Status: st},
	})
	return err
}

// giveBack ends the claim of an entry that was not edited.
func (r *replaying) giveBack(ctx context.Context, e *dedupv1.DeadLetter, token []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Timeout)
	defer cancel()
	_, err := r.dl.Settle(ctx, &dedupv1.SettleRequest{
		EntryId: e.GetEntryId(), Token: token, Result: dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK,
	})
	if reason, _ := interceptors.ReasonOf(err); reason == dedupv1.Reason_REASON_ENTRY_CHANGED {
		return nil // settled meanwhile
	}
	return err
}

// newID is 16 random bytes.
func newID() []byte {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails: crypto/rand ends the process rather than return an error
	return id
}

// editable says why an entry cannot be edited.
func (r *replaying) editable(e *dedupv1.DeadLetter) error {
	switch {
	case e.GetState() != dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED:
		return fmt.Errorf("the dead letter is %s, and only a parked one can be edited; nothing was written", entryState(e))
	case e.GetKind() == dedupv1.DeadLetterKind_DEAD_LETTER_KIND_CONFLICT:
		return errors.New("a conflict has no request to edit; nothing was written")
	case len(e.GetIdentity().GetKey()) == 0:
		return errors.New("the dead letter's key was erased; nothing was written")
	case e.GetRecordState() == dedupv1.State_STATE_UNKNOWN && !r.Force:
		return errors.New("nobody knows whether the call's effect happened, and the edited request would be another one; nothing was written: settle the record with `dedupd keys resolve` first, or pass --force")
	}
	return nil
}

func readEdit(path string, s streams) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(s.in)
	}
	return os.ReadFile(path)
}

// childOf is a new dead letter in e's place. Its key follows from e, so that the
// same replacement made twice is one.
func childOf(e *dedupv1.DeadLetter, suffix string) *dedupv1.ParkRequest {
	id := proto.CloneOf(e.GetIdentity())
	id.Key = []byte("dlq:" + hex.EncodeToString(e.GetEntryId()) + suffix)
	return &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: id}, ParkId: newID(),
		Kind:   dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED,
		Target: e.GetTarget(), Method: e.GetMethod(), Request: e.GetRequest(), Metadata: e.GetMetadata(),
		Status: e.GetStatus(), Attempts: e.GetAttempts(), ParentId: e.GetEntryId(), Note: "made from another by `dedupd dlq replay`",
	}
}

// claimEdited keeps everybody else from replaying e; not claimed: nobody can replay
// it, and it is to be forced.
func (r *replaying) claimEdited(ctx context.Context, e *dedupv1.DeadLetter, token []byte) (claimed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	reply, err := r.dl.Claim(ctx, &dedupv1.ClaimRequest{
		Token: token, EntryIds: [][]byte{e.GetEntryId()}, Lease: durationpb.New(editClaim), Operator: true,
	})
	if err != nil {
		return false, err
	}
	if len(reply.GetEntries()) > 0 {
		return true, nil
	}
	why := "dedupd did not give it"
	for _, refusal := range reply.GetRefusals() {
		why = refusal.GetMessage()
		if refusal.GetReason() == dedupv1.Reason_REASON_KEY_EXPIRED && r.Force {
			return false, nil
		}
	}
	return false, fmt.Errorf("the dead letter cannot be edited now, nothing was written: %s", why)
}

// forced sends an entry whose key has expired under a new key. Nobody else can
// replay it meanwhile.
func (r *replaying) forced(ctx context.Context, id []byte) error {
	e, err := getEntry(ctx, r.remote, r.conn, id)
	if err != nil {
		return err
	}
	return r.succeed(ctx, e, childOf(e, ""), func(ctx context.Context) error {
		reply, err := r.dl.Discard(ctx, &dedupv1.DiscardRequest{EntryIds: [][]byte{id}, Note: "replaced by a new key: its own has expired"})
		for _, a := range reply.GetAnswers() {
			if a.GetReason() != dedupv1.Reason_REASON_UNSPECIFIED && err == nil {
				err = errors.New(a.GetMessage())
			}
		}
		return err
	})
}

// succeed parks child, closes e, and sends child, which is not sent while e is open.
func (r *replaying) succeed(ctx context.Context, e *dedupv1.DeadLetter, child *dedupv1.ParkRequest, closeOld func(context.Context) error) error {
	asking, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	reply, err := r.dl.Park(asking, child)
	if err != nil {
		return fmt.Errorf("the new dead letter may or may not have been made, and nothing was sent; run the same command again in a minute: %s",
			explain(overWire(r.Addr, err)))
	}
	made := reply.GetEntry()
	if err := closeOld(asking); err != nil {
		return fmt.Errorf("the new dead letter %s was made, but the old one may be open still, and nothing was sent; run the same command again in a minute, of the two only one is ever sent: %s",
			hex.EncodeToString(made.GetEntryId()), explain(overWire(r.Addr, err)))
	}
	r.progress.Begin("replay", 1)
	defer r.progress.End()
	return r.replayer.Replay(ctx, [][]byte{made.GetEntryId()}, func(res replay.Result) {
		r.progress.Placed()
		r.results.add(r.tell(res, e, e.GetEntryId()))
	})
}
