package guard_test

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// handOver runs work that hands its grant over, and returns the token.
func (w *world) handOver(t *testing.T, c guard.Call, lease time.Duration) string {
	t.Helper()
	var token string
	res, err := w.engine.Do(t.Context(), c, func(ctx context.Context, _ guard.Attempt) guard.Ending {
		var err error
		token, err = guard.Handoff(ctx, lease)
		require.NoError(t, err)
		return guard.Ending{Outcome: answerOf("accepted")}
	})
	requireOwn(t, res, err)
	require.True(t, res.HandedOver)
	return token
}

func resume(t *testing.T, e *guard.Engine, token string) *guard.Handed {
	t.Helper()
	g, err := e.Resume(token)
	require.NoError(t, err)
	return g
}

func TestWorkThatIsHandedOverIsFinishedByAnotherProcess(t *testing.T) { // A05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		token := w.handOver(t, call(), 24*time.Hour)
		_, worker := w.join(t, guard.Observer{})

		pass(23 * time.Hour)
		var e effect
		atOnce := call()
		atOnce.RefuseAtOnce = true
		_, err := w.engine.Do(t.Context(), atOnce, e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_IN_PROGRESS, false)
		var busy *guard.RefusalError
		require.ErrorAs(t, err, &busy)
		require.Equal(t, 23*time.Hour, busy.Age)

		g := resume(t, worker, token)
		require.Equal(t, call().Operation, g.Operation())
		require.Positive(t, g.Attempt().Fence)
		left, err := g.Extend(t.Context(), 2*time.Hour)
		require.NoError(t, err)
		require.Equal(t, 2*time.Hour, left)
		pass(90 * time.Minute)
		res, err := g.Complete(t.Context(), answerOf("done"))
		requireOwn(t, res, err)
		require.NotNil(t, res.Ends)

		res, err = w.engine.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
		require.Zero(t, e.count())
	})
}

func TestARepeatThatWaitsGetsTheAnswerOfWhoResumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := resume(t, w.engine, w.handOver(t, call(), 0))
		require.Equal(t, guard.DefaultHandedLease, w.lookup(t, call()).GetLeaseLeft().AsDuration())
		time.AfterFunc(3*time.Second, func() { _, _ = g.Complete(t.Context(), answerOf("done")) })
		var e effect
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
		require.Zero(t, e.count())
	})
}

func TestAReleasedHandOverRunsAgainAndItsTokenIsStale(t *testing.T) { // A11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := resume(t, w.engine, w.handOver(t, call(), 0))
		require.NoError(t, g.Release(t.Context(), guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE}))
		var e effect
		res, err := w.engine.Do(t.Context(), call(), e.run)
		requireOwn(t, res, err)
		require.Equal(t, 1, e.count())

		_, err = g.Extend(t.Context(), time.Minute)
		requireRefused(t, err, dedupv1.Reason_REASON_STALE_HOLDER, false)
		requireRefused(t, g.Release(t.Context(), guard.Ending{}), dedupv1.Reason_REASON_STALE_HOLDER, false)
		res, err = g.Complete(t.Context(), answerOf("too late"))
		requireStored(t, res, err, "done")
	})
}

func TestATokenThatIsResumedTwiceHasOneOutcome(t *testing.T) { // A11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		token := w.handOver(t, call(), 0)
		_, other := w.join(t, guard.Observer{})
		first, second := resume(t, w.engine, token), resume(t, other, token)
		require.Equal(t, first.MessageKey(), second.MessageKey())
		res, err := first.Complete(t.Context(), answerOf("done"))
		requireOwn(t, res, err)
		res, err = second.Complete(t.Context(), answerOf("done"))
		requireOwn(t, res, err)
		res, err = second.Complete(t.Context(), answerOf("something else"))
		requireStored(t, res, err, "done")
	})
}

func TestALapsedHandOverIsUnknownAndItsHolderMayStillComplete(t *testing.T) { // A05, A11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := resume(t, w.engine, w.handOver(t, call(), 2*time.Minute))
		pass(2*time.Minute + 1)
		var e effect
		_, err := w.engine.Do(t.Context(), call(), e.run)
		requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true)
		_, err = g.Extend(t.Context(), time.Minute)
		requireRefused(t, err, dedupv1.Reason_REASON_STALE_HOLDER, false)
		res, err := g.Complete(t.Context(), answerOf("done"))
		requireOwn(t, res, err)
		res, err = w.engine.Do(t.Context(), call(), e.run)
		requireStored(t, res, err, "done")
		require.Zero(t, e.count())
	})
}

func TestALapsedHandOverThatWasTakenOverIsShutOut(t *testing.T) { // A11
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		superseded := 0
		_, worker := w.join(t, guard.Observer{Superseded: func(string) { superseded++ }})
		c := reconciling(dedupv1.Basis_BASIS_FENCED, guard.NotApplied(), nil)
		g := resume(t, worker, w.handOver(t, c, time.Minute))
		pass(time.Minute + 1)
		var e effect
		res, err := w.engine.Do(t.Context(), c, e.run)
		requireOwn(t, res, err)
		res, err = g.Complete(t.Context(), answerOf("another"))
		requireStored(t, res, err, "done")
		require.Equal(t, 1, superseded)
		require.Equal(t, 1, e.count())
	})
}

func TestHowARunEndsAfterItsHandOverSettlesNothing(t *testing.T) {
	t.Parallel()
	ends := map[string]func() guard.Ending{
		"an error":          func() guard.Ending { return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE} },
		"an outcome unsure": func() guard.Ending { return guard.Ending{} },
		"an error to store": func() guard.Ending {
			return guard.Ending{Outcome: &dedupv1.Outcome{Status: []byte{8, 3}}}
		},
		"a panic": func() guard.Ending { panic(errors.New("of the handler")) }, //nolint:forbidigo // what is tested
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var token string
				var err error
				func() {
					defer func() { _ = recover() }()
					_, err = w.engine.Do(t.Context(), call(), func(ctx context.Context, _ guard.Attempt) guard.Ending {
						token, _ = guard.Handoff(ctx, 0)
						pass(time.Second)
						return end()
					})
					requireRefused(t, err, dedupv1.Reason_REASON_IN_PROGRESS, false)
				}()
				require.Equal(t, dedupv1.State_STATE_RESERVED, w.state(t, call()))
				res, err := resume(t, w.engine, token).Complete(t.Context(), answerOf("done"))
				requireOwn(t, res, err)
			})
		})
	}
}

func TestAHandOverThatDedupdDoesNotAcknowledgeIsNone(t *testing.T) { // B02
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.on("Extend", always(fault{err: errCut}))
		res, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, _ guard.Attempt) guard.Ending {
			token, err := guard.Handoff(ctx, 0)
			require.ErrorIs(t, err, guard.ErrNotHandedOver)
			require.Empty(t, token)
			return guard.Ending{Outcome: answerOf("done by itself")}
		})
		requireOwn(t, res, err)
		require.False(t, res.HandedOver)
		require.Equal(t, dedupv1.State_STATE_COMPLETED, w.state(t, call()))

		w.on("Extend", firstly(1, fault{lost: true}))
		c := call()
		c.Key = []byte("order 2")
		require.NotEmpty(t, w.handOver(t, c, time.Hour), "a lost reply is asked for again")
	})
}

func TestAHandOverIsForRunningGrantsAndSensibleLeases(t *testing.T) {
	t.Parallel()
	_, err := guard.Handoff(t.Context(), 0)
	require.ErrorIs(t, err, guard.ErrNoGrant)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, _ guard.Attempt) guard.Ending {
			for _, lease := range []time.Duration{-1, time.Millisecond, guard.MaxHandedLease + 1} {
				_, err := guard.Handoff(ctx, lease)
				require.Error(t, err)
			}
			return guard.Ending{Outcome: answerOf("done")}
		})
		require.NoError(t, err)
		c := call()
		c.Key, c.Basis = []byte("order 3"), dedupv1.Basis_BASIS_FENCED
		w.crash(t, c)
		pass(time.Minute)
		c.Reconciler = func(ctx context.Context, _ guard.Attempt) (guard.Verdict, error) {
			_, err := guard.Handoff(ctx, 0)
			require.ErrorIs(t, err, guard.ErrNoGrant, "it has not begun")
			return guard.NotApplied(), nil
		}
		var e effect
		res, err := w.engine.Do(t.Context(), c, e.run)
		requireOwn(t, res, err)
	})
}

func TestATokenOfNobodyIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := call()
		c.Key, c.Caller = []byte(strings.Repeat("k", 255)), []byte(strings.Repeat("c", 255))
		c.Fingerprints = nil
		for v := range uint32(4) {
			c.Fingerprints = append(c.Fingerprints, &dedupv1.Fingerprint{
				Version: v + 1, Digest: make([]byte, 64), ClientDigest: make([]byte, 64), UnknownFields: true,
			})
		}
		token := w.handOver(t, c, 0)
		require.LessOrEqual(t, len(token), guard.MaxToken)
		require.Regexp(t, `^dh1\.[A-Za-z0-9_-]+$`, token)
		resume(t, w.engine, token)

		_, body, _ := strings.Cut(token, ".")
		raw, err := base64.RawURLEncoding.DecodeString(body)
		require.NoError(t, err)
		raw[9] ^= 1
		for name, bad := range map[string]string{
			"empty": "", "another word": "order 4471", "no body": "dh1.", "no base64": "dh1.%%%", "short": "dh1.AAAA",
			"cut": token[:len(token)-1], "altered": "dh1." + base64.RawURLEncoding.EncodeToString(raw),
			"longer": token + "A", "huge": "dh1." + strings.Repeat("A", 1<<20), "of a later version": "dh2." + body,
		} {
			_, err := w.engine.Resume(bad)
			require.ErrorIs(t, err, guard.ErrToken, name)
		}
		stranger, err := guard.New(guard.Config{Dedup: dedupv1.NewDedupServiceClient(w.dedupd.Conn()), Namespace: "other"})
		require.NoError(t, err)
		defer stranger.Close()
		_, err = stranger.Resume(token)
		require.ErrorIs(t, err, guard.ErrToken)
	})
}
