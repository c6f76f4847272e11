package watermill

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
)

var (
	errUndecided = errors.New("the message is not settled; it must be delivered again")
	errResult    = errors.New("what the handler produced is not stored in a form that this build reads")
)

// Middleware makes handlers of a router run once per message: router.AddMiddleware
// or handler.AddMiddleware. Add it before (outside of) middlewares that belong to
// the work itself, such as a timeout. A retry or poison middleware outside of it
// does not see a parked message; inside of it, Retry repeats within one run.
//
// The message's UUID is its id: it must be its publisher's, the same on each
// delivery. Give messages a Config.Key where a Pub/Sub makes UUIDs of its own.
func Middleware(c *consumer.Consumer) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			return handle(c, h, msg)
		}
	}
}

func handle(c *consumer.Consumer, h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context()
	defer msg.SetContext(ctx)
	d := c.HandleResult(ctx, messageOf(msg), func(ctx context.Context) (proto.Message, error) {
		msg.SetContext(ctx)
		produced, err := h(msg)
		if err != nil || len(produced) == 0 {
			return nil, err
		}
		return Result(produced...), nil
	})
	switch d.Action {
	case consumer.Ack:
		produced, err := decode(d.Result)
		if err != nil {
			tries.Pause(ctx, consumer.DefaultRetryCap) // only another build can read it
		}
		return produced, err
	case consumer.DeadLetter:
		return nil, nil
	case consumer.Nack:
	}
	tries.Pause(ctx, d.Delay)
	if d.Err == nil {
		return nil, errUndecided
	}
	return nil, d.Err
}

func messageOf(msg *message.Message) consumer.Message {
	headers := make(map[string][]string, len(msg.Metadata))
	for name, value := range msg.Metadata {
		headers[name] = []string{value}
	}
	return consumer.Message{ID: msg.UUID, Body: msg.Payload, Headers: headers}
}

// produced is how a message that a handler produced is stored, as JSON.
type produced struct {
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  []byte            `json:"payload,omitempty"`
}

// Result is what a handler produced, as it is stored: for a reconciler that finds
// it (interceptors.VerdictApplied).
func Result(messages ...*message.Message) proto.Message {
	stored := make([]produced, len(messages))
	for i, m := range messages {
		stored[i] = produced{UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload}
	}
	b, _ := json.Marshal(stored) // strings and bytes always marshal
	return wrapperspb.Bytes(b)
}

func decode(result proto.Message) ([]*message.Message, error) {
	b, ok := result.(*wrapperspb.BytesValue)
	if !ok { // none, or that of consumer.Applied: nothing was produced
		return nil, nil
	}
	var stored []produced
	if err := json.Unmarshal(b.GetValue(), &stored); err != nil {
		return nil, errResult
	}
	messages := make([]*message.Message, len(stored))
	for i, p := range stored {
		messages[i] = message.NewMessage(p.UUID, p.Payload)
		if p.Metadata != nil {
			messages[i].Metadata = p.Metadata
		}
	}
	return messages, nil
}
