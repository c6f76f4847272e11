package nethttp_test

import (
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/nethttp"
)

func guarded(w *world, change ...func(*nethttp.Provider)) func(*nethttp.TransportConfig) {
	return func(c *nethttp.TransportConfig) {
		p := nethttp.Provider{Guarded: &nethttp.Guarded{Engine: w.engine, Caller: "ada", Lease: 10 * time.Second}}
		for _, f := range change {
			f(&p)
		}
		c.Providers = map[string]nethttp.Provider{"api.test": p}
	}
}

func TestAGuardedRequestIsSentOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := sequence(http.StatusCreated)
		rt := transport(t, p, guarded(w))
		first, err := call(t.Context(), t, rt, http.MethodPost, "a")
		require.NoError(t, err)
		again, err := call(t.Context(), t, rt, http.MethodPost, "a")
		require.NoError(t, err)
		require.Equal(t, 1, p.tries())
		require.Empty(t, p.keys[0], "our key is none of the callee's")
		require.Equal(t, "true", again.Header.Get(nethttp.HeaderReplayed))
		require.Equal(t, first.StatusCode, again.StatusCode)
		for _, resp := range []*reply{first, again} {
			require.Equal(t, "body", resp.Body)
		}
	})
}

func TestAGuardedTryOfUnknownOutcomeIsNotSentAgain(t *testing.T) { // G01
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(n int, r *http.Request, body string) (*http.Response, error)
		change func(*nethttp.Provider)
		state  dedupv1.State
		tries  int // of two calls
	}{
		"lost": {func(int, *http.Request, string) (*http.Response, error) { return nil, io.EOF }, nil, dedupv1.State_STATE_UNKNOWN, 1},
		"500":  {sequence(500).answer, nil, dedupv1.State_STATE_UNKNOWN, 1},
		"429":  {sequence(429).answer, nil, dedupv1.State_STATE_UNKNOWN, 1},
		"429 that means it": {sequence(429, 200).answer, func(p *nethttp.Provider) {
			p.Guarded.RefusalsApplyNothing = true
		}, dedupv1.State_STATE_COMPLETED, 2},
		"422": {sequence(422, 200).answer, nil, dedupv1.State_STATE_COMPLETED, 2},
		"never sent": {func(n int, _ *http.Request, _ string) (*http.Response, error) {
			if n == 1 {
				return nil, errNoWay
			}
			return says(200)
		}, nil, dedupv1.State_STATE_COMPLETED, 2},
		"a key of its own": {sequence(500, 200).answer, func(p *nethttp.Provider) {
			p.KeyHeader, p.BareKeys, p.Guarded.Rerun = nethttp.HeaderKey, true, true
		}, dedupv1.State_STATE_COMPLETED, 2},
		"a body cut off": {func(int, *http.Request, string) (*http.Response, error) {
			resp, err := says(200)
			resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("bo"), cutReader{}))
			return resp, err
		}, nil, dedupv1.State_STATE_UNKNOWN, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := &provider{answer: c.answer}
				changes := []func(*nethttp.Provider){}
				if c.change != nil {
					changes = append(changes, c.change)
				}
				rt := transport(t, p, guarded(w, changes...))
				for range 2 {
					if _, err := call(t.Context(), t, rt, http.MethodPost, "a"); err != nil {
						require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
					}
				}
				record := w.lookup(t, "POST api.test", "a")
				require.Equal(t, c.state.String(), record.GetState().String())
				require.Equal(t, c.tries, p.tries())
				if name == "a key of its own" {
					require.Equal(t, hex.EncodeToString(record.GetRecordId()), p.keys[0], "the record's id is the callee's key")
					require.Equal(t, p.keys[0], p.keys[1])
				}
			})
		})
	}
}

// cutReader is a connection that breaks.
type cutReader struct{}

func (cutReader) Read([]byte) (int, error) {
	return 0, &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}
}

func TestABatchWithAKeyForEachItemSendsEachOnce(t *testing.T) { // H04
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := &provider{answer: func(n int, _ *http.Request, _ string) (*http.Response, error) {
			if n == 7 {
				return nil, errNoWay
			}
			return says(http.StatusAccepted)
		}}
		rt := transport(t, p, guarded(w), func(c *nethttp.TransportConfig) { c.MaxAttempts = 1 })
		job := func() error {
			for recipient := range 10 {
				key, err := interceptors.Key("mail", "run 1", strconv.Itoa(recipient))
				require.NoError(t, err)
				if _, err := call(t.Context(), t, rt, http.MethodPost, key); err != nil {
					return err
				}
			}
			return nil
		}
		require.Error(t, job(), "the seventh fails, and with it the batch")
		for range 3 {
			require.NoError(t, job())
		}
		require.Equal(t, 11, p.tries(), "ten mails, one of them tried twice")
	})
}

func TestAGuardedRequestIsNotSentWhileDedupdIsAway(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.down.Store(true)
		p := sequence(200)
		_, err := call(t.Context(), t, transport(t, p, guarded(w)), http.MethodPost, "a")
		require.Error(t, err)
		require.NotErrorIs(t, err, interceptors.ErrOutcomeUnknown)
		require.Zero(t, p.tries())

		w.down.Store(false)
		w.mute.Store(true)
		_, err = call(t.Context(), t, transport(t, p, guarded(w)), http.MethodPost, "b")
		require.NoError(t, err, "its own answer stands")
		w.mute.Store(false)
	})
}
