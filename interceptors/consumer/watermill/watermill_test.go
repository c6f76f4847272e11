package watermill_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/interceptors/consumer/watermill"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drawer keeps dead letters.
type drawer struct {
	mu      sync.Mutex
	letters []consumer.Letter
}

func (d *drawer) Park(_ context.Context, l consumer.Letter) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.letters = append(d.letters, l)
	return nil
}

// queue is a consumer with a dedupd of its own; every test runs it in a synctest
// bubble.
func queue(t *testing.T, how func(*consumer.Config)) (*consumer.Consumer, *drawer) {
	t.Helper()
	store, err := embedded.OpenMemory(embedded.Options{CacheBytes: 1 << 20, MemtableBytes: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	dedupd, err := server.New(server.Config{Store: store})
	require.NoError(t, err)
	dead := &drawer{}
	c := consumer.Config{
		Dedup: dedupv1.NewDedupServiceClient(dedupd.Conn()), Namespace: "test", Operation: "consume orders", DeadLetters: dead,
	}
	if how != nil {
		how(&c)
	}
	q, err := consumer.New(c)
	require.NoError(t, err)
	t.Cleanup(q.Close)
	return q, dead
}

func order(id string) *message.Message {
	m := message.NewMessage(id, message.Payload("order "+id))
	m.Metadata.Set("shop", "north")
	return m
}

func TestADuplicateProducesWhatTheFirstRunDid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, _ := queue(t, nil)
		runs := 0
		h := watermill.Middleware(q)(func(msg *message.Message) ([]*message.Message, error) {
			runs++
			fence, ok := interceptors.FenceFrom(msg.Context())
			require.True(t, ok, "the run's context is the message's")
			require.Positive(t, fence)
			shipped := message.NewMessage(wm.NewUUID(), message.Payload("shipped\x00\xff"))
			shipped.Metadata.Set("shop", msg.Metadata.Get("shop"))
			return []*message.Message{shipped, message.NewMessage(wm.NewUUID(), nil)}, nil
		})
		first, err := h(order("1"))
		require.NoError(t, err)
		require.Len(t, first, 2)
		msg := order("1")
		ctx := msg.Context()
		again, err := h(msg)
		require.NoError(t, err)
		require.Equal(t, ctx, msg.Context(), "it is given back as it came")
		require.Len(t, again, 2)
		for i := range first {
			require.True(t, first[i].Equals(again[i]), "under the same UUIDs")
		}
		require.Equal(t, 1, runs)
	})
}

func TestAFailedMessageIsHeldForItsDelayAndNacked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, dead := queue(t, func(c *consumer.Config) { c.MaxRuns = 2 })
		busy := interceptors.NotApplied(errors.New("busy"))
		h := watermill.Middleware(q)(func(*message.Message) ([]*message.Message, error) { return nil, busy })
		begun := time.Now()
		_, err := h(order("1"))
		require.Equal(t, busy, err)
		require.Positive(t, time.Since(begun))
		produced, err := h(order("1"))
		require.NoError(t, err, "it is parked, so the router acknowledges")
		require.Empty(t, produced)
		require.Len(t, dead.letters, 1)
		require.Equal(t, "order 1", string(dead.letters[0].Message.Body))
		require.Equal(t, []string{"north"}, dead.letters[0].Message.Headers["shop"])

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		msg := order("2")
		msg.SetContext(gone)
		_, err = h(msg)
		require.ErrorContains(t, err, "canceled")
	})
}

// The reconciler finds what an earlier run produced.
func TestAReconcilerGivesTheResultOfTheRunThatDied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shipped := message.NewMessage("s", message.Payload("shipped"))
		q, _ := queue(t, func(c *consumer.Config) {
			c.Basis = interceptors.Bounded
			c.Reconciler = func(_ context.Context, _ interceptors.Attempt, m consumer.Message) (interceptors.Verdict, error) {
				if m.ID == "2" {
					return consumer.Applied(), nil
				}
				return interceptors.VerdictApplied(watermill.Result(shipped)), nil
			}
		})
		h := watermill.Middleware(q)(func(*message.Message) ([]*message.Message, error) {
			return nil, interceptors.OutcomeUnknown(errors.New("cut off"))
		})
		for id, want := range map[string]int{"1": 1, "2": 0} {
			_, err := h(order(id))
			require.Error(t, err)
			produced, err := h(order(id))
			require.NoError(t, err)
			require.Len(t, produced, want)
		}
	})
}

// With a real router: messages are delivered again until they are handled, and
// what they produce is published once for each message.
func TestARouterHandlesEachMessageOnce(t *testing.T) {
	t.Parallel()
	q, _ := queue(t, func(c *consumer.Config) { c.RetryBase = time.Millisecond })
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, wm.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, wm.NopLogger{})
	require.NoError(t, err)
	var mu sync.Mutex
	runs := map[string]int{}
	router.AddHandler("ship", "orders", pubsub, "shipped", pubsub, func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		if runs[msg.UUID]++; runs[msg.UUID] == 1 {
			return nil, interceptors.NotApplied(errors.New("busy"))
		}
		return []*message.Message{message.NewMessage("shipped "+msg.UUID, nil)}, nil
	}).AddMiddleware(watermill.Middleware(q))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()
	shipped, err := pubsub.Subscribe(t.Context(), "shipped")
	require.NoError(t, err)
	for _, id := range []string{"1", "2", "1", "3", "2"} {
		require.NoError(t, pubsub.Publish("orders", order(id)))
	}
	got := map[string]int{}
	for range 5 {
		msg := <-shipped
		got[msg.UUID]++
		msg.Ack()
	}
	require.Equal(t, map[string]int{"shipped 1": 2, "shipped 2": 2, "shipped 3": 1}, got, "copies have their original's UUID")
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.NoError(t, pubsub.Close())
	require.Equal(t, map[string]int{"1": 2, "2": 2, "3": 2}, runs)
}
