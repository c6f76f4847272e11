package nethttp_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
)

func TestAPanicLeavesTheOutcomeUnknownAndGoesOn(t *testing.T) { // A04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			rw.WriteHeader(http.StatusCreated)
			panic(http.ErrAbortHandler) //nolint:forbidigo // what is tested
		}
		h := w.wrap(t)
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { send(t.Context(), h, order("a")) })
		unknown := send(t.Context(), h, order("a"))
		p := requireProblem(t, unknown, http.StatusConflict, "outcome-unknown")
		require.Equal(t, "OUTCOME_UNKNOWN", p.Reason)
		require.NotEmpty(t, unknown.Header().Get("Retry-After"))
		require.Equal(t, dedupv1.State_STATE_UNKNOWN, w.lookup(t, orders, "a").GetState())
		pass(10 * time.Minute)
		unknown = send(t.Context(), h, order("a"))
		requireProblem(t, unknown, http.StatusConflict, "outcome-unknown")
		require.Empty(t, unknown.Header().Get("Retry-After"), "waiting does not help any more")
		require.Equal(t, 1, w.count())
	})
}

func TestWhatAStatusMeansForTheKey(t *testing.T) { // A04
	t.Parallel()
	type after string
	const stored, again, kept, unknown after = "stored", "runs again", "kept a while", "unknown"
	means := map[int]after{
		200: stored, 201: stored, 204: stored, 302: stored, 304: stored,
		400: kept, 401: again, 403: again, 404: kept, 405: kept, 408: again, 409: kept, 410: kept, 412: kept, 413: kept,
		415: kept, 416: kept, 418: kept, 422: kept, 425: again, 428: kept, 429: again, 499: unknown,
		500: unknown, 501: kept, 502: unknown, 503: again, 504: unknown, 507: unknown, 599: unknown,
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h := w.wrap(t)
		for httpStatus, want := range means {
			w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
				rw.WriteHeader(httpStatus)
				_, _ = io.WriteString(rw, "why")
			}
			key, before := strconv.Itoa(httpStatus), w.count()
			first := send(t.Context(), h, order(key))
			require.Equal(t, httpStatus, first.Code)
			repeat := send(t.Context(), h, order(key))
			pass(15 * time.Second)
			late := send(t.Context(), h, order(key))
			runs := w.count() - before
			switch want {
			case stored:
				requireReplayed(t, first, repeat)
				requireReplayed(t, first, late)
				require.Equal(t, 1, runs, key)
			case kept:
				requireReplayed(t, first, repeat)
				require.Equal(t, 2, runs, "a corrected request is not blocked for long after "+key)
			case again:
				require.Equal(t, 3, runs, key)
			case unknown:
				requireProblem(t, repeat, http.StatusConflict, "outcome-unknown")
				require.Equal(t, 1, runs, key)
			}
		}
	})
}

func TestWhatAHandlerSaysOutweighsItsStatus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		say    func(context.Context)
		route  nethttp.Route
		state  dedupv1.State
	}{
		"not applied": {500, nethttp.SayNotApplied, nethttp.Route{}, dedupv1.State_STATE_RELEASED},
		"not applied, and the errors are unknown else": {422, nethttp.SayNotApplied, nethttp.Route{
			Policy: &dedupv1.MethodPolicy{Errors: dedupv1.ErrorRule_ERROR_RULE_UNKNOWN},
		}, dedupv1.State_STATE_RELEASED},
		"errors are unknown": {422, func(context.Context) {}, nethttp.Route{
			Policy: &dedupv1.MethodPolicy{Errors: dedupv1.ErrorRule_ERROR_RULE_UNKNOWN},
		}, dedupv1.State_STATE_UNKNOWN},
		"unknown":              {422, nethttp.SayOutcomeUnknown, nethttp.Route{}, dedupv1.State_STATE_UNKNOWN},
		"final":                {422, nethttp.SayFinal, nethttp.Route{}, dedupv1.State_STATE_COMPLETED},
		"an effect was marked": {422, guard.MarkEffect, nethttp.Route{}, dedupv1.State_STATE_UNKNOWN},
		"an effect, but not applied": {422, func(ctx context.Context) {
			guard.MarkEffect(ctx)
			nethttp.SayNotApplied(ctx)
		}, nethttp.Route{}, dedupv1.State_STATE_RELEASED},
		"nothing said of a success": {201, nethttp.SayNotApplied, nethttp.Route{}, dedupv1.State_STATE_COMPLETED},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) {
					c.say(r.Context())
					rw.WriteHeader(c.status)
				}
				reply := send(t.Context(), w.wrap(t, nethttp.WithOthers(c.route)), order("a"))
				require.Equal(t, c.status, reply.Code)
				require.Equal(t, c.state.String(), w.lookup(t, orders, "a").GetState().String())
				require.Equal(t, map[dedupv1.State]string{
					dedupv1.State_STATE_RELEASED: "none", dedupv1.State_STATE_UNKNOWN: "unknown",
				}[c.state], reply.Header().Get(nethttp.HeaderEffect), "its caller is told")
			})
		})
	}
}

func TestAResponseThatCannotBeStoredIsGivenOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			_, _ = io.WriteString(rw, strings.Repeat("x", 1<<20))
		}
		h := w.wrap(t)
		require.Len(t, send(t.Context(), h, order("a")).Body.String(), 1<<20)
		p := requireProblem(t, send(t.Context(), h, order("a")), http.StatusGone, "outcome-not-stored")
		require.Equal(t, "OUTCOME_NOT_STORED", p.Reason)
		require.Equal(t, 1, w.count())
	})
}

func TestAReconcilerSettlesWhatALostRunDid(t *testing.T) { // A05
	t.Parallel()
	for name, applied := range map[string]bool{"the effect is there": true, "it is not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.handle = func(rw http.ResponseWriter, _ *http.Request, n int) {
					if n == 1 {
						panic(http.ErrAbortHandler) //nolint:forbidigo // stands for a crash
					}
					_, _ = io.WriteString(rw, "run 2")
				}
				route := nethttp.Route{Basis: dedupv1.Basis_BASIS_FENCED, Reconciler: func(r *http.Request) guard.Reconciler {
					return func(_ context.Context, a guard.Attempt) (guard.Verdict, error) {
						body, err := io.ReadAll(r.Body)
						if err != nil || !applied {
							return guard.NotApplied(), err
						}
						o, err := (&nethttp.Response{Status: http.StatusAccepted, Body: body}).Outcome(a.MaxOutcomeBytes)
						return guard.Applied(o), err
					}
				}}
				h := w.wrap(t, nethttp.WithOthers(route))
				require.Panics(t, func() { send(t.Context(), h, order("a")) })
				retry := send(t.Context(), h, order("a"))
				require.Empty(t, retry.Header().Get(nethttp.HeaderReplayed))
				if applied {
					require.Equal(t, http.StatusAccepted, retry.Code)
					require.Equal(t, order("").body, retry.Body.String())
					require.Equal(t, 1, w.count())
				} else {
					require.Equal(t, "run 2", retry.Body.String())
					require.Equal(t, 2, w.count())
				}
				require.Equal(t, "true", send(t.Context(), h, order("a")).Header().Get(nethttp.HeaderReplayed))
			})
		})
	}
}

func TestWorkHandedOverIsAcceptedThenInProgressThenDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var token string
		w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) {
			var err error
			token, err = guard.Handoff(r.Context(), time.Hour)
			require.NoError(t, err)
			rw.WriteHeader(http.StatusAccepted)
		}
		h := w.wrap(t)
		require.Equal(t, http.StatusAccepted, send(t.Context(), h, order("a")).Code)
		pass(time.Minute)
		p := requireProblem(t, send(t.Context(), h, order("a")), http.StatusConflict, "in-progress")
		require.Equal(t, int64(60), p.Age)

		g, err := w.join(t).Resume(token)
		require.NoError(t, err)
		o, err := (&nethttp.Response{Status: http.StatusCreated, Body: []byte("made")}).Outcome(g.Attempt().MaxOutcomeBytes)
		require.NoError(t, err)
		_, err = g.Complete(t.Context(), o)
		require.NoError(t, err)
		done := send(t.Context(), h, order("a"))
		require.Equal(t, http.StatusCreated, done.Code)
		require.Equal(t, "made", done.Body.String())
		require.Equal(t, 1, w.count())
	})
}
