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

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/replay"
)

const editClaim = time.Minute // of the entry that is edited

// edited sends another request in an entry's place. The old entry is claimed
// until it is closed, and it is closed before the new one is sent: at no time can
// both be replayed.
func (r *replaying) edited(ctx context.Context, s streams, e *dedupv1.DeadLetter) error {
	if err := r.editable(e); err != nil {
		return err
	}
	text, err := readEdit(r.Edit, s)
	if err != nil {
		return err
	}
	types, err := r.typesOf(ctx, r.target, r.Timeout, e.GetMethod())
	if err != nil {
		return err
	}
	msg, err := types.fromJSON(text)
	if err != nil {
		return err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(value)
	child := childOf(e, ":"+hex.EncodeToString(sum[:8]))
	child.Request = &dedupv1.Response{TypeUrl: "type.googleapis.com/" + string(msg.Descriptor().FullName()), Value: value}
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails: crypto/rand ends the process rather than return an error
	if err := r.claimEdited(ctx, e, token); err != nil {
		return err
	}
	return r.succeed(ctx, e, child, func(ctx context.Context) error {
		_, err := r.dl.Settle(ctx, &dedupv1.SettleRequest{
			EntryId: e.GetEntryId(), Token: token, Result: dedupv1.ReplayResult_REPLAY_RESULT_SUPERSEDED,
		})
		return err
	})
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
	parkID := make([]byte, 16)
	_, _ = rand.Read(parkID) // never fails: crypto/rand ends the process rather than return an error
	return &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: id}, ParkId: parkID,
		Kind:   dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED,
		Target: e.GetTarget(), Method: e.GetMethod(), Request: e.GetRequest(), Metadata: e.GetMetadata(),
		Status: e.GetStatus(), Attempts: e.GetAttempts(), ParentId: e.GetEntryId(), Note: "made from another by `dedupd dlq replay`",
	}
}

// claimEdited keeps everybody else from replaying e.
func (r *replaying) claimEdited(ctx context.Context, e *dedupv1.DeadLetter, token []byte) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	reply, err := r.dl.Claim(ctx, &dedupv1.ClaimRequest{
		Token: token, EntryIds: [][]byte{e.GetEntryId()}, Lease: durationpb.New(editClaim), Operator: true,
	})
	if err != nil {
		return err
	}
	if len(reply.GetEntries()) > 0 {
		return nil
	}
	why := "dedupd did not give it"
	for _, refusal := range reply.GetRefusals() {
		why = refusal.GetMessage()
		if refusal.GetReason() == dedupv1.Reason_REASON_KEY_EXPIRED && r.Force {
			return nil // nobody can replay it: there is nobody to keep away
		}
	}
	return fmt.Errorf("the dead letter cannot be edited now, nothing was written: %s", why)
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

// succeed parks child, closes e, and sends child. Where e cannot be closed the
// child is taken back.
func (r *replaying) succeed(ctx context.Context, e *dedupv1.DeadLetter, child *dedupv1.ParkRequest, closeOld func(context.Context) error) error {
	asking, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	reply, err := r.dl.Park(asking, child)
	if err != nil {
		return err
	}
	made := reply.GetEntry()
	if err := closeOld(asking); err != nil {
		_, undo := r.dl.Discard(asking, &dedupv1.DiscardRequest{EntryIds: [][]byte{made.GetEntryId()}, Note: "the one that it was made from could not be closed"})
		return errors.Join(fmt.Errorf("the dead letter could not be closed, so that its replacement was not sent: %w", err), undo)
	}
	r.progress.Begin("replay", 1)
	defer r.progress.End()
	return r.replayer.Replay(ctx, [][]byte{made.GetEntryId()}, func(res replay.Result) {
		r.progress.Placed()
		r.results.add(r.tell(res, e, e.GetEntryId()))
	})
}
