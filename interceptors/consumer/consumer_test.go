package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/interceptors/guard"
)

func TestADuplicateIsAcknowledgedWithoutASecondRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, other := w.start(nil), w.start(nil)
		handle := func(context.Context) error {
			w.effect("a")
			return nil
		}
		require.Equal(t, []string{"ack run 1"}, p.deliver(t, "a", handle))
		require.Equal(t, []string{"ack duplicate"}, p.deliver(t, "a", handle))
		require.Equal(t, []string{"ack duplicate"}, other.deliver(t, "a", handle))
		require.Equal(t, []string{"a"}, w.effects())
	})
}

func TestACopyIsKeptAliveWhileTheFirstIsHandled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, other := w.start(nil), w.start(nil)
		begun, first := make(chan struct{}), make(chan consumer.Decision)
		go func() {
			first <- p.Handle(t.Context(), message("a", 1), func(context.Context) error {
				close(begun)
				pass(4 * time.Minute) // longer than every lease
				w.effect("a")
				return nil
			})
		}()
		<-begun
		kept := 0
		m := message("a", 2)
		m.KeepAliveEvery = 10 * time.Second
		m.KeepAlive = func(context.Context) error {
			kept++
			return errors.New("the broker is away for a moment") // which only costs a delivery
		}
		d := other.Handle(t.Context(), m, func(context.Context) error {
			w.effect("twice")
			return nil
		})
		require.Equal(t, "ack duplicate", words(d))
		require.Equal(t, "ack run 1", words(<-first))
		require.InDelta(t, 24, kept, 1, "every 10 s of 4 minutes")
		require.Equal(t, []string{"a"}, w.effects())
	})
}

// A02, H02: the effect happened, and dedupd does not hear of it.
func TestNothingIsAcknowledgedBeforeItsCompletionIsDurable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(nil)
		p.set(func() {
			p.fault = func(method string) error {
				if method == "Complete" {
					return status.Error(codes.Unavailable, "read-only")
				}
				return nil
			}
		})
		handle := func(context.Context) error {
			w.effect("a")
			return nil
		}
		d := p.Handle(t.Context(), message("a", 1), handle)
		require.Equal(t, consumer.Nack, d.Action, "its answer is known here, but nowhere else")
		require.ErrorIs(t, d.Err, interceptors.ErrOutcomeUnknown)
		require.NotEqual(t, consumer.Ack, p.Handle(t.Context(), message("a", 2), handle).Action)
		p.set(func() { p.fault = nil })
		require.Equal(t, "ack duplicate", words(p.Handle(t.Context(), message("a", 3), handle)), "delivered before the copy is asked for")
		require.Equal(t, []string{"a"}, w.effects())
	})
}

// B02: a reply of dedupd that is lost on its way changes nothing.
func TestLostRepliesOfDedupdCauseNoSecondEffect(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"Reserve", "Complete", "Release", "Extend"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.start(nil)
				replies := 0
				p.set(func() {
					p.lose = func(method string) bool {
						if method == lost {
							replies++
						}
						return method == lost && replies <= 2
					}
				})
				runs := 0
				decisions := p.deliver(t, "a", func(context.Context) error {
					if runs++; runs == 1 {
						return interceptors.NotApplied(errors.New("not now"))
					}
					pass(time.Minute) // its lease is extended meanwhile
					w.effect("a")
					return nil
				})
				require.Equal(t, []string{"nack run 1", "ack run 2"}, decisions)
				require.Equal(t, []string{"a"}, w.effects())
				require.Greater(t, replies, 1, "what got no answer was sent again")
			})
		})
	}
}

// A05: the process died in its handler, and the record looks the same whether or
// not the effect happened. B13: what was never completed is never taken for done.
func TestAfterAKillTheReconcilerDecides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		applied   bool
		reconcile bool
		rerun     bool
		want      string
		effects   []string
	}{
		"the effect is there":                {applied: true, reconcile: true, want: "ack", effects: []string{"a"}},
		"the effect is not there":            {reconcile: true, want: "ack run", effects: []string{"a"}},
		"nobody can find out":                {applied: true, want: "dead_letter unknown", effects: []string{"a"}},
		"nobody can find out, and it is not": {want: "dead_letter unknown", effects: []string{}},
		"running it again is harmless":       {applied: true, rerun: true, want: "ack run", effects: []string{"a", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				settings := func(cfg *consumer.Config) {
					cfg.RerunSafe = c.rerun
					if c.reconcile {
						cfg.Basis = interceptors.Bounded
						cfg.Reconciler = func(_ context.Context, _ interceptors.Attempt, m consumer.Message) (interceptors.Verdict, error) {
							require.Equal(t, "a", m.ID)
							if len(w.effects()) > 0 {
								return consumer.Applied(), nil
							}
							return interceptors.VerdictNotSeen(), nil
						}
					}
				}
				first := w.start(settings)
				died := make(chan struct{})
				go first.Handle(t.Context(), message("a", 1), func(ctx context.Context) error {
					if c.applied {
						w.effect("a")
					}
					first.kill()
					close(died)
					<-ctx.Done() // of the lease, which it cannot extend
					return ctx.Err()
				})
				<-died
				decisions := w.start(settings).deliver(t, "a", func(context.Context) error {
					w.effect("a")
					return nil
				})
				require.Regexp(t, "^"+c.want+"( [23])?$", decisions[len(decisions)-1])
				require.Equal(t, c.effects, w.effects())
			})
		})
	}
}

// A11: a holder that stood still past its lease and goes on.
func TestAHolderThatComesTooLateDecidesByWhatIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var fences []int64
		settings := func(cfg *consumer.Config) { cfg.RerunSafe = true }
		p, other := w.start(settings), w.start(settings)
		p.set(func() {
			p.fault = func(method string) error {
				if method == "Extend" {
					return status.Error(codes.Unavailable, "it stands still")
				}
				return nil
			}
		})
		handle := func(ctx context.Context) error {
			fence, ok := interceptors.FenceFrom(ctx)
			require.True(t, ok)
			fences = append(fences, fence)
			return nil
		}
		d := p.Handle(t.Context(), message("a", 1), func(ctx context.Context) error {
			require.NoError(t, handle(ctx))
			pass(time.Minute)
			require.ErrorIs(t, context.Cause(ctx), interceptors.ErrLeaseLost)
			require.Equal(t, "ack run 2", words(other.Handle(t.Context(), message("a", 2), handle)))
			return nil
		})
		require.Equal(t, "ack duplicate run 1", words(d), "the later one's outcome is stored")
		require.Less(t, fences[0], fences[1])
	})
}

// G01, G05: runs are counted, not deliveries.
func TestAPoisonMessageIsParkedAfterItsRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(func(c *consumer.Config) { c.MaxRuns = 3 })
		runs := 0
		poison := func(context.Context) error {
			runs++
			return interceptors.NotApplied(errors.New("cannot read it"))
		}
		p.set(func() { p.fault = func(string) error { return status.Error(codes.Unavailable, "away") } })
		for n := range uint64(5) {
			require.Equal(t, "nack", words(p.Handle(t.Context(), message("a", n+1), poison)), "dedupd is away: no run")
		}
		p.set(func() { p.fault = nil })
		pass(time.Minute)
		require.Equal(t, []string{"nack run 1", "nack run 2", "dead_letter exhausted run 3"}, p.deliver(t, "a", poison))
		require.Equal(t, 3, runs)
		require.Equal(t, []string{"dead_letter exhausted run 3"}, p.deliver(t, "a", poison), "a copy is parked, not run")
		require.Equal(t, 3, runs)
		require.Equal(t, []string{"exhausted", "exhausted"}, w.causes())
		letter := w.letters[0]
		require.EqualError(t, letter.Err, "cannot read it")
		require.EqualValues(t, 3, letter.Runs)
		require.Equal(t, "order a", string(letter.Message.Body))
		require.Equal(t, "a", string(letter.Identity.GetKey()))
		require.Len(t, letter.RecordID, 32)
	})
}

func TestAMessageThatKillsItsProcessIsParkedToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		settings := func(c *consumer.Config) { c.MaxRuns, c.RerunSafe = 2, true }
		for range 2 {
			p := w.start(settings)
			require.PanicsWithValue(t, "out of memory", func() {
				p.Handle(t.Context(), message("a", 1), func(context.Context) error { panic("out of memory") }) //nolint:forbidigo // the test's own
			})
			p.kill()
			pass(time.Minute)
		}
		decisions := w.start(settings).deliver(t, "a", func(context.Context) error {
			w.effect("a third run")
			return nil
		})
		require.Equal(t, []string{"dead_letter exhausted run 2"}, decisions)
		require.Empty(t, w.effects())
	})
}

func TestAHandlersErrorSaysWhatBecomesOfItsMessage(t *testing.T) {
	t.Parallel()
	invalid := status.Error(codes.InvalidArgument, "no such card")
	for name, c := range map[string]struct {
		err   error
		rerun bool
		first string
		again string // a copy, at once
	}{
		"unknown to us":                  {err: errors.New("?"), first: "dead_letter unknown run 1", again: "nack"},
		"unknown, and it may run again":  {err: errors.New("?"), rerun: true, first: "nack run 1", again: "ack run 2"},
		"its own timeout":                {err: context.DeadlineExceeded, rerun: true, first: "nack run 1", again: "ack run 2"},
		"permanent":                      {err: invalid, first: "dead_letter permanent run 1", again: "dead_letter permanent"},
		"permanent, by a denied call":    {err: status.Error(codes.PermissionDenied, "no"), first: "dead_letter permanent run 1", again: "ack run 2"},
		"transient":                      {err: status.Error(codes.Aborted, "busy"), first: "nack run 1", again: "ack run 2"},
		"not applied":                    {err: interceptors.NotApplied(errors.New("?")), first: "nack run 1", again: "ack run 2"},
		"final":                          {err: interceptors.Final(errors.New("sold out")), first: "dead_letter final run 1", again: "dead_letter final"},
		"final, and too long to be kept": {err: interceptors.Final(status.Error(codes.Internal, strings.Repeat("x", 1<<17))), first: "dead_letter final run 1", again: "dead_letter final"},
		"said to be unknown":             {err: interceptors.OutcomeUnknown(invalid), first: "dead_letter unknown run 1", again: "nack"},
		"said to be unknown, may run":    {err: interceptors.OutcomeUnknown(invalid), rerun: true, first: "nack run 1", again: "ack run 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.start(func(cfg *consumer.Config) {
					cfg.RerunSafe = c.rerun
					cfg.MaxWait = time.Minute // past the lease, which an unknown outcome keeps
				})
				d := p.Handle(t.Context(), message("a", 1), func(context.Context) error { return c.err })
				require.Equal(t, c.first, words(d))
				require.Equal(t, c.err, d.Err)
				d = p.Handle(t.Context(), message("a", 2), func(context.Context) error { return nil })
				require.Equal(t, c.again, words(d))
			})
		})
	}
}

func TestAMessageThatMayNotRunIsParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(nil)
		done := func(context.Context) error { return nil }
		require.Equal(t, "ack run 1", words(p.Handle(t.Context(), message("a", 1), done)))
		other := message("a", 1)
		other.Body = []byte("another order")
		for _, m := range []consumer.Message{other, {Body: []byte("no id")}, {ID: " ", Body: []byte("no id either")}, {ID: strings.Repeat("k", 256)}} {
			d := p.Handle(t.Context(), m, func(context.Context) error {
				require.Fail(t, "it must not run")
				return nil
			})
			require.Equal(t, "dead_letter refused", words(d))
			require.Error(t, d.Err)
		}
		require.Equal(t, guard.RecordID(&dedupv1.Identity{Namespace: "test", Operation: "consume orders", Key: []byte("a")}), w.letters[0].Refused,
			"whose key it is, and its letter under a record of its own")
		for _, l := range w.letters {
			require.Regexp(t, "^sha256:[0-9a-f]{64}$", string(l.Identity.GetKey()), "a key that a record can have")
		}
	})
}

func TestAMessageStaysInTheQueueUntilItIsParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		failed := 0
		p := w.start(func(c *consumer.Config) { c.Observer.ParkFailed = func(string) { failed++ } })
		w.noPark = status.Error(codes.ResourceExhausted, "full")
		final := func(context.Context) error { return interceptors.Final(errors.New("sold out")) }
		d := p.Handle(t.Context(), message("a", 1), final)
		require.Equal(t, "nack run 1", words(d))
		require.Positive(t, d.Delay)
		require.ErrorIs(t, d.Err, w.noPark)
		require.Equal(t, 1, failed)
		w.noPark = nil
		require.Equal(t, []string{"dead_letter final"}, p.deliver(t, "a", final))
	})
}

func TestKeysAreMadeOfBusinessFacts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(func(c *consumer.Config) {
			c.Key = func(m consumer.Message) (string, error) { return interceptors.Key("order", m.Headers["order"][0]) }
			c.Caller = func(m consumer.Message) (string, error) { return m.Headers["shop"][0], nil }
			c.Request = func(m consumer.Message) (proto.Message, error) {
				v := &structpb.Struct{}
				return v, v.UnmarshalJSON(m.Body)
			}
		})
		send := func(id, shop, body string) string {
			return words(p.Handle(t.Context(), consumer.Message{
				ID: id, Body: []byte(body), Headers: map[string][]string{"order": {"1"}, "shop": {shop}},
			}, func(context.Context) error { return nil }))
		}
		require.Equal(t, "ack run 1", send("x", "north", `{"a":1,"b":2}`))
		require.Equal(t, "ack duplicate", send("y", "north", `{"b":2, "a":1}`), "one intent, sent twice")
		require.Equal(t, "ack run 1", send("x", "south", `{"a":1,"b":2}`), "another's key")
		require.Equal(t, "dead_letter refused", send("x", "north", `{"a":2}`))
		require.Equal(t, "dead_letter refused", send("x", "north", `not JSON`))
	})
}

func TestAStoppingConsumerGivesMessagesBackAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(nil)
		none := func(context.Context) error {
			require.Fail(t, "it must not run")
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		d := p.Handle(ctx, message("a", 1), func(running context.Context) error {
			cancel()
			require.NoError(t, running.Err(), "what runs is not cut off")
			return nil
		})
		require.Equal(t, "ack run 1", words(d))
		d = p.Handle(ctx, message("b", 1), none)
		require.Equal(t, "nack", words(d))
		require.Zero(t, d.Delay, "another process may take it")
		p.Close()
		require.Equal(t, "nack", words(p.Handle(t.Context(), message("c", 1), none)))
	})
}

func TestEveryDeliveryGetsTheFirstResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(nil)
		give := func(s string) func(context.Context) (proto.Message, error) {
			return func(context.Context) (proto.Message, error) { return wrapperspb.String(s), nil }
		}
		d := p.HandleResult(t.Context(), message("a", 1), give("first"))
		require.Equal(t, "ack run 1", words(d))
		d = p.HandleResult(t.Context(), message("a", 2), give("second"))
		require.Equal(t, "ack duplicate", words(d))
		require.True(t, proto.Equal(wrapperspb.String("first"), d.Result))

		long := strings.Repeat("x", 2<<20)
		d = p.HandleResult(t.Context(), message("b", 1), give(long))
		require.Equal(t, "ack run 1", words(d))
		require.True(t, proto.Equal(wrapperspb.String(long), d.Result), "the first one has it in full")
		require.Equal(t, "dead_letter result_lost", words(p.HandleResult(t.Context(), message("b", 2), give(long))))
		require.Equal(t, "ack duplicate", words(p.Handle(t.Context(), message("b", 3), nil)), "nobody goes on with it")
	})
}

// The work goes on in another process; the message waits for that.
func TestAMessageWhoseWorkWasHandedOverStaysInTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(func(c *consumer.Config) { c.MaxWait = time.Second })
		var token string
		d := p.Handle(t.Context(), message("a", 1), func(ctx context.Context) (err error) {
			token, err = guard.Handoff(ctx, time.Hour)
			return err
		})
		require.Equal(t, "nack run 1", words(d), "accepted is not done")
		again := func(context.Context) error {
			require.Fail(t, "it must not run")
			return nil
		}
		require.Equal(t, "nack", words(p.Handle(t.Context(), message("a", 2), again)))
		e, err := guard.New(guard.Config{Dedup: dedupv1.NewDedupServiceClient(w.dedupd.Conn()), Namespace: "test"})
		require.NoError(t, err)
		defer e.Close()
		handed, err := e.Resume(token)
		require.NoError(t, err)
		_, err = handed.Complete(t.Context(), &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{}}})
		require.NoError(t, err)
		require.Equal(t, "ack duplicate", words(p.Handle(t.Context(), message("a", 3), again)))
	})
}

// What an inbox says of its run is dedupd's own word.
func TestAnInboxSettlesWhatItsHandlersLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(func(c *consumer.Config) {
			c.Inbox = func(context.Context, guard.Attempt) (guard.Verdict, error) {
				return guard.Applied(&dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{}}}), nil
			}
		})
		require.Equal(t, []string{"nack run 1", "ack"}, p.deliver(t, "a", func(context.Context) error { return errors.New("cut off") }))
		reused := func(ctx context.Context) error {
			return guard.RefuseRun(ctx, dedupv1.Reason_REASON_KEY_REUSED, 0, nil)
		}
		require.Equal(t, []string{"dead_letter refused run 1"}, p.deliver(t, "b", reused))
	})
}

func TestAConsumerIsNotBuiltWithHolesInIt(t *testing.T) {
	t.Parallel()
	_, err := consumer.New(consumer.Config{Basis: interceptors.Bounded, Lease: time.Hour, MaxRuns: -1, MaxRun: -1, RetryBase: time.Minute, RetryCap: time.Second})
	for _, says := range []string{"name the operation", "who keeps dead letters", "a reconciler names", "lease is 1h0m0s", "at least one run", "must not be negative", "backoff cap"} {
		require.ErrorContains(t, err, says)
	}
	w := &world{}
	_, err = consumer.New(consumer.Config{Operation: "o", DeadLetters: w, Namespace: "n", Retention: 401 * 24 * time.Hour})
	require.ErrorContains(t, err, "up to 400 days", "every outcome would be refused")
	_, err = consumer.New(consumer.Config{Operation: "o", DeadLetters: w, Namespace: "n"})
	require.ErrorContains(t, err, "client of dedupd")
}
