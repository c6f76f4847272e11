package nethttp_test

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestAStreamedResponseArrivesWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			rw.WriteHeader(http.StatusEarlyHints)
			for range 3 {
				_, _ = io.WriteString(rw, "tick ")
				flusher, ok := rw.(http.Flusher)
				require.True(t, ok)
				flusher.Flush()
			}
			require.NoError(t, http.NewResponseController(rw).Flush())
		}
		h := w.wrap(t)
		first := send(t.Context(), h, order("a"))
		require.False(t, first.Flushed, "nothing goes out before it is stored")
		require.Equal(t, http.StatusOK, first.Code)
		require.Equal(t, "tick tick tick ", first.Body.String())
		require.Equal(t, "15", first.Header().Get("Content-Length"))
		require.Equal(t, "text/plain; charset=utf-8", first.Header().Get("Content-Type"), "as net/http guesses it")
		requireReplayed(t, first, send(t.Context(), h, order("a")))
	})
}

func TestAKeyedResponseCannotBeHijacked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			_, hijacker := rw.(http.Hijacker)
			require.False(t, hijacker)
			_, _, err := http.NewResponseController(rw).Hijack()
			require.ErrorIs(t, err, errors.ErrUnsupported)
		}
		require.Equal(t, http.StatusOK, send(t.Context(), w.wrap(t), order("a")).Code)
	})
}

func TestWhatAHandlerWritesTooLateOrTwiceDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var kept http.ResponseWriter
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			kept = rw
			rw.Header().Set("X-A", "1")
			rw.WriteHeader(http.StatusNoContent)
			rw.WriteHeader(http.StatusCreated)
			rw.Header().Set("X-A", "2")
			_, err := io.WriteString(rw, "body")
			require.ErrorIs(t, err, http.ErrBodyNotAllowed)
		}
		first := send(t.Context(), w.wrap(t), order("a"))
		require.Equal(t, http.StatusNoContent, first.Code)
		require.Equal(t, "1", first.Header().Get("X-A"))
		require.Empty(t, first.Header().Get("Content-Length"))
		_, err := io.WriteString(kept, "late")
		require.Error(t, err)
		requireReplayed(t, first, send(t.Context(), w.wrap(t), order("a")))
	})
}

func TestTrailersReachTheFirstCallerOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle = func(rw http.ResponseWriter, _ *http.Request, _ int) {
			rw.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(rw, "body")
			rw.Header().Set("X-Sum", "1")
			rw.Header().Set(http.TrailerPrefix+"X-Other", "2")
		}
		h := w.wrap(t)
		trailer := send(t.Context(), h, order("a")).Result().Trailer
		require.Equal(t, "1", trailer.Get("X-Sum"))
		require.Equal(t, "2", trailer.Get("X-Other"))
		require.Empty(t, send(t.Context(), h, order("a")).Result().Trailer)
	})
}
