package interceptors

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Guarded is how calls of one method are guarded on this side, for callees that
// know nothing of keys. A field that is zero means its default.
type Guarded struct {
	// Operation names what the keys are for: 1-255 bytes. Default: the full method
	// name.
	Operation string
	// Lease is asked for around each try: 1 s - 15 min. Default 30 s. It is extended
	// while the call goes on; after a try that may have been applied a Rerun has to
	// wait for its end.
	Lease time.Duration
	// Retention lengthens the namespace's retention of the answer, up to 400 days;
	// zero leaves it.
	Retention time.Duration
	// RefusalsApplyNothing: this callee answers ABORTED and RESOURCE_EXHAUSTED only
	// where it has applied nothing. Else they leave the outcome unknown.
	RefusalsApplyNothing bool
	// ProviderKeyHeader is the metadata name, lower case, under which the callee
	// takes a key of its own. It is sent the record's id in hexadecimal, the same
	// on every try. Default none.
	ProviderKeyHeader string
	// Rerun: the callee deduplicates by that key, so that a try whose outcome is
	// unknown is sent again under it. Only with ProviderKeyHeader.
	Rerun bool
}

// guarded is a method in guard mode.
type guarded struct {
	Guarded
	engine *guard.Engine
}

// WithGuarded guards the calls of a method, by its full name, whose callee knows
// nothing of keys: around every try the key is reserved with dedupd, and how the
// try ended is stored. A call without a key gets one as for any deduplicated
// method; the caller is that of WithIdentity, empty unless set, and the namespace
// that of the engine. A try whose outcome is unknown is not sent again, by
// anybody, unless Guarded.Rerun says so: the key stays blocked until an operator
// resolves it.
//
// The engine may serve many methods and connections; close it when the process
// stops. Only for messages of protobuf.
func WithGuarded(engine *guard.Engine, fullMethod string, g Guarded) ClientOption {
	return clientOption(func(c *clientConfig) error {
		if engine == nil {
			return fmt.Errorf("the engine that guards %s is nil, make one by guard.New", fullMethod)
		}
		if err := g.validate(); err != nil {
			return fmt.Errorf("guarded method %s: %w", fullMethod, err)
		}
		c.guarded[fullMethod] = &guarded{Guarded: g, engine: engine}
		return methodName(fullMethod)
	})
}

func (g *Guarded) validate() error {
	switch {
	case g.Rerun && g.ProviderKeyHeader == "":
		return errors.New("sending an unknown try again is safe only under a key that the callee takes, name its header")
	case g.ProviderKeyHeader != strings.ToLower(g.ProviderKeyHeader), strings.HasPrefix(g.ProviderKeyHeader, "grpc-"), strings.HasSuffix(g.ProviderKeyHeader, "-bin"):
		return fmt.Errorf("provider key header %q must be lower case, not gRPC's own and not binary", g.ProviderKeyHeader)
	}
	return guard.CheckLimits(g.Operation, g.Lease, g.Retention)
}

// guardedTry sends a try under a grant of dedupd, or answers from the record.
func (c *clientCall) guardedTry(ctx context.Context, permit *policy.Permit) (policy.Answer, error) {
	g := c.policy.guarded
	if _, ok := c.reply.(proto.Message); !ok || c.fp == nil {
		err := inputInvalid(errors.New("only calls with protobuf messages can be guarded"))
		return c.table.Classify(policy.Try{Err: err, Sent: policy.SentNothing}), err
	}
	call := guard.Call{
		Operation: c.policy.operation, Key: []byte(*c.key), Fingerprints: []*dedupv1.Fingerprint{c.fp},
		Lease: g.Lease, Retention: g.Retention, RerunSafe: g.Rerun, Attempt: c.attempts,
		Replay: c.replay,
	}
	if c.identity != nil {
		call.Caller = []byte(c.identity.caller)
	}
	if deadline, ok := ctx.Deadline(); ok {
		call.MaxRun = max(time.Until(deadline), tries.Least)
	}
	var answer policy.Answer
	var sendErr error
	res, err := g.engine.Do(ctx, call, func(run context.Context, a guard.Attempt) guard.Ending {
		c.acknowledged = true
		var ended policy.Try
		ended, answer = c.sendGuarded(ctx, run)
		permit.Done(policy.VerdictOf(ended))
		sendErr = ended.Err
		return c.guardedEnding(ended, answer, a)
	})
	c.recordID = hex.EncodeToString(res.RecordID)
	switch {
	case errors.Is(err, guard.ErrClosed):
		err = status.Error(codes.Unavailable, "nothing was sent: the engine that guards the call is closed")
		answer = policy.Answer{Retry: policy.Stop, Effect: policy.EffectNone}
	case err != nil:
		err = refusalStatus(err)
		answer = c.table.Classify(policy.Try{Err: err, Sent: policy.SentNothing, CallerDone: ctx.Err() != nil})
	case res.Stored != nil:
		c.acknowledged, c.replayed = true, true
		c.effect, c.trace = policy.EffectNone, res.Traceparent
		return policy.Answer{Retry: policy.Permanent, Effect: policy.EffectNone}, c.answerFrom(res.Stored.GetOutcome())
	default:
		err = sendErr
	}
	c.effect = max(c.effect, answer.Effect)
	return answer, err
}

// sendGuarded sends a try on the context of its run, which ends with the
// caller's too.
func (c *clientCall) sendGuarded(caller, run context.Context) (policy.Try, policy.Answer) {
	ctx, cancel := tries.Within(run, caller)
	defer cancel()
	ctx, stop := withinLease(ctx, caller)
	defer stop()
	ended, _ := c.sendOnce(ctx)
	ended.CallerDone = caller.Err() != nil
	answer := c.classify(ended)
	left, _ := c.sends.left()
	answer.Effect = max(answer.Effect, left)
	if answer.Effect == policy.EffectUnknown && !c.policy.guarded.Rerun && answer.Retry == policy.Transient {
		answer.Retry = policy.Stop
	}
	return ended, answer
}

// guardedEnding is what a try leaves on its record, by what its client can tell.
func (c *clientCall) guardedEnding(ended policy.Try, answer policy.Answer, a guard.Attempt) guard.Ending {
	note := "the call returned " + policy.StatusOf(ended.Err).Code().String()
	switch answer.Effect {
	case policy.EffectApplied:
		reply, _ := c.reply.(proto.Message)
		if ended.Err != nil {
			reply = nil
		}
		if o, err := newOutcome(reply, ended.Err, nil, nil, allowList{}, a.MaxOutcomeBytes); err == nil {
			return guard.Ending{Outcome: o}
		}
	case policy.EffectNone:
		return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE, Note: note}
	case policy.EffectUnknown, policy.EffectAsTable:
	}
	return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN, Note: note}
}

// providerHeader returns ctx with the callee's own key, if it takes one, and none
// of ours.
func (c *clientCall) providerHeader(ctx context.Context) context.Context {
	md, ok := metadata.FromOutgoingContext(ctx) // a copy
	if !ok {
		md = metadata.MD{}
	}
	md.Delete(HeaderKey)
	md.Delete(HeaderKeyBin)
	md.Delete(HeaderReplay)
	if name := c.policy.guarded.ProviderKeyHeader; name != "" {
		md.Set(name, hex.EncodeToString(guard.RecordIDFrom(ctx)))
	}
	return metadata.NewOutgoingContext(ctx, md)
}
