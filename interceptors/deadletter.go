package interceptors

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/headerlist"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	parkTime  = 2 * time.Second        // that a call waits for dedupd to take its dead letter
	parkGrace = 250 * time.Millisecond // the same, of a call whose own time is over
)

// Parker brings dead letters to dedupd, by way of a spool on this machine where
// dedupd cannot be reached or is at its cap. Make one by NewParker.
type Parker = guard.Parker

// ParkerConfig configures a Parker.
type ParkerConfig = guard.ParkerConfig

// ParkObserver counts what becomes of dead letters.
type ParkObserver = guard.ParkObserver

// NewParker returns a parker, or an error that says what is missing. One serves
// all connections and servers of a process; close it when the process stops.
func NewParker(c ParkerConfig) (*Parker, error) { return guard.NewParker(c) }

// Option is for a client's connection and for a server.
type Option interface {
	ClientOption
	ServerOption
}

type deadLetters struct{ parker *Parker }

// WithDeadLetters keeps what failed for good until somebody replays, settles or
// discards it. On a client: the calls of the methods that WithParked names which
// ran out of attempts, or whose outcome stayed unknown; the caller gets its error
// all the same (DeadLetterOf). On a server: keyed calls of any method whose
// reconciler could not tell, or found a part of the effect, with their request.
func WithDeadLetters(p *Parker) Option { return deadLetters{parker: p} }

var errNoParker = errors.New("the parker of dead letters is nil, make one by NewParker")

func (d deadLetters) applyClient(c *clientConfig) error {
	if d.parker == nil {
		return errNoParker
	}
	c.parker = d.parker
	return nil
}

func (d deadLetters) applyServer(c *serverConfig) error {
	if d.parker == nil {
		return errNoParker
	}
	c.parker = d.parker
	return nil
}

// WithParked lists methods, by full name, whose keyed calls become dead letters
// when they are given up with an error that another try might cure, or with an
// unknown outcome. Needs WithDeadLetters, and the record's identity: that of
// WithIdentity, or the record that the service named. The request is kept with
// dedupd, up to 4 MiB. Permanent errors are not parked: no replay would cure
// them; CallObserver.Permanent is told.
func WithParked(fullMethods ...string) ClientOption {
	return listed(fullMethods, func(c *clientConfig) map[string]bool { return c.parkedMethods })
}

// WithParkedMetadata names the request metadata, lower case, that a dead letter
// keeps and a replay sends again; none unless set. Credentials and our own
// headers are refused: whoever replays brings its own.
func WithParkedMetadata(names ...string) ClientOption {
	return clientOption(func(c *clientConfig) error {
		allowed, err := headerlist.Names("metadata", names)
		c.parkedMetadata = append(c.parkedMetadata, allowed...)
		return err
	})
}

// DeadLetterOf reports whether a call that ended with err waits for a replay,
// and the dead letter's id in hexadecimal, for `dedupd dlq show`. The id is empty
// while the entry is in the spool of this machine.
func DeadLetterOf(err error) (entry string, ok bool) {
	if e, found := errors.AsType[*CallError](err); found && (e.Entry != "" || e.Spooled) {
		return e.Entry, true
	}
	said, _ := policy.RefusalOf(err)
	return said.Entry, said.Entry != ""
}

// tried notes a try for the dead letter that the call may become.
func (c *clientCall) tried(err error) {
	if !c.policy.parked || !c.keyed {
		return
	}
	at := &dedupv1.CallAttempt{At: timestamppb.Now(), Code: int32(policy.StatusOf(err).Code())} //nolint:gosec // one of 17 codes
	if len(c.tries) == guard.MaxParkedAttempts {
		c.tries = slices.Delete(c.tries, 0, 1)
	}
	c.tries = append(c.tries, at)
}

// park keeps the call for a replay, if it is one to keep, and says what became of
// that.
func (c *clientCall) park(ctx context.Context, last error) guard.Parked {
	if !c.policy.parked || c.client.parker == nil || !c.keyed || c.policy.bare || c.replay != nil || len(c.tries)+c.held == 0 {
		return guard.Parked{}
	}
	left := errors.Is(ctx.Err(), context.Canceled)
	if !c.unknown() && (left || c.retry == policy.Permanent) {
		if c.retry == policy.Permanent && !c.replayed {
			c.client.observe.permanent(ctx, c.method, last)
		}
		return guard.Parked{}
	}
	entry := parked(c.method, c.req)
	if !c.recordOf(entry) {
		c.client.observe.unparked(ctx, c.method)
		return guard.Parked{}
	}
	entry.Kind = dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED
	if c.cc != nil {
		entry.Target = c.cc.Target()
	}
	if c.fp != nil {
		entry.Fingerprints = []*dedupv1.Fingerprint{c.fp}
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	entry.Metadata = headerlist.Metadata(md, c.client.parkedMetadata)
	entry.Attempts = c.tries
	// A status that cannot be encoded costs the entry its status.
	entry.Status, _ = encodeStatus(policy.StatusOf(last))
	wait := parkGrace
	if deadline, ok := ctx.Deadline(); ctx.Err() == nil && (!ok || time.Until(deadline) > parkTime) {
		wait = parkTime
	}
	return c.client.parker.Park(ctx, entry, wait)
}

// recordOf names the record of a dead letter: the one that the service told,
// which knows best, unless it is that of WithIdentity, which may be absent.
func (c *clientCall) recordOf(entry *dedupv1.ParkRequest) bool {
	var own *dedupv1.Identity
	namespace := ""
	switch {
	case c.policy.guarded != nil:
		namespace = c.policy.guarded.engine.Namespace()
	case c.identity != nil:
		namespace = c.identity.namespace
	}
	if namespace != "" {
		own = &dedupv1.Identity{Namespace: namespace, Operation: c.policy.operation, Key: []byte(*c.key)}
		if c.identity != nil {
			own.Caller = []byte(c.identity.caller)
		}
	}
	told, err := hex.DecodeString(c.recordID)
	known := err == nil && len(told) == recordSize
	switch {
	case own != nil && (!known || slices.Equal(told, guard.RecordID(own))):
		entry.Record = &dedupv1.ParkRequest_Identity{Identity: own}
	case known:
		entry.Record = &dedupv1.ParkRequest_RecordId{RecordId: told}
	default:
		return false
	}
	if own != nil && !known {
		c.recordID = hex.EncodeToString(guard.RecordID(own))
	}
	return true
}

// parked is what a replay needs of a call: its method and request. A request
// that is no protobuf message, or cannot be encoded, is left out.
func parked(fullMethod string, req any) *dedupv1.ParkRequest {
	entry := &dedupv1.ParkRequest{Method: fullMethod}
	msg, ok := req.(proto.Message)
	if !ok {
		return entry
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return entry
	}
	entry.Request = &dedupv1.Response{
		TypeUrl: typeURLPrefix + string(msg.ProtoReflect().Descriptor().FullName()), Value: value,
	}
	return entry
}
