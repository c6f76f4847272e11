package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// reply is what a held call was answered, and when.
type reply struct {
	n   byte
	res *dedupv1.ReserveResponse
	err error
	at  time.Duration
}

// bubble is a server in virtual time, with callers held for one record.
type bubble struct {
	*bundle
	t       *testing.T
	start   time.Time
	replies chan reply
}

// inBubble runs f in virtual time, and checks that nothing is left of the lines.
func inBubble(t *testing.T, f func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{bundle: setup(t), t: t, start: time.Now(), replies: make(chan reply, 100)}
		f(b)
		synctest.Wait()
		require.Empty(t, b.waiters.lines)
		require.Zero(t, b.waiters.held())
	})
}

// hold sends a Reserve that waits, and returns once it is held or answered.
func (b *bubble) hold(ctx context.Context, req *dedupv1.ReserveRequest) {
	b.t.Helper()
	go func() {
		res, err := b.dedup.Reserve(ctx, req)
		b.replies <- reply{n: req.GetAttemptId()[0], res: res, err: err, at: time.Since(b.start)}
	}()
	synctest.Wait()
}

// pass lets virtual time go by.
func (b *bubble) pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // inside a bubble
}

// answered is how many replies there are by now.
func (b *bubble) answered() int {
	synctest.Wait()
	return len(b.replies)
}

// takesOver lets a Reserve run after an unknown outcome.
func takesOver(req *dedupv1.ReserveRequest) *dedupv1.ReserveRequest {
	req.OnUnknown = dedupv1.OnUnknown_ON_UNKNOWN_RERUN
	return req
}

func TestACompletionWakesAllWaitersAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		g := b.grant(b.t, 1)
		const n = 20
		for i := range byte(n) {
			b.hold(b.t.Context(), waiting(10+i, 20*time.Second))
		}
		require.InDelta(b.t, n, b.metric(b.t, "dedupd_waiters"), 0)
		b.pass(7 * time.Second)
		require.Zero(b.t, b.answered())
		asked := b.store.calls("Reserve")
		require.Equal(b.t, 1+2*n, asked, "nobody polls")

		_, err := b.dedup.Complete(b.t.Context(), completeReq(1, g.GetFence(), "first"))
		require.NoError(b.t, err)
		for range n {
			r := <-b.replies
			require.NoError(b.t, r.err)
			require.Equal(b.t, "first", string(r.res.GetCompleted().GetOutcome().GetResponse().GetValue()))
			require.Equal(b.t, 7*time.Second, r.at)
		}
		require.Equal(b.t, asked+n, b.store.calls("Reserve"))
	})
}

func TestAReleaseWakesTheFirstInLineOnly(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		fence := b.grant(b.t, 1).GetFence()
		for n := byte(2); n < 6; n++ {
			b.hold(b.t.Context(), waiting(n, 30*time.Second))
		}
		for n := byte(1); n < 5; n++ {
			b.pass(time.Second)
			_, err := b.dedup.Release(b.t.Context(), releaseReq(n, fence, dedupv1.Effect_EFFECT_NONE))
			require.NoError(b.t, err)
			require.Equal(b.t, 1, b.answered())
			r := <-b.replies
			require.Equal(b.t, n+1, r.n, "in the order they came")
			require.NotNil(b.t, r.res.GetGranted(), "%v", r.err)
			fence = r.res.GetGranted().GetFence()
		}
	})
}

func TestEveryCallerInLineGetsItsTurn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		const n = 60
		done := make(chan byte, n)
		for i := range byte(n) {
			go func() {
				res, err := b.dedup.Reserve(b.t.Context(), waiting(1+i, 30*time.Second))
				if err != nil || res.GetGranted() == nil {
					done <- 0
					return
				}
				_, err = b.dedup.Release(b.t.Context(), releaseReq(1+i, res.GetGranted().GetFence(), dedupv1.Effect_EFFECT_NONE))
				if err != nil {
					done <- 0
					return
				}
				done <- 1 + i
			}()
		}
		for range n {
			require.NotZero(b.t, <-done)
		}
		require.Zero(b.t, time.Since(b.start), "no turn waited for a timer")
	})
}

func TestACallerThatLeftIsNeverGranted(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"long before the release": false, "at the same time": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(b *bubble) {
				g := b.grant(b.t, 1)
				ctx, leave := context.WithCancel(b.t.Context())
				b.hold(ctx, waiting(2, 30*time.Second))
				b.hold(b.t.Context(), waiting(3, 30*time.Second))
				leave()
				if !together {
					r := <-b.replies
					require.Equal(b.t, codes.Canceled, status.Code(r.err))
					synctest.Wait()
				}
				_, err := b.dedup.Release(b.t.Context(), releaseReq(1, g.GetFence(), dedupv1.Effect_EFFECT_NONE))
				require.NoError(b.t, err)
				synctest.Wait()
				for range len(b.replies) {
					if r := <-b.replies; r.n == 3 {
						require.NotNil(b.t, r.res.GetGranted(), "%v", r.err)
					}
				}
				rec := b.store.rows[storageIdentity().RecordID()]
				require.Equal(b.t, attempt(3), rec.Attempt[:])
				require.EqualValues(b.t, 2, rec.Grants)
			})
		})
	}
}

func TestTheNextInLineIsWokenWhenTheFirstCannotTakeIt(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(b *bubble){
		"its attempt is spent": func(b *bubble) {
			_, err := b.dedup.Release(b.t.Context(), releaseReq(2, 0, dedupv1.Effect_EFFECT_NONE))
			require.NoError(b.t, err)
		},
		"the store fails it": func(b *bubble) {
			failed := false
			b.store.hook(func(_ context.Context, call string) error {
				if call == "Reserve" && !failed {
					failed = true
					return errBroken
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(b *bubble) {
				g := b.grant(b.t, 1)
				b.hold(b.t.Context(), waiting(2, 30*time.Second))
				b.hold(b.t.Context(), waiting(3, 30*time.Second))
				spoil(b)
				_, err := b.dedup.Release(b.t.Context(), releaseReq(1, g.GetFence(), dedupv1.Effect_EFFECT_NONE))
				require.NoError(b.t, err)
				require.Equal(b.t, 2, b.answered())
				for range 2 {
					if r := <-b.replies; r.n == 3 {
						require.NotNil(b.t, r.res.GetGranted(), "%v", r.err)
					} else {
						require.Error(b.t, r.err)
					}
				}
			})
		})
	}
}

func TestTheEndOfTheLeaseWakesTheFirstInLine(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		req := reserveReq(1)
		req.Lease = durationpb.New(5 * time.Second)
		_, err := b.dedup.Reserve(b.t.Context(), req)
		require.NoError(b.t, err)
		for n := byte(2); n < 5; n++ {
			next := takesOver(waiting(n, 30*time.Second))
			next.Lease = durationpb.New(5 * time.Second)
			b.hold(b.t.Context(), next)
		}
		for n := byte(2); n < 5; n++ {
			r := <-b.replies
			require.Equal(b.t, n, r.n)
			require.NotNil(b.t, r.res.GetGranted(), "%v", r.err)
			require.InDelta(b.t, float64(n-1)*5, r.at.Seconds(), 0.01, "each after the one before lapsed")
		}
	})
}

func TestWaitersOutlastALeaseThatIsExtended(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		req := reserveReq(1)
		req.Lease = durationpb.New(2 * time.Second)
		res, err := b.dedup.Reserve(b.t.Context(), req)
		require.NoError(b.t, err)
		fence := res.GetGranted().GetFence()
		b.hold(b.t.Context(), takesOver(waiting(2, 30*time.Second)))
		b.hold(b.t.Context(), waiting(3, 8500*time.Millisecond))
		for range 10 {
			b.pass(time.Second)
			_, err = b.dedup.Extend(b.t.Context(), &dedupv1.ExtendRequest{
				Identity: identity(), AttemptId: attempt(1), Fence: fence, Lease: durationpb.New(2 * time.Second),
			})
			require.NoError(b.t, err)
		}
		r := <-b.replies // its wait was over
		require.Equal(b.t, byte(3), r.n)
		left := r.res.GetInProgress().GetLeaseLeft().AsDuration()
		require.Greater(b.t, left, time.Duration(0), "of the lease as last heard of, not of the first one")
		require.LessOrEqual(b.t, left, 2*time.Second)
		require.Zero(b.t, b.answered())
		_, err = b.dedup.Complete(b.t.Context(), completeReq(1, fence, "x"))
		require.NoError(b.t, err)
		r = <-b.replies
		require.NotNil(b.t, r.res.GetCompleted())
		require.Equal(b.t, 10*time.Second, r.at)
	})
}

func TestALapseIsToldToEveryoneWhoMayNotTakeOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		b.grant(b.t, 1)
		b.pass(15 * time.Second)
		for n := byte(2); n < 5; n++ {
			b.hold(b.t.Context(), waiting(n, 30*time.Second))
		}
		for range 3 {
			r := <-b.replies
			d := requireRefused(b.t, r.err, codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
			require.NotNil(b.t, d.retry)
			require.InDelta(b.t, 30, r.at.Seconds(), 0.01)
		}
	})
}

func TestAHeldCallIsAnsweredBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		b.grant(b.t, 1)
		for n, deadline := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
			ctx, cancel := context.WithTimeout(b.t.Context(), deadline)
			defer cancel()
			b.hold(ctx, waiting(byte(2+n), 30*time.Second))
		}
		b.hold(b.t.Context(), waiting(4, 7*time.Second))
		for _, at := range []time.Duration{450 * time.Millisecond, 4900 * time.Millisecond, 7 * time.Second} {
			r := <-b.replies
			require.NoError(b.t, r.err)
			require.Equal(b.t, at, r.at)
			held := r.res.GetInProgress()
			require.Equal(b.t, 30*time.Second-at, held.GetLeaseLeft().AsDuration(), "as it stands now")
			require.Equal(b.t, at, held.GetAge().AsDuration())
			require.Equal(b.t, time.Second, held.GetRetryAfter().AsDuration())
		}
	})
}

func TestALookupWaitsWhileTheRecordIsReserved(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		look := func(wait time.Duration) chan *dedupv1.LookupResponse {
			got := make(chan *dedupv1.LookupResponse, 1)
			go func() {
				res, _ := b.dedup.Lookup(b.t.Context(), lookupReq(wait))
				got <- res
			}()
			synctest.Wait()
			return got
		}
		require.Equal(b.t, dedupv1.State_STATE_ABSENT, (<-look(time.Second)).GetRecord().GetState())
		require.Zero(b.t, time.Since(b.start), "only RESERVED is waited for")

		fence := b.grant(b.t, 1).GetFence()
		require.Equal(b.t, dedupv1.State_STATE_RESERVED, (<-look(time.Second)).GetRecord().GetState())
		released := look(20 * time.Second)
		_, err := b.dedup.Release(b.t.Context(), releaseReq(1, fence, dedupv1.Effect_EFFECT_NONE))
		require.NoError(b.t, err)
		require.Equal(b.t, dedupv1.State_STATE_RELEASED, (<-released).GetRecord().GetState())

		fence = b.grant(b.t, 2).GetFence()
		first, second := look(20*time.Second), look(20*time.Second)
		b.hold(b.t.Context(), waiting(3, 20*time.Second))
		_, err = b.dedup.Complete(b.t.Context(), completeReq(2, fence, "done"))
		require.NoError(b.t, err)
		for _, got := range []chan *dedupv1.LookupResponse{first, second} {
			require.Equal(b.t, "done", string((<-got).GetCompleted().GetOutcome().GetResponse().GetValue()))
		}
		require.Equal(b.t, 1, b.answered())
	})
}

func TestALapseEndsALookup(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		b.grant(b.t, 1)
		b.pass(10 * time.Second)
		res, err := b.dedup.Lookup(b.t.Context(), lookupReq(25*time.Second))
		require.NoError(b.t, err)
		require.Equal(b.t, dedupv1.State_STATE_UNKNOWN, res.GetRecord().GetState())
		require.InDelta(b.t, 30, time.Since(b.start).Seconds(), 0.01)
	})
}

func TestAVerdictOfAnOperatorWakesWaiters(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		g := b.grant(b.t, 1)
		_, err := b.dedup.Release(b.t.Context(), releaseReq(1, g.GetFence(), dedupv1.Effect_EFFECT_UNKNOWN))
		require.NoError(b.t, err)
		b.hold(b.t.Context(), takesOver(waiting(2, 29*time.Second)))
		require.Zero(b.t, b.answered(), "its effect may still be on its way")
		b.store.advance(time.Minute)
		_, err = b.admin.Resolve(b.t.Context(), resolveReq(b.look(b.t).GetVersion()))
		require.NoError(b.t, err)
		require.Equal(b.t, 1, b.answered())
		require.NotNil(b.t, (<-b.replies).res.GetGranted())
	})
}

func TestAnAmbiguousCompletionWakesWaitersToo(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		g := b.grant(b.t, 1)
		b.hold(b.t.Context(), waiting(2, 30*time.Second))
		b.hold(b.t.Context(), waiting(3, 30*time.Second))
		b.store.after = func(call string) error {
			if call == "Complete" {
				return errBroken
			}
			return nil
		}
		_, err := b.dedup.Complete(b.t.Context(), completeReq(1, g.GetFence(), "x"))
		require.Error(b.t, err)
		require.Equal(b.t, 2, b.answered())
		for range 2 {
			require.NotNil(b.t, (<-b.replies).res.GetCompleted())
		}
	})
}

// behind changes the record as another server would: nobody here is told.
func (b *bubble) behind(q storage.Request) storage.Answer {
	b.t.Helper()
	ans, err := b.store.apply(b.t.Context(), "behind", storageIdentity().RecordID(), q)
	require.NoError(b.t, err)
	return ans
}

func TestWaitersFindWhatAnotherServerDid(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		fence := storage.Fence(b.grant(b.t, 1).GetFence())
		b.pass(10 * time.Second)
		for n := byte(2); n < 5; n++ {
			b.hold(b.t.Context(), waiting(n, 30*time.Second))
		}
		b.behind(storage.Complete{Attempt: storage.AttemptID(attempt(1)), Fence: fence, Outcome: &storage.Outcome{}})
		for range 3 {
			r := <-b.replies
			require.NotNil(b.t, r.res.GetCompleted(), "%v", r.err)
			require.Equal(b.t, 30*time.Second, r.at, "the first finds it at the lease's end, and each wakes the next")
		}
	})
}

func TestAShorterLeaseMovesTheWakeForward(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		fence := storage.Fence(b.grant(b.t, 1).GetFence())
		b.hold(b.t.Context(), takesOver(waiting(2, 30*time.Second)))
		id := storageIdentity()
		b.behind(storage.Release{Identity: id, Attempt: storage.AttemptID(attempt(1)), Fence: fence, Effect: storage.EffectNone})
		b.behind(storage.Reserve{Identity: id, Attempt: storage.AttemptID(attempt(9)), Lease: 5 * time.Second, Fingerprint: fingerprintOf(prints("request"))})
		b.hold(b.t.Context(), takesOver(waiting(3, time.Second)))
		require.NotNil(b.t, (<-b.replies).res.GetInProgress())
		r := <-b.replies
		require.Equal(b.t, byte(2), r.n)
		require.NotNil(b.t, r.res.GetGranted(), "%v", r.err)
		require.Equal(b.t, 5*time.Second, r.at)
		b.pass(30 * time.Second)
	})
}

func TestADrainAnswersWhoIsHeldAndHoldsNobody(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *bubble) {
		g := b.grant(b.t, 1)
		b.hold(b.t.Context(), waiting(2, 30*time.Second))
		b.pass(time.Second)
		b.waiters.drain()
		r := <-b.replies
		require.NoError(b.t, r.err)
		require.NotNil(b.t, r.res.GetInProgress())
		require.Equal(b.t, time.Second, r.at)
		b.hold(b.t.Context(), waiting(3, 30*time.Second))
		require.NotNil(b.t, (<-b.replies).res.GetInProgress())
		_, err := b.dedup.Complete(b.t.Context(), completeReq(1, g.GetFence(), "x"))
		require.NoError(b.t, err)
	})
}
