package storage

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// catch is where a broken rule shows: a search and the invariants that break
// there; none where the mutation is equivalent.
type catch struct {
	scenario   string
	attempts   int
	invariants string
}

// catches tells for every mutation what catches it.
func catches() map[string][]catch {
	const (
		refuse     = "REFUSE, no condition on effects"
		operators  = "REFUSE with an operator, BOUNDED"
		outliving  = "REFUSE with an operator, messages outlive a free record"
		bounded    = "RECONCILE, BOUNDED"
		later      = "RECONCILE, BOUNDED, effects land later"
		fenced     = "RECONCILE, FENCED"
		corrected  = "a corrected request"
		children   = "child keys and a corrected request"
		outlived   = "child keys, messages outlive a free record"
		rerun      = "REFUSE after RERUN"
		reconciled = "RERUN beside RECONCILE"
		operated   = "child keys and an operator"
		olds       = "old requests and a corrected one"
	)
	return map[string][]catch{
		"no fence and no holder check":                 {{bounded, 2, "I5"}, {corrected, 2, "I7"}},
		"no fence check, ended attempts forgotten":     {{bounded, 2, "I4"}, {olds, 3, "I4"}},
		"ended attempts forgotten":                     {{bounded, 2, "I4"}, {olds, 3, "I4"}},
		"no attempt ids":                               {{refuse, 2, "I4"}, {bounded, 2, "I4"}},
		"fence restarts after absence":                 {{refuse, 2, "I5"}},
		"fence frozen":                                 {{refuse, 2, "I5"}, {bounded, 2, "I5"}},
		"Complete after another grant":                 {{rerun, 3, "I5"}, {outliving, 2, "I5"}},
		"lapsed as absent":                             {{refuse, 2, "I1 I4 I9"}},
		"Release ignores attempt and fence":            {{corrected, 2, "I7"}, {bounded, 2, "I5 I9"}},
		"mode not stored":                              {{bounded, 2, "I1 I4 I9"}},
		"Complete creates":                             {{outliving, 2, "I5"}},
		"Complete overwrites":                          {{outliving, 2, "I3"}},
		"fingerprints unchecked":                       {{corrected, 2, "I8"}},
		"expired as absent":                            {{refuse, 2, "I1 I4"}},
		"unknown runs whatever the policy":             {{refuse, 2, "I1"}, {bounded, 2, "I1"}},
		"no lapse":                                     {{refuse, 2, "I6"}},
		"attempt id used by another process":           {{refuse, 2, "I1 I4"}},
		"unfinished records age out":                   {{refuse, 2, "I1"}, {bounded, 2, "I1"}},
		"BeginRun shuts nobody out":                    {{bounded, 2, "I5"}, {fenced, 2, "I5"}},
		"bound cleared by a release":                   {{children, 3, "I1 I9"}},
		"bound cleared by a verdict":                   {{operated, 3, "I9"}},
		"bound ends absent":                            {{outlived, 2, "I1"}},
		"bound not learnt from an open run":            {{operated, 3, "I9"}},
		"open not kept":                                {{rerun, 3, "I9 I1"}},
		"open lost to a reconciler":                    {{reconciled, 3, "I9"}},
		"an open run's error settles":                  {{rerun, 3, "I9"}},
		"Release(UNKNOWN) shortens the lease":          {{later, 2, "I1"}, {operators, 2, "I9"}},
		"the waiver given to all":                      {{later, 2, "I1"}},
		"Resolve without version":                      {{operators, 2, "I9"}},
		"superseded fingerprints forgotten":            {{olds, 3, "I8"}},
		"Lookup without fingerprint":                   {{corrected, 2, "I8"}},
		"Release and Extend act on settled records":    {{refuse, 2, "I10"}, {operators, 2, "I10"}},
		"Release(NONE) from a reconciler":              {{bounded, 2, "I9"}},
		"a repeat of a lapsed grant judged as unknown": {{refuse, 2, "I4"}},

		// With attempt ids that are checked and granted once, a fence adds nothing
		// inside of the store; resources need it.
		"no fence check": {{refuse, 2, ""}, {bounded, 2, ""}, {corrected, 2, ""}},
		// VersionAt tells no version before; each alone is enough.
		"Resolve while effects may land": {{operators, 2, ""}, {outliving, 2, ""}},
		// These keep the truth or prevent a ghost, and guard no invariant.
		"no spent mark":               {{refuse, 2, ""}, {bounded, 2, ""}},
		"the running holder not kept": {{bounded, 2, ""}, {fenced, 2, ""}},
		"Extend after a lapse":        {{operators, 2, ""}},
		"BeginRun after a lapse":      {{bounded, 2, ""}, {fenced, 2, ""}},
	}
}

func named(t *testing.T, name string, attempts int) scenario {
	t.Helper()
	for _, sc := range append(scenarios(attempts), mixed()...) {
		if sc.name == name {
			return sc
		}
	}
	require.Fail(t, "no scenario", name)
	return scenario{}
}

func TestSearchCatchesEveryBrokenRule(t *testing.T) {
	t.Parallel()
	broken, caught := mutations(), catches()
	require.ElementsMatch(t, slices.Collect(maps.Keys(broken)), slices.Collect(maps.Keys(caught)))
	for name, rules := range broken {
		for _, c := range caught[name] {
			t.Run(name+"/"+c.scenario, func(t *testing.T) {
				t.Parallel()
				want := strings.Fields(c.invariants)
				f := search(named(t, c.scenario, c.attempts), rules, want...)
				if len(want) == 0 {
					require.Empty(t, f.broken, "it is said to be equivalent")
					return
				}
				require.Subset(t, slices.Collect(maps.Keys(f.broken)), want)
				t.Logf("%d states, %v", f.states, f.broken[want[0]])
			})
		}
	}
}

// What the rules ask of holders, operators, resources and stores is needed too.
func TestSearchCatchesEveryBrokenCondition(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scenario   string
		spoil      func(*scenario)
		invariants string
	}{
		"RECONCILE without a condition": {
			"RECONCILE, BOUNDED", func(sc *scenario) { sc.bounded = false }, "I1",
		},
		"an operator without a condition": {
			"REFUSE with an operator, BOUNDED", func(sc *scenario) { sc.bounded, sc.async = false, false }, "I1 I9",
		},
		"fences checked on writes only": {
			"RECONCILE, FENCED", func(sc *scenario) { sc.lookUnfenced = true }, "I1",
		},
		"an operator's look while an effect may land": {
			"REFUSE with an operator, BOUNDED", func(sc *scenario) { sc.lookEarly = true }, "I1 I9",
		},
		"a lapsed grant is run": {
			"RECONCILE, BOUNDED", func(sc *scenario) { sc.runLapsed = true }, "I1",
		},
		"an inbox row without fingerprint": {
			"INBOX and a corrected request", func(sc *scenario) { sc.rowBlind = true }, "I8",
		},
		"an answer before Complete is acknowledged": {
			"RERUN beside REFUSE", func(sc *scenario) { sc.answerUnread = true }, "I2",
		},
		"a two-step write guarded by the fence": {
			"a two-step store", func(sc *scenario) {
				sc.guard = func(read, now *Record) bool { return read.Fence == now.Fence }
			}, "I3",
		},
		"a two-step write guarded without the mode": {
			"a two-step store", func(sc *scenario) {
				sc.guard = func(read, now *Record) bool {
					return read.Fence == now.Fence && read.Attempt == now.Attempt && read.State == now.State && read.LeaseEnd == now.LeaseEnd
				}
			}, "I5",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := strings.Fields(c.invariants)
			sc := named(t, c.scenario, 2)
			c.spoil(&sc)
			f := search(sc, Apply, want...)
			require.Subset(t, slices.Collect(maps.Keys(f.broken)), want)
			t.Logf("%d states, %v", f.states, f.broken[want[0]])
		})
	}
}
