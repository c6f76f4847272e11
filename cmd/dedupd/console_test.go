package main

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/browser"
)

// TestAnOperatorSettlesEverythingInTheBrowser drives the real server's console:
// search, timeline, verdict, replay request, discard.
func TestAnOperatorSettlesEverythingInTheBrowser(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	dedup, letters := dedupv1.NewDedupServiceClient(conn), dedupv1.NewDeadLetterServiceClient(conn)

	lapsing := reserveRequest("<i>unknown</i>", 1)
	lapsing.Lease = durationpb.New(time.Second)
	reserved, err := dedup.Reserve(t.Context(), lapsing)
	require.NoError(t, err)
	for i, key := range []string{"again", "never"} {
		_, err := letters.Park(t.Context(), &dedupv1.ParkRequest{
			Record: &dedupv1.ParkRequest_Identity{Identity: identity(key)}, ParkId: bytes.Repeat([]byte{byte(i + 1)}, 16),
			Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: operation, Note: "<script>alert(1)</script>",
			Request: &dedupv1.Response{TypeUrl: "type.googleapis.com/x.Y", Value: []byte("request")},
		})
		require.NoError(t, err)
	}
	// Held until the lease is over.
	_, err = dedup.Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_RecordId{RecordId: reserved.GetRecordId()}, Wait: durationpb.New(30 * time.Second),
	})
	require.NoError(t, err)

	tab := browser.Start(t)
	var found, life, masked string
	require.NoError(t, chromedp.Run(tab, browser.Look(1280, "light"), chromedp.Navigate(s.http), chromedp.WaitVisible("main h1"),
		chromedp.Click(`//nav/a[text()="Records"]`, chromedp.BySearch), chromedp.WaitVisible("input[name=key]"),
		chromedp.SendKeys("input[name=key]", "<i>unknown</i>\r"), chromedp.WaitVisible("tbody a"), chromedp.Text("tbody", &found),
		chromedp.Click("tbody a"), chromedp.WaitVisible(".timeline"), chromedp.Text(".timeline", &life), chromedp.Text("main", &masked),
		browser.Shoot("real-record"),
		chromedp.Click("input[value=completed]"), chromedp.SendKeys("input[name=note]", "seen at the bank\r"),
		chromedp.WaitVisible("button[name=confirm]"), chromedp.Click("button[name=confirm]"),
		chromedp.WaitVisible(".chip.completed"),
	))
	require.Contains(t, found, "unknown")
	require.Contains(t, life, "first granted")
	require.Contains(t, life, "lease ends")
	require.NotContains(t, masked, "<i>unknown</i>")
	settled, err := dedup.Reserve(t.Context(), reserveRequest("<i>unknown</i>", 2))
	require.NoError(t, err)
	require.True(t, settled.GetCompleted().GetByOperator())

	list, err := letters.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetEntries(), 2)
	for i, do := range []string{"requeue", "discard"} {
		require.NoError(t, chromedp.Run(tab, browser.Look(390, "dark"),
			chromedp.Navigate(s.http+"/console/dead-letters/"+hex.EncodeToString(list.GetEntries()[i].GetEntryId())), chromedp.WaitVisible("main h1"),
			chromedp.SendKeys("input[name=note]", "decided"), chromedp.Click("button[value="+do+"]"),
			chromedp.WaitVisible("button[name=confirm]"), chromedp.Click("button[name=confirm]"),
			chromedp.WaitVisible(`//h1[text()="Done"]`, chromedp.BySearch), browser.Shoot("real-"+do)))
	}
	list, err = letters.List(t.Context(), &dedupv1.DeadLetterServiceListRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetEntries(), 1, "the other is closed")
	require.Equal(t, "again", string(list.GetEntries()[0].GetIdentity().GetKey()))
	require.True(t, list.GetEntries()[0].GetRequested())
}

func TestKeysAreShownInTheConsoleOnlyWhereTheServerWasToldTo(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"", "--show-keys"} {
		s := serve(t, strings.Fields("--in-memory "+flag)...)
		complete(t.Context(), t, s.dial(t), "a-secret-key")
		res, err := http.Get(s.http + "/console/records") //nolint:noctx // the server ends with the test
		require.NoError(t, err)
		var page bytes.Buffer
		_, err = page.ReadFrom(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, flag != "", strings.Contains(page.String(), "a-secret-key"))
	}
}
