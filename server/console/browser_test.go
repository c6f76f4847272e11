package console_test

import (
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/internal/browser"
	"github.com/dedupd/dedupd/server/console"
)

// Long names without a space in them are what breaks a narrow page.
func wideSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t, console.Options{ShowKeys: true})
	long := unknownRecord()
	long.Identity.Operation = "/very.long.package.name.of.some.service.v1.OrderFulfilmentService/ChargeAndShipTheWholeOrder"
	long.Identity.Key = []byte("order-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789-0123456789")
	done := unknownRecord()
	done.RecordId, done.State = append([]byte{8}, done.GetRecordId()[1:]...), dedupv1.State_STATE_COMPLETED
	s.records = []*dedupv1.RecordInfo{long, done, unknownRecord()}
	s.entries = letters(60)
	s.entries[1].Identity.Operation = long.GetIdentity().GetOperation()
	s.entries[1].State = dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED
	s.entries[2].State, s.entries[2].Requested = dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING, true
	s.entries[2].ClaimLeft = durationpb.New(time.Minute)
	failed := s.entries[3]
	failed.Replays, failed.Result = 1, dedupv1.ReplayResult_REPLAY_RESULT_FAILED
	failed.Status = []byte("\x08\x0e\x12\x1aconnection refused, try on")
	failed.ReplayStatus = []byte("\x08\x0c")
	return s
}

func TestPagesFitBothWidthsInBothThemes(t *testing.T) {
	t.Parallel()
	s := wideSite(t)
	tab := browser.Start(t)
	for name, path := range map[string]string{
		"overview": "/", "records": "/records", "deadletters": "/dead-letters",
		"record":     "/records/" + hex.EncodeToString(s.records[0].GetRecordId()),
		"deadletter": "/dead-letters/" + hex.EncodeToString(s.entries[1].GetEntryId()),
		"claimed":    "/dead-letters/" + hex.EncodeToString(s.entries[2].GetEntryId()),
		"failed":     "/dead-letters/" + hex.EncodeToString(s.entries[3].GetEntryId()),
		"problem":    "/nowhere",
	} {
		for _, width := range []int64{1280, 390} {
			for _, scheme := range []string{"light", "dark"} {
				var over int
				var ink, back string
				look := fmt.Sprintf("%s-%d-%s", name, width, scheme)
				require.NoError(t, chromedp.Run(tab, browser.Look(width, scheme),
					chromedp.Navigate(s.url+path), chromedp.WaitVisible("main h1"),
					browser.Overflow(&over),
					chromedp.Evaluate(`getComputedStyle(document.body).color`, &ink),
					chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &back),
					browser.Shoot(look)), look)
				require.LessOrEqual(t, over, 0, "%s is wider than its window", look)
				require.Equal(t, scheme == "dark", brightness(t, ink) > brightness(t, back), "%s: %s on %s", look, ink, back)
			}
		}
	}
}

func TestTheKeyboardIsEnough(t *testing.T) {
	t.Parallel()
	s := wideSite(t)
	tab := browser.Start(t)
	var text string
	require.NoError(t, chromedp.Run(tab, browser.Look(1280, "light"), chromedp.Navigate(s.url+"/records"), chromedp.WaitVisible("main h1"),
		input.DispatchKeyEvent(input.KeyRawDown).WithKey("/"), chromedp.KeyEvent("order-1"+kb.Enter), chromedp.WaitVisible("tbody a"),
		chromedp.Focus("tbody a"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(".timeline"),
		chromedp.Focus("input[value=released]"), chromedp.KeyEvent(" "),
		chromedp.Focus("select[name=basis]"), chromedp.KeyEvent("F"),
		chromedp.Focus("input[name=note]"), chromedp.KeyEvent("looked"+kb.Enter),
		chromedp.WaitVisible("button.danger"), chromedp.Text("main", &text), browser.Shoot("resolve"),
		chromedp.Focus("button.danger"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(".timeline"),
	))
	require.Contains(t, text, "FENCED")
	require.Len(t, s.resolved, 1)
	require.Equal(t, dedupv1.Basis_BASIS_FENCED, s.resolved[0].GetReleased().GetBasis())
	require.Equal(t, "order-1", string(s.lists[len(s.lists)-1].GetKey()))
}

func TestEntriesAreTickedAskedForAndDiscarded(t *testing.T) {
	t.Parallel()
	s := wideSite(t)
	tab := browser.Start(t)
	var text string
	require.NoError(t, chromedp.Run(tab, browser.Look(390, "light"), chromedp.Navigate(s.url+"/dead-letters"), chromedp.WaitVisible("main h1"),
		chromedp.Click(`tbody input[name=id]`), chromedp.SendKeys(`input[name=note]`, hostile),
		chromedp.Click(`button[value=discard]`), chromedp.WaitVisible("button[name=confirm]"), browser.Shoot("act-390"),
		chromedp.Click("button[name=confirm]"), chromedp.WaitVisible(`//h1[text()="Done"]`, chromedp.BySearch), chromedp.Text("main", &text),
		browser.Shoot("acted-390"),
	))
	require.Contains(t, text, "0 of 1 discarded")
	require.Len(t, s.thrown, 1)

	require.NoError(t, chromedp.Run(tab, browser.Look(1280, "light"), chromedp.Navigate(s.url+"/dead-letters"), chromedp.WaitVisible("thead input"),
		chromedp.Click(`thead input`), chromedp.SendKeys(`input[name=note]`, "fixed"),
		chromedp.Click(`button[value=requeue]`), chromedp.WaitVisible("button[name=confirm]"),
		chromedp.Click("button[name=confirm]"), chromedp.WaitVisible(`//h1[text()="Done"]`, chromedp.BySearch), chromedp.Text("main", &text),
	))
	require.Contains(t, text, "48 of 48 put back", "two of the page are not parked")
	require.Len(t, s.requeued, 48)
}

// brightness of a colour as browsers write it.
func brightness(t *testing.T, colour string) int {
	t.Helper()
	var r, g, b int
	_, err := fmt.Sscanf(colour, "rgb(%d, %d, %d)", &r, &g, &b)
	require.NoError(t, err, colour)
	return r + g + b
}
