package storagetest

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheRulesAloneInAMapPassTheSuite(t *testing.T) {
	t.Parallel()
	Run(t, openPlain(""))
}

func TestASkippedCapabilityIsASkippedCase(t *testing.T) {
	t.Parallel()
	bare := func(tb testing.TB) Harness {
		tb.Helper()
		return Harness{Store: openPlain("")(tb).Store}
	}
	for _, c := range timeCases() {
		if c.clock {
			require.True(t, try(t, c, bare).skipped, c.name)
		}
	}
}

func TestTheSuiteNoticesABrokenStore(t *testing.T) {
	t.Parallel()
	faults := map[string]struct{ cases []testCase }{
		"reads and writes apart":         {concurrencyCases()[:1]},
		"acknowledges without a write":   {grantCases()[:1]},
		"knows no ended attempts":        {grantCases()[4:5]},
		"grants the same fence again":    {grantCases()[5:6]},
		"knows no callers":               {identityCases()[1:2]},
		"loses a byte":                   {outcomeCases()[1:2]},
		"grants to callers that gave up": {lifecycleCases()[:1]},
		"loses all on a restart":         {lifecycleCases()[5:6]},
		"lists states as stored":         {listingCases()[3:4]},
		"skips a record between pages":   {listingCases()[:1]},
		"sweeps lapsed grants":           {timeCases()[6:7]},
		"sweeps marks in their time":     {sweepCases()[3:4]},

		"takes a repeated Park for a new one":      {parkingCases()[1:2]},
		"has no cap":                               {parkingCases()[11:13]},
		"completes the record without its entries": {replayCases()[:1]},
		"keeps no claims":                          {claimCases()[:1]},
		"trusts any claim":                         {replayCases()[2:3]},
		"lists requests":                           {entryListCases()[3:4]},
		"redacts open entries only":                {erasureCases()[1:2]},
		"forgets records without their entries":    {erasureCases()[4:5]},
	}
	for fault, want := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			for _, c := range want.cases {
				require.True(t, try(t, c, openPlain(fault)).failed, "the case %q must fail", c.name)
				require.False(t, try(t, c, openPlain("")).failed, "the case %q must pass without the fault", c.name)
			}
		})
	}
}

// verdict is how a case ended.
type verdict struct {
	testing.TB
	mu              sync.Mutex
	failed, skipped bool
}

// try runs one case aside, so that its failure is not the test's.
func try(t *testing.T, c testCase, open Opener) *verdict {
	t.Helper()
	v := &verdict{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.try(v, open) //nolint:testifylint // v ends this goroutine, not the test's
	}()
	<-done
	return v
}

func (v *verdict) Errorf(string, ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed = true
}

func (v *verdict) FailNow() {
	v.Errorf("")
	runtime.Goexit()
}

func (v *verdict) Skip(...any) {
	v.skipped = true
	runtime.Goexit()
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}
