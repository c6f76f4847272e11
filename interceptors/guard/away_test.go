package guard_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

func TestOnlyDedupdsOwnSilenceIsLoggedAndSeldom(t *testing.T) { // H01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var log bytes.Buffer
		way, engine := w.joinWith(t, guard.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		lines := func() []string { return strings.Split(strings.TrimSpace(log.String()), "\n") }
		var e effect
		ask := func(ctx context.Context) error {
			_, err := engine.Do(ctx, call(), e.run)
			return err
		}
		way.on("Reserve", always(fault{after: time.Hour}))
		cancelled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.Equal(t, codes.Canceled, status.Code(ask(cancelled)))
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		require.Equal(t, codes.DeadlineExceeded, status.Code(ask(short)))
		require.Empty(t, log.String(), "the callers left, dedupd may be well")

		requireRefused(t, ask(t.Context()), dedupv1.Reason_REASON_STORE_UNAVAILABLE, false)
		require.Len(t, lines(), 1, "the time to reserve is over, not the caller's")
		require.Contains(t, lines()[0], "calls=1")

		pass(time.Minute)
		way.on("Reserve", always(fault{err: errCut}))
		refused := make(chan error)
		for range 5 {
			go func() { refused <- ask(t.Context()) }()
		}
		for range 5 {
			require.Error(t, <-refused)
		}
		require.Len(t, lines(), 2, "one line a second")
		pass(time.Second)
		require.Error(t, ask(t.Context()))
		require.Len(t, lines(), 3)
		require.Contains(t, lines()[2], "calls=5", "those without a line, and this one")
		require.Zero(t, e.count())
	})
}
