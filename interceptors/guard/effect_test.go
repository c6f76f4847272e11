package guard_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// Section 3: with dedupd away after the run, an answer that the effect's own resource
// keeps is given; every other one under RECONCILE is withheld.
func TestAnAnswerThatIsKeptWithItsEffectIsGivenThoughDedupdIsAway(t *testing.T) {
	t.Parallel()
	const inbox, fenced = dedupv1.Basis_BASIS_INBOX, dedupv1.Basis_BASIS_FENCED
	for name, c := range map[string]struct {
		basis  dedupv1.Basis
		kept   string
		shared bool
		given  bool
	}{
		"kept":                          {basis: inbox, kept: "done", given: true},
		"another one is kept":           {basis: inbox, kept: "other"},
		"nothing is kept":               {basis: inbox},
		"others may run again":          {basis: inbox, kept: "done", shared: true},
		"the reconciler may not see it": {basis: fenced, kept: "done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.on("Complete", always(fault{err: errCut}))
				call := reconciling(c.basis, guard.StillUnknown(), nil)
				call.SharedWithRerun = c.shared
				res, err := w.engine.Do(t.Context(), call, func(ctx context.Context, _ guard.Attempt) guard.Ending {
					if c.kept != "" {
						guard.KeptWithEffect(ctx, answerOf(c.kept))
					}
					require.Equal(t, c.kept != "", guard.IsKeptWithEffect(ctx))
					return guard.Ending{Outcome: answerOf("done")}
				})
				if c.given {
					requireOwn(t, res, err)
				} else {
					requireRefused(t, err, dedupv1.Reason_REASON_STORE_UNAVAILABLE, true)
				}
			})
		})
	}
}

func TestARunKnowsItsGrantAndCanBeRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, cause := newWorld(t), errors.New("the resource's own")
		_, err := w.engine.Do(t.Context(), call(), func(ctx context.Context, told guard.Attempt) guard.Ending {
			a, ok := guard.AttemptFrom(ctx)
			require.True(t, ok)
			require.Equal(t, told, a)
			require.True(t, guard.SameRequest(call().Fingerprints, a.Fingerprints))
			refusal := guard.RefuseRun(ctx, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, time.Second, cause)
			require.ErrorIs(t, refusal, cause)
			require.ErrorIs(t, refusal, guard.ErrOutcomeUnknown)
			require.Equal(t, told.RecordID, refusal.RecordID)
			return guard.Ending{Outcome: answerOf("done")}
		})
		require.NoError(t, err)
	})
	_, ok := guard.AttemptFrom(t.Context())
	require.False(t, ok)
	require.Nil(t, guard.RefuseRun(t.Context(), dedupv1.Reason_REASON_KEY_REUSED, 0, nil))
	guard.KeptWithEffect(t.Context(), answerOf("done"))
	require.False(t, guard.IsKeptWithEffect(t.Context()))
}

// C02: under the highest version that both have; client digests count only where a
// side saw fields that its build does not know.
func TestRequestsAreComparedByDedupdsOwnRule(t *testing.T) {
	t.Parallel()
	f := func(version uint32, digest, client string, unknown bool) []*dedupv1.Fingerprint {
		return []*dedupv1.Fingerprint{{Version: version, Digest: []byte(digest), ClientDigest: []byte(client), UnknownFields: unknown}}
	}
	both := append(f(1, "a", "", false), f(2, "b", "", false)...)
	require.False(t, guard.SameRequest(both, append(f(1, "a", "", false), f(2, "x", "", false)...)), "version 2 decides")
	require.True(t, guard.SameRequest(both, f(1, "a", "", false)))
	require.True(t, guard.SameRequest(f(1, "a", "c", true), f(1, "b", "c", false)))
	require.False(t, guard.SameRequest(f(1, "a", "c", false), f(1, "b", "c", false)))
	require.False(t, guard.SameRequest(f(1, "a", "", true), f(1, "b", "", true)))
}

// A run that stood still gives the later one's answer, not an error of its own that
// its caller would take for the last word.
func TestARunThatWasOvertakenDoesNotGiveItsOwnError(t *testing.T) {
	t.Parallel()
	for name, later := range map[string]guard.Ending{
		"the later one completed":   {Outcome: answerOf("later")},
		"the later one cannot tell": {Effect: dedupv1.Effect_EFFECT_UNKNOWN},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				call := reconciling(dedupv1.Basis_BASIS_INBOX, guard.NotApplied(), nil)
				w.on("Extend", always(fault{err: errCut}))
				_, other := w.join(t, guard.Observer{})
				res, err := w.engine.Do(t.Context(), call, func(ctx context.Context, _ guard.Attempt) guard.Ending {
					<-ctx.Done()
					pass(time.Minute)
					_, err := other.Do(t.Context(), call, func(context.Context, guard.Attempt) guard.Ending { return later })
					require.NoError(t, err)
					return guard.Ending{Effect: dedupv1.Effect_EFFECT_NONE}
				})
				if later.Outcome != nil {
					requireStored(t, res, err, "later")
				} else {
					require.Positive(t, requireRefused(t, err, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true))
				}
			})
		})
	}
}
