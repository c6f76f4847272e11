package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// inbox is a webhook in memory.
type inbox struct {
	mu   sync.Mutex
	got  []webhookMessage
	fail error
}

func (i *inbox) send(_ context.Context, m webhookMessage) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fail != nil {
		return i.fail
	}
	i.got = append(i.got, m)
	return nil
}

// take empties the inbox and describes what was in it.
func (i *inbox) take() (out []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, m := range i.got {
		out = append(out, m.Status+" "+m.GroupLabels["alertname"]+" "+m.GroupLabels["namespace"])
	}
	i.got = nil
	slices.Sort(out)
	return out
}

// alerted is a running server whose alerts go to an inbox.
func alerted(t *testing.T) (*bundle, *inbox) {
	t.Helper()
	b := setup(t, func(c *Config) {
		c.EntryCap = 3
		c.Alerts = AlertConfig{URL: "http://hook.invalid/secret", CoolDown: time.Minute, Repeat: 20 * time.Minute}
	})
	to := &inbox{}
	b.alerter.send = to.send
	b.serve(t)
	return b, to
}

func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // inside a bubble
	synctest.Wait()
}

func TestG03NewDeadLettersAreToldOncePerGroupAndTheirEndToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		pass(time.Minute)
		require.Empty(t, to.take())
		first := b.park(t, "a")
		second := b.park(t, "b")
		pass(DefaultAlertEvery)
		require.Len(t, to.got, 1)
		m := to.got[0]
		require.Equal(t, map[string]string{"alertname": alertDeadLetters, "namespace": testNamespace, "kind": "exhausted", "severity": "warning"}, m.CommonLabels)
		require.Equal(t, "about 2 dead letters of billing are open (exhausted)", m.CommonAnnotations["summary"])
		to.take()
		pass(3 * time.Minute)
		require.Empty(t, to.take(), "counted by the store since, and not told twice")

		b.store.advance(time.Second)
		third := b.park(t, "c")
		pass(DefaultAlertEvery)
		require.Equal(t, []string{"firing DedupdDeadLetters billing"}, to.take())
		pass(3 * time.Minute)
		ids := [][]byte{first.GetEntryId(), second.GetEntryId(), third.GetEntryId()}
		_, err := b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: ids, Note: "n"})
		require.NoError(t, err)
		pass(censusEvery + DefaultAlertEvery)
		require.Equal(t, []string{"resolved DedupdDeadLetters billing"}, to.take())
		pass(9 * time.Minute)
		require.Empty(t, to.take())
	})
}

func TestDeadLettersThatAnotherServerParkedAreToldToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		foreign := func(key string) {
			_, err := b.store.Park(t.Context(), storage.Park{Entry: storage.DeadLetter{
				Kind: storage.EntryExhausted, ParkID: storage.AttemptID{1},
				Identity: storage.Identity{Namespace: "shipping", Operation: "o", Key: key},
			}})
			require.NoError(t, err)
		}
		for _, key := range []string{"a", "b"} {
			foreign(key)
			pass(censusEvery + DefaultAlertEvery)
			require.Equal(t, []string{"firing DedupdDeadLetters shipping"}, to.take(), key)
			pass(3 * time.Minute)
			require.Empty(t, to.take())
		}
	})
}

func TestG03TheCapIsToldUntilThereIsRoomAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		var ids [][]byte
		for n := range 3 {
			ids = append(ids, b.park(t, fmt.Sprint("k", n)).GetEntryId())
		}
		_, err := b.dead.Park(t.Context(), parkReq(t, "one too many", 1))
		requireRefused(t, err, codes.ResourceExhausted, dedupv1.Reason_REASON_QUOTA_EXCEEDED)
		pass(DefaultAlertEvery)
		require.Contains(t, to.take(), "firing DedupdDeadLettersAtCap billing")
		pass(6 * time.Minute)
		require.NotContains(t, to.take(), "resolved DedupdDeadLettersAtCap billing", "still full")
		_, err = b.dead.Discard(t.Context(), &dedupv1.DiscardRequest{EntryIds: ids[:1], Note: "n"})
		require.NoError(t, err)
		pass(2 * time.Minute)
		require.Contains(t, to.take(), "resolved DedupdDeadLettersAtCap billing")
	})
}

// H02: the store takes no writes any more after the first Reserve. The effect
// happens once, its outcome stays unknown, no later call runs, and an alert names
// it.
func TestH02AReadOnlyStoreLeavesOneEffectPendingAndAnAlertNamesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		g := b.grant(t, 1)
		effects := 1
		b.store.hook(func(_ context.Context, call string) error {
			if call == "Lookup" || call == "List" || call == "Entries" || call == "Census" || call == "Check" {
				return nil
			}
			return errDown
		})
		_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "charged"))
		requireRefused(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		for n := range 100 {
			res, err := b.dedup.Reserve(t.Context(), reserveReq(byte(n)))
			if res.GetGranted() != nil {
				effects++
			}
			requireRefused(t, err, codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
		}
		require.Equal(t, 1, effects)
		pass(DefaultAlertPending + censusEvery + DefaultAlertEvery)
		require.Equal(t, []string{"firing DedupdPendingWithoutCompletion billing"}, to.take())

		b.store.hook(nil)
		requireRefused(t, b.reserve(t, 200), codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
		_, err = b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "charged"))
		require.NoError(t, err, "repaired by its holder")
		pass(2 * time.Minute)
		require.Equal(t, []string{"resolved DedupdPendingWithoutCompletion billing"}, to.take())
	})
}

func TestARunThatTakesLongIsNotPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		g := b.grant(t, 1)
		_, err := b.dedup.Extend(t.Context(), &dedupv1.ExtendRequest{
			Identity: identity(), AttemptId: attempt(1), Fence: g.GetFence(), Lease: durationpb.New(storage.MaxLease),
		})
		require.NoError(t, err)
		pass(DefaultAlertPending + time.Minute)
		require.Empty(t, to.take())
	})
}

func TestAnUnreachableStoreIsToldWithoutReadingIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		b.store.fail(errDown)
		pass(3 * DefaultAlertEvery)
		require.Equal(t, []string{"firing DedupdStoreUnavailable "}, to.take())
		b.store.fail(nil)
		pass(2 * time.Minute)
		require.Equal(t, []string{"resolved DedupdStoreUnavailable "}, to.take())
	})
}

func TestOverdueRecordsAndConflictsAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		g := b.grant(t, 1)
		b.store.advance(storage.DefaultRetention + time.Hour)
		pass(overdueEvery + censusEvery + DefaultAlertEvery)
		require.Equal(t, []string{
			"firing DedupdDeadLetters billing", "firing DedupdOverdueRecords billing", "firing DedupdPendingWithoutCompletion billing",
		}, to.take())
		rerun := reserveReq(2)
		rerun.OnUnknown = dedupv1.OnUnknown_ON_UNKNOWN_RERUN
		second, err := b.dedup.Reserve(t.Context(), rerun)
		require.NoError(t, err)
		_, err = b.dedup.Complete(t.Context(), completeReq(2, second.GetGranted().GetFence(), "second"))
		require.NoError(t, err)
		_, err = b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), "first"))
		d := requireRefused(t, err, codes.FailedPrecondition, dedupv1.Reason_REASON_STALE_HOLDER)
		require.NotEmpty(t, d.info.GetMetadata()["entry"], "parked in the same step")
		require.InDelta(t, 1, b.metric(t, "dedupd_dead_letters_parked_total", "kind", "conflict"), 0)
		pass(overdueEvery + time.Minute)
		require.Equal(t, []string{
			"firing DedupdConflict billing", "resolved DedupdDeadLetters billing",
			"resolved DedupdOverdueRecords billing", "resolved DedupdPendingWithoutCompletion billing",
		}, to.take())
	})
}

// G04: a repeated refusal of one key is told, by the short id of its record.
func TestG04AKeyThatKeepsComingBackIsToldWithoutTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		b.grant(t, 1)
		b.store.advance(time.Hour)
		for range DefaultAlertRepeats {
			requireRefused(t, b.reserve(t, 2), codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN)
		}
		pass(DefaultAlertEvery)
		require.NotEmpty(t, to.got)
		text, err := json.Marshal(to.got)
		require.NoError(t, err)
		require.Contains(t, string(text), alertKeyComesBack)
		require.Contains(t, string(text), storageIdentity().RecordID().Short())
		require.NotContains(t, string(text), secretKey)
		require.NotContains(t, string(text), "customer-7")
		to.take()
		pass(2*hotFade + 2*time.Minute)
		require.Contains(t, to.take(), "resolved DedupdKeyKeepsComingBack billing")
	})
}

func TestAnAlertThatCannotBeSentIsSentLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, to := alerted(t)
		to.fail = errors.New("the webhook answered 503")
		b.park(t, "a")
		pass(2 * time.Minute)
		require.Equal(t, 1, strings.Count(b.logs.String(), "an alert could not be sent"))
		require.Positive(t, b.metric(t, "dedupd_alert_messages_total", "result", "failed"))
		to.mu.Lock()
		to.fail = nil
		to.mu.Unlock()
		pass(maxAlertBackoff)
		require.Equal(t, []string{"firing DedupdDeadLetters billing"}, to.take())
		require.InDelta(t, 1, b.metric(t, "dedupd_alert_messages_total", "result", "sent"), 0)
		require.NotContains(t, b.logs.String(), "hook.invalid")
	})
}

func TestAMessageIsWhatAlertmanagerSends(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 29, 21, 0, 0, 0, time.UTC)
	a := letters("exhausted", 1)
	a.annotations = told("two", "do")
	ended := letters("unreconciled", 1)
	ended.annotations = told("one", "do")
	var body []byte
	var header http.Header
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header
		body, _ = io.ReadAll(r.Body)
	}))
	t.Cleanup(hook.Close)
	w := newWebhook(hook.URL, "1.2")
	t.Cleanup(w.client.CloseIdleConnections)
	require.NoError(t, w.send(t.Context(), webhookOf(alertMessage{
		group: groupKey{a.name, a.namespace}, truncated: 2,
		alerts: []standing{{alert: a, began: began}, {alert: ended, began: began, ended: began.Add(time.Hour)}},
	}, "http://127.0.0.1:7481")))
	require.Equal(t, "application/json", header.Get("Content-Type"))
	require.Equal(t, "dedupd/1.2", header.Get("User-Agent"))
	require.JSONEq(t, `{
		"version": "4", "groupKey": "{}:{alertname=\"DedupdDeadLetters\", namespace=\"billing\"}", "truncatedAlerts": 2,
		"status": "firing", "receiver": "dedupd", "externalURL": "http://127.0.0.1:7481",
		"groupLabels": {"alertname": "DedupdDeadLetters", "namespace": "billing"},
		"commonLabels": {"alertname": "DedupdDeadLetters", "namespace": "billing"},
		"commonAnnotations": {"description": "do"},
		"alerts": [
			{"status": "firing", "startsAt": "2026-11-29T21:00:00Z", "endsAt": "0001-01-01T00:00:00Z",
			 "labels": {"alertname": "DedupdDeadLetters", "namespace": "billing", "kind": "exhausted"},
			 "annotations": {"summary": "two", "description": "do"},
			 "generatorURL": "http://127.0.0.1:7481", "fingerprint": "`+fingerprintText(map[string]string{
		"alertname": "DedupdDeadLetters", "namespace": "billing", "kind": "exhausted",
	})+`"},
			{"status": "resolved", "startsAt": "2026-11-29T21:00:00Z", "endsAt": "2026-11-29T22:00:00Z",
			 "labels": {"alertname": "DedupdDeadLetters", "namespace": "billing", "kind": "unreconciled"},
			 "annotations": {"summary": "one", "description": "do"},
			 "generatorURL": "http://127.0.0.1:7481", "fingerprint": "`+fingerprintText(map[string]string{
		"alertname": "DedupdDeadLetters", "namespace": "billing", "kind": "unreconciled",
	})+`"}
		]}`, string(body))
}

func TestAWebhookThatFailsIsNeverNamed(t *testing.T) {
	t.Parallel()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	send := func(url string) error {
		w := newWebhook(url, "")
		defer w.client.CloseIdleConnections()
		return w.send(t.Context(), webhookMessage{})
	}
	require.EqualError(t, send(hook.URL+"/secret"), "the webhook answered 307", "a redirect is not followed")
	hook.Close()
	err := send(hook.URL + "/secret")
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), "secret")
	for _, bad := range []string{"hook/secret", "ftp://h/secret", "http:///secret", "http://%zz/secret"} {
		err := AlertConfig{URL: bad}.withDefaults().validate()
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}
}
