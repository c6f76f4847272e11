package tally_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/internal/tally"
)

// ledger is a meter that keeps what it is told.
type ledger struct {
	told   map[string]int64
	labels map[string]int
}

func newLedger() *ledger { return &ledger{told: map[string]int64{}, labels: map[string]int{}} }

func (l *ledger) Counter(name, _ string, labels ...string) func(context.Context, ...string) {
	l.labels[name] = len(labels)
	return func(_ context.Context, values ...string) {
		if len(values) != len(labels) {
			name = "a wrong number of labels on " + name
		}
		l.told[strings.TrimSpace(name+" "+strings.Join(values, " "))]++
	}
}

func (l *ledger) Level(name, _ string) func(int64) {
	return func(delta int64) { l.told[name] += delta }
}

// eachEvent calls every function of an observer, those of embedded ones too, and
// fails for one that is forgotten.
func eachEvent(t *testing.T, observer reflect.Value, do func(name string, f reflect.Value)) {
	t.Helper()
	for i := range observer.NumField() {
		name, f := observer.Type().Field(i).Name, observer.Field(i)
		if f.Kind() == reflect.Struct {
			eachEvent(t, f, do)
			continue
		}
		require.Equal(t, reflect.Func, f.Kind(), name)
		require.False(t, f.IsNil(), "%s is not counted", name)
		do(name, f)
	}
}

// some returns arguments of a function that are not zero where they can be.
func some(t *testing.T, f reflect.Type) []reflect.Value {
	t.Helper()
	args := make([]reflect.Value, f.NumIn())
	for i := range args {
		args[i] = reflect.New(f.In(i)).Elem()
		switch in := f.In(i); {
		case in == reflect.TypeFor[context.Context]():
			args[i].Set(reflect.ValueOf(t.Context()))
		case in.Kind() == reflect.String:
			args[i].SetString("m")
		case args[i].CanInt():
			args[i].SetInt(1)
		case args[i].CanUint():
			args[i].SetUint(1)
		}
	}
	return args
}

func TestNoEventIsForgotten(t *testing.T) {
	t.Parallel()
	for name, observer := range map[string]func(tally.Meter) any{
		"client": func(m tally.Meter) any { return tally.Client(m) },
		"server": func(m tally.Meter) any { return tally.Server(m) },
		"parker": func(m tally.Meter) any { return tally.Parker(m) },
	} {
		l := newLedger()
		events := 0
		eachEvent(t, reflect.ValueOf(observer(l)), func(event string, f reflect.Value) {
			before := fmt.Sprint(l.told)
			f.Call(some(t, f.Type()))
			require.NotEqual(t, before, fmt.Sprint(l.told), "%s of the %s changes no metric", event, name)
			events++
		})
		require.GreaterOrEqual(t, events, 5)
		for told := range l.told {
			require.NotContains(t, told, "wrong number")
			require.True(t, strings.HasPrefix(told, name+"."), told)
		}
	}
}

func TestTheEndOfACallTellsReplaysAndUnknownOutcomes(t *testing.T) {
	t.Parallel()
	l := newLedger()
	o := tally.Client(l)
	o.Ended(t.Context(), "m", interceptors.CallEnd{Replayed: true, RecordID: strings.Repeat("ab", 32)})
	o.Ended(t.Context(), "m", interceptors.CallEnd{Code: 14, Unknown: true})
	require.Equal(t, map[string]int64{
		"client.calls m OK": 1, "client.calls m Unavailable": 1, "client.replays m": 1, "client.unknown_outcomes m": 1,
	}, l.told)
}

func TestReasonsAreWordsOfTheWire(t *testing.T) {
	t.Parallel()
	l := newLedger()
	o := tally.Server(l)
	o.Refused("m", dedupv1.Reason_REASON_KEY_REUSED)
	o.Refused("m", dedupv1.Reason(99))
	o.Observed("m", interceptors.SightMismatch, dedupv1.Reason_REASON_KEY_REUSED)
	o.Observed("m", interceptors.SightReplay, 0)
	o.Stream("m", true)
	require.Equal(t, map[string]int64{
		"server.refusals m KEY_REUSED": 1, "server.refusals m 99": 1,
		"server.observed m mismatch KEY_REUSED": 1, "server.observed m replay": 1, "server.streams m true": 1,
	}, l.told)
}

func TestLevelsOfSeveralEnginesAddUp(t *testing.T) {
	t.Parallel()
	l := newLedger()
	a, b := tally.Server(l), tally.Server(l)
	a.Pending(3, 300)
	b.Pending(1, 50)
	a.Pending(1, 100)
	require.Equal(t, map[string]int64{"server.pending_messages": 2, "server.pending_bytes": 150}, l.told)
}

func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	l := newLedger()
	o := tally.Client(l)
	for i := range 1500 {
		o.Wait(t.Context(), fmt.Sprintf("/shop.v1.Orders/M%d", i))
	}
	require.Len(t, l.told, 1001)
	require.EqualValues(t, 500, l.told["client.waits other"])
}
