package seldom_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/interceptors/internal/seldom"
)

func TestALineStandsForTheEventsSinceTheLastOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l seldom.Log
		requireDue := func(events int) {
			t.Helper()
			n, due := l.Due(time.Second)
			require.Equal(t, events, n)
			require.Equal(t, events > 0, due)
		}
		requireDue(1)
		requireDue(0)
		<-time.After(time.Second - 1)
		requireDue(0)
		<-time.After(1)
		requireDue(3)
		<-time.After(time.Hour)
		requireDue(1)
	})
}
