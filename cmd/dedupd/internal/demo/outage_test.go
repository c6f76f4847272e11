package demo

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	"github.com/dedupd/dedupd/interceptors"
)

func met(way Way, tries int64) ShopResult {
	return ShopResult{Way: way, Result: Result{Asked: 10, Once: 10}, Tries: tries, Held: 7, Unretried: 5}
}

func TestAnOutagePassesOnlyWhenEveryOrderWasChargedOnce(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, Outage{}.Err(), "did not take place")
	out := Outage{Down: 3 * time.Second, Shops: []ShopResult{met(RetriesAlone, 600), met(Budget, 200), met(BudgetAndBreaker, 25)}}
	require.NoError(t, out.Err())
	out.Shops[1].Once, out.Shops[1].Twice = 9, 1
	require.ErrorContains(t, out.Err(), "with a budget, 9 of 10 orders were charged exactly once (1 twice")
}

func TestAnOutageIsToldInATable(t *testing.T) {
	t.Parallel()
	out := Outage{Down: 3 * time.Second, Shops: []ShopResult{met(RetriesAlone, 600), met(Budget, 200), met(BudgetAndBreaker, 25)}}
	var text strings.Builder
	require.NoError(t, out.Write(&text))
	require.Regexp(t, `budget and breaker +10 +10 +0 +25 +7 +5 `, text.String())
	require.Contains(t, text.String(), "while payments was down for 3s, retries alone sent 600 tries, those with budget and breaker 25;\nevery order was charged")
	out.Shops[0].Lost++
	out.Shops[0].Once--
	text.Reset()
	require.NoError(t, out.Write(&text))
	require.NotContains(t, text.String(), "every order was charged")
}

// E09: what a shop sends to a service that is not there, by its way.
func TestAShopCountsItsTriesOnlyWhileTheServiceIsDown(t *testing.T) {
	t.Parallel()
	for _, isDown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var down atomic.Bool
			down.Store(isDown)
			s := &shop{way: RetriesAlone, down: &down}
			options, err := s.options()
			require.NoError(t, err)
			conn, err := grpc.NewClient("passthrough:///away", append(options, grpc.WithContextDialer(
				func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed }))...)
			require.NoError(t, err)
			_, err = demov1.NewPaymentsServiceClient(conn).Charge(t.Context(), &demov1.ChargeRequest{Order: "o", Amount: 1, Currency: "EUR"})
			require.Error(t, err)
			require.NoError(t, conn.Close())
			require.EqualValues(t, map[bool]int{false: 0, true: interceptors.DefaultMaxAttempts}[isDown], s.tries.Load())
		})
	}
}
