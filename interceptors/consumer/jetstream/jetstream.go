package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/interceptors/internal/tries"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const (
	// DefaultWorkers is how many messages are handled at a time.
	DefaultWorkers = 16

	keepAlives = 3                      // in an AckWait
	pullBase   = 100 * time.Millisecond // between pulls that fail
	pullCap    = 5 * time.Second
)

// Config configures a Worker. The first three fields are required.
type Config struct {
	// Queue decides on the messages.
	Queue *consumer.Consumer
	// From is the pull consumer at the server, with explicit acknowledgement and no
	// limit of deliveries.
	From js.Consumer
	// Handle handles a message; see consumer.Consumer.Handle. It must not
	// acknowledge it.
	Handle func(ctx context.Context, msg js.Msg) error
	// Workers is how many messages are handled at a time; zero means
	// DefaultWorkers.
	Workers int
	// Logger takes what an operator should know: that the server cannot be pulled
	// from. Nil: nothing is logged.
	Logger *slog.Logger
}

// Worker handles the messages of one consumer at the server.
type Worker struct {
	cfg     Config
	every   time.Duration // of keeping a message alive
	backoff policy.Backoff
}

// New asks the server for the consumer's settings and refuses those under which
// messages would be lost or settled by others: a limit of deliveries (MaxDeliver),
// after which the server stops delivering a message without a word, and any
// acknowledgement but the explicit one.
func New(ctx context.Context, c Config) (*Worker, error) {
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Queue == nil || c.From == nil || c.Handle == nil || c.Workers < 0 {
		return nil, errors.New("jetstream: give a queue, a consumer to pull from, a handler, and at least one worker")
	}
	info, err := c.From.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("jetstream: cannot ask for the consumer's settings: %w", err)
	}
	if info.Config.MaxDeliver > 0 {
		return nil, fmt.Errorf("jetstream: consumer %s delivers a message %d times and then drops it in silence; set MaxDeliver to -1, messages are parked after a number of runs (consumer.Config.MaxRuns)", info.Name, info.Config.MaxDeliver)
	}
	if info.Config.AckPolicy != js.AckExplicitPolicy {
		return nil, fmt.Errorf("jetstream: consumer %s has the acknowledgement policy %v; make it explicit, so that only what is settled is acknowledged", info.Name, info.Config.AckPolicy)
	}
	backoff, err := policy.NewBackoff(pullBase, pullCap, policy.DefaultFactor)
	if err != nil {
		return nil, err
	}
	wait := info.Config.AckWait
	for _, again := range info.Config.BackOff { // they take AckWait's place
		wait = min(wait, again)
	}
	return &Worker{cfg: c, every: wait / keepAlives, backoff: backoff}, nil
}

// Run handles messages until ctx ends; then it takes no more, waits for the
// handlers that run, and returns nil. It returns an error when the consumer at the
// server, or the connection, is gone for good.
func (w *Worker) Run(ctx context.Context) error {
	group, pulling := errgroup.WithContext(ctx)
	for range w.cfg.Workers {
		group.Go(func() error { return w.work(pulling) })
	}
	return group.Wait()
}

func (w *Worker) work(ctx context.Context) error {
	for failed := 0; ctx.Err() == nil; {
		msg, err := w.cfg.From.Next(js.FetchContext(ctx))
		switch {
		case err == nil:
			failed = 0
			w.handle(ctx, msg)
		case errors.Is(err, nats.ErrTimeout), ctx.Err() != nil:
		case w.gone(ctx, err):
			return fmt.Errorf("jetstream: no more messages come: %w", err)
		default:
			w.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "no message could be pulled; trying again", slog.Any("error", err))
			tries.Pause(ctx, w.backoff.Wait(failed, 0, rand.Int64N))
			failed++
		}
	}
	return nil
}

// gone reports, of a pull that failed, that no later one can do better. The server
// does not always say so of a consumer that was deleted; asked for it, it does.
func (w *Worker) gone(ctx context.Context, err error) bool {
	if errors.Is(err, js.ErrConsumerDeleted) || errors.Is(err, nats.ErrConnectionClosed) {
		return true
	}
	_, err = w.cfg.From.Info(ctx)
	return errors.Is(err, js.ErrConsumerNotFound) || errors.Is(err, js.ErrStreamNotFound)
}

func (w *Worker) handle(ctx context.Context, msg js.Msg) {
	d := w.cfg.Queue.Handle(ctx, MessageOf(msg, w.every), func(ctx context.Context) error {
		return w.cfg.Handle(ctx, msg)
	})
	if err := Settle(msg, d); err != nil {
		w.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "the server could not be told of a message; it is delivered again, which is harmless",
			slog.String("decision", d.Action.String()), slog.Any("error", err))
	}
}

// MessageOf is a message for a consumer.Consumer, kept alive every so often. Its
// id is the publisher's (the header Nats-Msg-Id), else made of stream, sequence
// and time of storing: then two copies that were published are two messages.
func MessageOf(msg js.Msg, keepAliveEvery time.Duration) consumer.Message {
	m := consumer.Message{
		ID: msg.Headers().Get(js.MsgIDHeader), Body: msg.Data(), Headers: msg.Headers(),
		Type:           msg.Headers().Get("Content-Type"),
		KeepAlive:      func(context.Context) error { return msg.InProgress() },
		KeepAliveEvery: keepAliveEvery,
	}
	meta, err := msg.Metadata()
	if err != nil { // not of a stream; without an id it is parked
		return m
	}
	m.Deliveries = meta.NumDelivered
	if m.ID == "" {
		// The time tells it from a message of an earlier stream of that name.
		m.ID, err = interceptors.Key(meta.Stream, strconv.FormatUint(meta.Sequence.Stream, 10), strconv.FormatInt(meta.Timestamp.UnixNano(), 10))
		if err != nil {
			m.ID = ""
		}
	}
	return m
}

// Settle tells the server what was decided. An error means that the message is
// delivered again, which is harmless.
func Settle(msg js.Msg, d consumer.Decision) error {
	switch d.Action {
	case consumer.Ack:
		return msg.Ack()
	case consumer.DeadLetter:
		return msg.TermWithReason("parked: " + d.Cause.String())
	case consumer.Nack:
	}
	if d.Delay > 0 {
		return msg.NakWithDelay(d.Delay)
	}
	return msg.Nak()
}
