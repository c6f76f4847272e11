package nethttp_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/nethttp"
)

func TestWhatARequestLeavesBehindInARun(t *testing.T) { // A04
	t.Parallel()
	for name, c := range map[string]struct {
		method, key string
		config      func(*nethttp.TransportConfig)
		p           *provider
		left        guard.Left
	}{
		"a read":                      {http.MethodGet, "", nil, sequence(200), guard.LeftClean},
		"a success without a key":     {http.MethodPost, "", nil, sequence(200), guard.LeftApplied},
		"a success under its own key": {http.MethodPost, "a", nil, sequence(200), guard.LeftApplied},
		"a success under a child key": {http.MethodPost, "", deduplicates, sequence(200), guard.LeftKeyed},
		"a redirect":                  {http.MethodPost, "", nil, sequence(303), guard.LeftApplied},
		"a refusal":                   {http.MethodPost, "", nil, sequence(422), guard.LeftClean},
		"a failure":                   {http.MethodPost, "", deduplicates, sequence(500), guard.LeftUnknown},
		"a failure, then a success":   {http.MethodPost, "", deduplicates, sequence(500, 200), guard.LeftKeyed},
		"a lost reply": {http.MethodPost, "", nil, &provider{answer: func(int, *http.Request, string) (*http.Response, error) {
			return nil, io.EOF
		}}, guard.LeftUnknown},
		"never sent": {http.MethodPost, "", nil, &provider{answer: func(int, *http.Request, string) (*http.Response, error) {
			return nil, errNoWay
		}}, guard.LeftClean},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				deduplicated := c.config != nil
				if !deduplicated {
					c.config = func(*nethttp.TransportConfig) {}
				}
				rt := transport(t, c.p, c.config)
				w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) {
					_, _ = call(r.Context(), t, rt, c.method, c.key)
					require.Equal(t, c.left, guard.LeftBehind(r.Context()))
					rw.WriteHeader(http.StatusUnprocessableEntity)
				}
				send(t.Context(), w.wrap(t), order("k"))
				state := w.lookup(t, orders, "k")
				require.Equal(t, c.left > guard.LeftKeyed, state.GetState() == dedupv1.State_STATE_UNKNOWN)
				require.Equal(t, c.left == guard.LeftKeyed, state.GetBound())
				require.Equal(t, deduplicated, strings.HasPrefix(c.p.keys[0], `"ck1:`), "others would not look at a child key")
			})
		})
	}
}

func TestASecondRunGivesItsRequestsTheSameKeys(t *testing.T) { // C12
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := sequence(200)
		rt := transport(t, p, deduplicates)
		w.handle = func(rw http.ResponseWriter, r *http.Request, _ int) {
			for range 2 {
				_, err := call(r.Context(), t, rt, http.MethodPost, "")
				require.NoError(t, err)
			}
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
		h := w.wrap(t)
		send(t.Context(), h, order("k"))
		send(t.Context(), h, order("k"))
		require.Equal(t, 2, w.count())
		require.Len(t, p.keys, 4)
		require.Equal(t, p.keys[:2], p.keys[2:])
		require.NotEqual(t, p.keys[0], p.keys[1], "two equal calls of one run are two intents")
	})
}

func TestTheBodyOfABoundedRunsRequestEndsWithItsLease(t *testing.T) { // A09
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := &provider{answer: func(_ int, r *http.Request, _ string) (*http.Response, error) {
			deadline, ok := r.Context().Deadline()
			require.True(t, ok)
			require.LessOrEqual(t, time.Until(deadline), 27*time.Second)
			return says(http.StatusOK)
		}}
		rt := transport(t, p)
		w.handle = func(_ http.ResponseWriter, r *http.Request, _ int) {
			_, err := call(r.Context(), t, rt, http.MethodPost, "")
			require.NoError(t, err)
		}
		send(t.Context(), w.wrap(t, nethttp.WithOthers(nethttp.Route{Basis: dedupv1.Basis_BASIS_BOUNDED, Reconciler: func(*http.Request) guard.Reconciler {
			return func(context.Context, guard.Attempt) (guard.Verdict, error) { return guard.NotSeen(), nil }
		}})), order("k"))
		require.Equal(t, 1, p.tries())
	})
}
