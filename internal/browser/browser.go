// Package browser starts a headless Chromium for tests of pages. Every browser
// has a profile of its own, is ended with its test, and reaches what the test
// serves on this machine.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/internal/apt"
)

// EnvScreenshots names a directory that Shoot writes to; unset: no pictures.
const EnvScreenshots = "DEDUPD_TEST_SCREENSHOTS"

// Start returns the context of a tab, for chromedp.Run. A dialog, or an
// exception on a page, fails the test: pages here have neither.
func Start(t *testing.T) context.Context {
	t.Helper()
	path, err := apt.Command("chromium", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
	require.NoError(t, err)
	alloc, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(2*time.Minute),
	)...)
	tab, close := chromedp.NewContext(alloc)
	tab, expire := context.WithTimeout(tab, time.Minute)
	chromedp.ListenTarget(tab, func(event any) {
		switch e := event.(type) {
		case *page.EventJavascriptDialogOpening:
			t.Errorf("a page opened a dialog: %s", e.Message)
		case *runtime.EventExceptionThrown:
			t.Errorf("a page failed: %s", e.ExceptionDetails.Error())
		}
	})
	t.Cleanup(func() {
		expire()
		if err := chromedp.Cancel(tab); err != nil && !errors.Is(err, context.Canceled) {
			t.Logf("ending the browser: %v", err)
		}
		close()
		stop()
	})
	require.NoError(t, chromedp.Run(tab))
	return tab
}

// Look sets the window's width and the colour scheme, "light" or "dark".
func Look(width int64, scheme string) chromedp.Action {
	return chromedp.Tasks{
		chromedp.EmulateViewport(width, 900),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
	}
}

// Overflow tells by how many pixels the page is wider than its window.
func Overflow(into *int) chromedp.Action {
	return chromedp.Evaluate(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, into)
}

// Shoot writes a picture of the whole page where EnvScreenshots asks for it.
func Shoot(name string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		dir := os.Getenv(EnvScreenshots)
		if dir == "" {
			return nil
		}
		var png []byte
		if err := chromedp.FullScreenshot(&png, 100).Do(ctx); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil { //nolint:gosec // where the tester said
			return fmt.Errorf("keep the picture: %w", err)
		}
		return nil
	})
}
