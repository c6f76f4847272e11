package jetstream_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/interceptors/consumer/jetstream"
)

// rig is a broker with one consumer, and a queue that decides on its messages.
type rig struct {
	*broker
	queue *consumer.Consumer
	dead  *drawer
}

func newRig(t *testing.T, how func(*consumer.Config)) *rig {
	t.Helper()
	r := &rig{broker: startBroker(t), dead: &drawer{}}
	conn, dedup := dialDedupd(t, startDedupd(t))
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	c := consumer.Config{
		Dedup: dedup, Namespace: "test", Operation: "consume " + subject, DeadLetters: r.dead,
		RetryBase: time.Millisecond,
	}
	if how != nil {
		how(&c)
	}
	var err error
	r.queue, err = consumer.New(c)
	require.NoError(t, err)
	t.Cleanup(r.queue.Close)
	return r
}

// run runs a worker until the function that it returns is called, or the test ends.
func (r *rig) run(t *testing.T, from js.Consumer, handle func(context.Context, js.Msg) error) (stop func() error) {
	t.Helper()
	w, err := jetstream.New(t.Context(), jetstream.Config{Queue: r.queue, From: from, Handle: handle, Workers: 2})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = func() error {
		cancel()
		err := <-ended
		ended <- err
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func TestAConsumerThatWouldLoseMessagesIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	none := func(context.Context, js.Msg) error { return nil }
	for says, how := range map[string]func(*js.ConsumerConfig){
		"5 times and then drops it": func(c *js.ConsumerConfig) { c.Durable, c.MaxDeliver = "limited", 5 },
		"make it explicit":          func(c *js.ConsumerConfig) { c.Durable, c.AckPolicy = "all", js.AckAllPolicy },
	} {
		_, err := jetstream.New(t.Context(), jetstream.Config{Queue: r.queue, From: r.consume(t, how), Handle: none})
		require.ErrorContains(t, err, says)
	}
	_, err := jetstream.New(t.Context(), jetstream.Config{Queue: r.queue})
	require.ErrorContains(t, err, "give a queue")

	from := r.consume(t, nil)
	require.NoError(t, r.js.DeleteConsumer(t.Context(), stream, durable))
	_, err = jetstream.New(t.Context(), jetstream.Config{Queue: r.queue, From: from, Handle: none})
	require.ErrorIs(t, err, js.ErrConsumerNotFound)
}

// G01: after its runs, whatever the number of deliveries. Without an id of its
// publisher its deliveries have one key all the same.
func TestAPoisonMessageIsParkedAndTakenOffTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *consumer.Config) { c.MaxRuns = 3 })
	from, terminated := r.consume(t, nil), r.told(t, "ADVISORY.CONSUMER.MSG_TERMINATED")
	var runs atomic.Int64
	r.run(t, from, func(context.Context, js.Msg) error {
		runs.Add(1)
		return interceptors.NotApplied(errors.New("cannot read it"))
	})
	_, err := r.js.Publish(t.Context(), subject, []byte("?"))
	require.NoError(t, err)
	require.Contains(t, string((<-terminated).Data), "parked: exhausted")
	require.EqualValues(t, 3, runs.Load())
	require.Len(t, r.dead.letters, 1)
	require.Equal(t, "?", string(r.dead.letters[0].Message.Body))
	require.Regexp(t, `^ORDERS:1:\d{19}$`, r.dead.letters[0].Message.ID)
}

func TestMessagesWithoutIDsAreMessagesOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	handled := make(chan string, 3)
	r.run(t, r.consume(t, nil), func(_ context.Context, msg js.Msg) error {
		handled <- string(msg.Data())
		return nil
	})
	for range 3 {
		_, err := r.js.Publish(t.Context(), subject, []byte("tick"))
		require.NoError(t, err)
	}
	require.Equal(t, []string{"tick", "tick", "tick"}, []string{<-handled, <-handled, <-handled})
}

// watched tells when a message is kept alive.
type watched struct {
	js.Consumer
	kept chan struct{}
}

func (w watched) Next(opts ...js.FetchOpt) (js.Msg, error) {
	msg, err := w.Consumer.Next(opts...)
	if err != nil {
		return nil, err
	}
	return watchedMsg{Msg: msg, kept: w.kept}, nil
}

type watchedMsg struct {
	js.Msg
	kept chan struct{}
}

func (m watchedMsg) InProgress() error {
	err := m.Msg.InProgress()
	select {
	case m.kept <- struct{}{}:
	default:
	}
	return err
}

func TestAWorkerThatStopsLetsItsHandlersFinish(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	from := r.consume(t, func(c *js.ConsumerConfig) {
		c.AckWait = time.Hour
		c.BackOff = []time.Duration{time.Hour, 300 * time.Millisecond} // takes its place
		c.SampleFrequency = "100%"
	})
	settled, kept, begun := r.told(t, "METRIC.CONSUMER.ACK"), make(chan struct{}), make(chan struct{})
	stop := r.run(t, watched{from, kept}, func(ctx context.Context, _ js.Msg) error {
		close(begun)
		for range 3 {
			<-kept
		}
		return ctx.Err()
	})
	r.publish(t, "a")
	<-begun
	require.NoError(t, stop())
	require.Contains(t, string((<-settled).Data), `"stream_seq":1`)
}

func TestAWorkerEndsWhenItsConsumerIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	handled := make(chan struct{})
	w, err := jetstream.New(t.Context(), jetstream.Config{
		Queue: r.queue, From: r.consume(t, nil), Workers: 1,
		Handle: func(context.Context, js.Msg) error {
			close(handled)
			return nil
		},
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	r.publish(t, "a")
	<-handled
	require.NoError(t, r.js.DeleteConsumer(t.Context(), stream, durable))
	err = <-ended
	require.ErrorContains(t, err, "no more messages come")
}

func TestTheBrokersWordsReachTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	from := r.consume(t, nil)
	_, err := r.js.PublishMsg(t.Context(), &nats.Msg{
		Subject: subject, Data: []byte("{}"), Header: nats.Header{js.MsgIDHeader: {"a"}, "Content-Type": {"application/json"}},
	})
	require.NoError(t, err)
	msg, err := from.Next()
	require.NoError(t, err)
	m := jetstream.MessageOf(msg, time.Second)
	require.Equal(t, "a", m.ID)
	require.Equal(t, "application/json", m.Type)
	require.EqualValues(t, 1, m.Deliveries)
	require.NoError(t, jetstream.Settle(msg, consumer.Decision{}), "an undecided delivery is given back")
	again, err := from.Next()
	require.NoError(t, err)
	require.EqualValues(t, 2, jetstream.MessageOf(again, 0).Deliveries)
	require.NoError(t, jetstream.Settle(again, consumer.Decision{Delay: time.Millisecond}))
	third, err := from.Next()
	require.NoError(t, err)
	require.NoError(t, jetstream.Settle(third, consumer.Decision{Action: consumer.Ack}))
	require.Error(t, jetstream.Settle(third, consumer.Decision{Action: consumer.Ack}), "it is settled")
}
