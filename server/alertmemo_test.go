package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/embedded"
)

// successor is a server that starts on the store of one that has stopped.
func successor(t *testing.T, before *bundle) (*bundle, *inbox) {
	t.Helper()
	return alertedOver(t, before.store)
}

func alertedOver(t *testing.T, store *fakeStore) (*bundle, *inbox) {
	t.Helper()
	b := setup(t, func(c *Config) {
		c.Store, c.EntryCap = store, 3
		c.Alerts = AlertConfig{URL: "http://hook.invalid/secret", CoolDown: time.Minute, Repeat: 20 * time.Minute}
	})
	b.store = store
	to := &inbox{}
	b.alerter.send = to.send
	return b, to
}

func discardOf(e *dedupv1.DeadLetter) storage.Discard {
	return storage.Discard{Entry: entryIDOf(e.GetEntryId()), Note: "n"}
}

func stop(r *running) {
	r.stop()
	<-r.done
}

func TestG03TheNextServerTellsTheEndOfWhatOneBeforeItHasTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alertedOver(t, newFakeStore())
		first := b.serve(t)
		over, goesOn := b.park(t, "a"), parkReq(t, "b", 2)
		pass(DefaultAlertEvery)
		require.Equal(t, []string{"firing DedupdDeadLetters billing"}, to.take())
		began := time.Now()
		stop(first)
		_, err := b.core.store.Discard(t.Context(), discardOf(over))
		require.NoError(t, err)

		b, to = successor(t, b)
		second := b.serve(t)
		pass(2 * DefaultAlertEvery)
		require.Len(t, to.got, 1)
		require.WithinRange(t, to.got[0].Alerts[0].StartsAt, began.Add(-DefaultAlertEvery), began)
		require.Equal(t, []string{"resolved DedupdDeadLetters billing"}, to.take(), "and nothing of a store that was never away")
		_, err = b.dead.Park(t.Context(), goesOn)
		require.NoError(t, err)
		pass(2 * time.Minute)
		require.Equal(t, []string{"firing DedupdDeadLetters billing"}, to.take())
		stop(second)

		b, to = successor(t, b)
		b.serve(t)
		pass(2 * DefaultAlertEvery)
		require.Equal(t, []string{"firing DedupdDeadLetters billing"}, to.take(), "what goes on is told again")
		pass(3 * time.Minute)
		require.Empty(t, to.take())
	})
}

func TestTheEndOfAnOutageThatAServerDidNotOutliveIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alertedOver(t, newFakeStore())
		first := b.serve(t)
		pass(DefaultAlertEvery)
		b.store.fail(errDown)
		pass(3 * DefaultAlertEvery)
		require.Equal(t, []string{"firing DedupdStoreUnavailable "}, to.take())
		stop(first)

		b, to = successor(t, b)
		b.serve(t)
		pass(2 * time.Minute)
		require.Equal(t, []string{"firing DedupdStoreUnavailable "}, to.take(), "its successor sees it too")
		b.store.fail(nil)
		pass(2 * time.Minute)
		require.Equal(t, []string{"resolved DedupdStoreUnavailable "}, to.take())
	})
}

func TestTheEndOfAnOutageIsToldByAServerThatStartsAfterIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alertedOver(t, newFakeStore())
		first := b.serve(t)
		pass(DefaultAlertEvery)
		b.store.fail(errDown)
		pass(3 * DefaultAlertEvery)
		require.Equal(t, []string{"firing DedupdStoreUnavailable "}, to.take())
		stop(first)
		b.store.fail(nil)
		b, to = successor(t, b)
		b.serve(t)
		pass(2 * time.Minute)
		require.Equal(t, []string{"resolved DedupdStoreUnavailable "}, to.take())
	})
}

func TestACapThatIsStillReachedAfterARestartIsNotToldToBeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alertedOver(t, newFakeStore())
		first := b.serve(t)
		for n := range 3 {
			b.park(t, string(rune('a'+n)))
		}
		_, err := b.dead.Park(t.Context(), parkReq(t, "one too many", 1))
		require.Error(t, err)
		pass(DefaultAlertEvery)
		require.Contains(t, to.take(), "firing DedupdDeadLettersAtCap billing")
		stop(first)
		b, to = successor(t, b)
		b.serve(t)
		pass(10 * time.Minute)
		require.NotContains(t, to.take(), "resolved DedupdDeadLettersAtCap billing")
	})
}

func TestAlertsAreToldByAServerWhoseStoreKeepsNoMemo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alertedOver(t, newFakeStore())
		b.store.fail(errBroken, "Memo", "SetMemo")
		b.serve(t)
		b.park(t, "a")
		pass(time.Minute)
		require.Equal(t, []string{"firing DedupdDeadLetters billing"}, to.take())
		require.Contains(t, b.logs.String(), "the store does not keep which alerts are told")
	})
}

// The same over HTTP and a store on disk: a receiver that pages until it is told the
// end is told it by the next process.
func TestG03AReceiverIsToldTheEndAfterARestart(t *testing.T) {
	t.Parallel()
	got := make(chan webhookMessage, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m webhookMessage
		if json.NewDecoder(r.Body).Decode(&m) != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
		got <- m
	}))
	t.Cleanup(hook.Close)
	dir := t.TempDir()
	receive := func(ctx context.Context) (m webhookMessage) {
		select {
		case m = <-got:
		case <-ctx.Done():
			require.Fail(t, "nothing was told")
		}
		return m
	}
	run := func(do func(context.Context, dedupv1.DeadLetterServiceClient)) {
		store, err := embedded.Open(embedded.Options{Dir: dir})
		require.NoError(t, err)
		cfg := Config{
			Store: store, Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
			Alerts: AlertConfig{URL: hook.URL, Every: time.Second, CoolDown: time.Millisecond},
		}
		cfg.validator, err = validator()
		require.NoError(t, err)
		s, err := New(cfg)
		require.NoError(t, err)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		done := make(chan error, 1)
		lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() { done <- s.Run(ctx, lis, nil) }()
		do(ctx, dedupv1.NewDeadLetterServiceClient(s.Conn()))
		stop()
		require.NoError(t, <-done)
		require.NoError(t, store.Close())
	}
	var id []byte
	var fired webhookMessage
	run(func(ctx context.Context, dead dedupv1.DeadLetterServiceClient) {
		res, err := dead.Park(ctx, parkReq(t, secretKey, 1))
		require.NoError(t, err)
		id = res.GetEntry().GetEntryId()
		fired = receive(ctx)
		require.Equal(t, "firing", fired.Status)
		require.Equal(t, alertDeadLetters, fired.GroupLabels["alertname"])
	})
	store, err := embedded.Open(embedded.Options{Dir: dir})
	require.NoError(t, err)
	_, err = store.Discard(t.Context(), discardOf(&dedupv1.DeadLetter{EntryId: id}))
	require.NoError(t, err)
	require.NoError(t, store.Close())
	run(func(ctx context.Context, _ dedupv1.DeadLetterServiceClient) {
		ended := receive(ctx)
		require.Equal(t, "resolved", ended.Status)
		require.Equal(t, fired.GroupKey, ended.GroupKey)
		require.Equal(t, fired.Alerts[0].Fingerprint, ended.Alerts[0].Fingerprint)
		require.Equal(t, fired.Alerts[0].StartsAt.UTC(), ended.Alerts[0].StartsAt.UTC())
		require.False(t, ended.Alerts[0].EndsAt.IsZero())
	})
}
