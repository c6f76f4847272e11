package consumer_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
)

// mailJob is a message that carries ten recipients; the mail to the seventh fails
// so many times.
type mailJob struct {
	w     *world
	fails int
}

func (j *mailJob) send(recipient string) error {
	if recipient == "7" && j.fails > 0 {
		j.fails--
		return interceptors.NotApplied(errors.New("mailbox busy"))
	}
	j.w.effect(recipient)
	return nil
}

func recipients() (list []string) {
	for n := range 10 {
		list = append(list, strconv.Itoa(n+1))
	}
	return list
}

// H04: one key per item.
func TestABatchIsHandledItemByItem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(nil)
		job := &mailJob{w: w, fails: 3}
		carrier := message("job", 1)
		var items []consumer.Message
		for _, r := range recipients() {
			items = append(items, carrier.Item(r, []byte(r)))
		}
		kept := false
		carrier.KeepAlive, carrier.KeepAliveEvery = func(context.Context) error { kept = true; return nil }, 1
		actions := ""
		for {
			whole, decided := p.HandleBatch(t.Context(), carrier, items, func(_ context.Context, item consumer.Message) error {
				pass(10)
				return job.send(string(item.Body))
			})
			require.Len(t, decided, 10, "the later ones do not wait for the seventh")
			actions += whole.Action.String() + " "
			if whole.Action == consumer.Ack {
				break
			}
			require.Equal(t, decided[6].Delay, whole.Delay)
			pass(whole.Delay)
		}
		require.Equal(t, "nack nack nack ack ", actions)
		require.ElementsMatch(t, recipients(), w.effects(), "ten sends in all")
		require.True(t, kept)
	})
}

// H04, the counter-example: with one key for the whole job the first six are sent
// to again each time.
func TestABatchUnderOneKeySendsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		job := &mailJob{w: w, fails: 3}
		decisions := w.start(nil).deliver(t, "job", func(context.Context) error {
			for _, r := range recipients() {
				if err := job.send(r); err != nil {
					return err // NotApplied, but six were sent
				}
			}
			return nil
		})
		require.Len(t, decisions, 4)
		require.Len(t, w.effects(), 3*6+10)
	})
}

// H04, A02: the send is done, and that it is done cannot be stored.
func TestAnItemWhoseMarkIsLostIsNotSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(nil)
		p.set(func() {
			p.fault = func(method string) error {
				if method == "Complete" && p.calls["Reserve"] == 3 {
					return status.Error(codes.Unavailable, "away")
				}
				return nil
			}
		})
		carrier := message("job", 1)
		items := []consumer.Message{carrier.Item("1", nil), carrier.Item("2", nil), carrier.Item("3", nil), carrier.Item("4", nil)}
		send := func(_ context.Context, item consumer.Message) error {
			w.effect(item.ID)
			return nil
		}
		whole, decided := p.HandleBatch(t.Context(), carrier, items, send)
		require.Equal(t, consumer.Nack, whole.Action)
		require.Len(t, decided, 3, "while dedupd is away the rest is not tried")
		p.set(func() { p.fault = nil })
		pass(whole.Delay)
		whole, _ = p.HandleBatch(t.Context(), carrier, items, send)
		require.Equal(t, consumer.Ack, whole.Action)
		require.Equal(t, []string{"job:1", "job:2", "job:3", "job:4"}, w.effects())
	})
}

func TestABatchIsDoneOnceItsDeadItemsAreParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		carrier := message("job", 1)
		whole, decided := w.start(nil).HandleBatch(t.Context(), carrier, []consumer.Message{carrier.Item("", nil), carrier.Item("2", nil)},
			func(context.Context, consumer.Message) error { return nil })
		require.Equal(t, consumer.Ack, whole.Action)
		require.Equal(t, "dead_letter refused", words(decided[0]), "an item without a name is not protected")
		require.Equal(t, "ack run 1", words(decided[1]))
		require.Equal(t, []string{"refused"}, w.causes())
	})
}
