package interceptors

import (
	"context"
	"encoding/hex"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	lookupTime = 2 * time.Second // for the whole look
	lookupWait = time.Second     // of it, for a run that is still going on
	recordSize = 32
)

// identity is whose record a call's key names, beside operation and key.
type identity struct{ namespace, caller string }

// settle asks dedupd how a call ended whose tries do not tell, and reports
// whether it knows: then err is the answer, and the call's reply is filled in.
// It never goes past ctx's end, so a call whose time is used up is not looked
// up; nor is one whose callee keeps no record that counts.
func (c *clientCall) settle(ctx context.Context) (settled bool, err error) {
	if c.client.dedup == nil || c.fp == nil || c.policy.bare || !c.unknown() || ctx.Err() != nil {
		return false, nil
	}
	req := c.lookupRequest()
	if req == nil {
		return false, nil
	}
	// What the call itself carries as metadata is none of dedupd's business.
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, metadata.MD{}), lookupTime)
	defer cancel()
	deadline, _ := ctx.Deadline()
	req.Wait = durationpb.New(max(0, min(lookupWait, time.Until(deadline)-lookupWait/5)))
	resp, err := c.client.dedup.Lookup(ctx, req)
	if err != nil || resp.GetCompleted() == nil || resp.GetCompleted().GetKept() {
		// A kept error does not bar a try that is still on its way.
		return false, nil //nolint:nilerr // the call's own error says more
	}
	c.effect, c.replayed, c.trace = policy.EffectNone, true, resp.GetRecord().GetTraceparent()
	return true, c.answerFrom(resp.GetCompleted().GetOutcome())
}

// lookupRequest names the call's record; nil where it is not known.
func (c *clientCall) lookupRequest() *dedupv1.LookupRequest {
	req := &dedupv1.LookupRequest{Fingerprints: []*dedupv1.Fingerprint{c.fp}}
	if id, err := hex.DecodeString(c.recordID); err == nil && len(id) == recordSize {
		req.Record = &dedupv1.LookupRequest_RecordId{RecordId: id}
		return req
	}
	if c.identity == nil {
		return nil
	}
	id := &dedupv1.Identity{
		Namespace: c.identity.namespace, Operation: c.policy.operation,
		Caller: []byte(c.identity.caller), Key: []byte(*c.key),
	}
	req.Record = &dedupv1.LookupRequest_Identity{Identity: id}
	c.recordID = hex.EncodeToString(guard.RecordID(id))
	return req
}

// answerFrom gives the caller what a replay by the callee would give.
func (c *clientCall) answerFrom(o *dedupv1.Outcome) error {
	resp, headers, trailers, err := replayOutcome(o, c.policy.operation)
	if reason, ours := ReasonOf(err); ours && reason == dedupv1.Reason_REASON_OUTCOME_NOT_STORED {
		c.effect = policy.EffectApplied
	}
	if err == nil {
		err = c.fill(resp)
	}
	trailers = metadata.Join(trailers, metadata.Pairs(TrailerReplayed, "true", TrailerRecord, c.recordID))
	for _, o := range c.opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = headers
		case grpc.TrailerCallOption:
			*o.TrailerAddr = trailers
		}
	}
	return err
}

// fill copies the stored response into what the caller gave for it.
func (c *clientCall) fill(resp proto.Message) error {
	into, ok := c.reply.(proto.Message)
	switch {
	case ok && resp == nil:
		proto.Reset(into)
		return nil
	case ok && into.ProtoReflect().Descriptor().FullName() == resp.ProtoReflect().Descriptor().FullName():
		b, err := proto.Marshal(resp)
		if err == nil {
			err = proto.Unmarshal(b, into)
		}
		if err == nil {
			return nil
		}
	}
	c.effect = policy.EffectApplied
	return refusal{
		reason: dedupv1.Reason_REASON_OUTCOME_NOT_STORED, operation: c.policy.operation,
		message: "the work was done; its stored response is not of the type that the caller expects",
	}.err()
}
