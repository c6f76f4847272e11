package demo

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func open(t *testing.T, path string) *ledger {
	t.Helper()
	l, err := openLedger(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestLedgerKeepsChargesOverARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	plain := charge{ID: "ch_1", Order: "o\t1\n", Amount: 5}
	granted := charge{ID: "ch_2", Order: "o2", Amount: 7, Record: "aa", Fence: 3}
	require.NoError(t, l.Charge(plain))
	require.NoError(t, l.Charge(granted))
	require.NoError(t, l.Close())

	l = open(t, path)
	require.Equal(t, []charge{plain}, l.Of("o\t1\n"))
	require.Equal(t, []charge{granted}, l.Of("o2"))
	found, ok, err := l.Look("aa", 4)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, granted, found)
	charges, err := readCharges(path)
	require.NoError(t, err)
	require.Equal(t, map[string][]charge{"o\t1\n": {plain}, "o2": {granted}}, charges)
}

func TestLedgerRefusesAFenceThatALaterLookHasPassed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	_, found, err := l.Look("aa", 5)
	require.NoError(t, err)
	require.False(t, found)
	require.ErrorIs(t, l.Charge(charge{ID: "late", Order: "o", Amount: 1, Record: "aa", Fence: 4}), errFenced)
	require.Empty(t, l.Of("o"))
	require.NoError(t, l.Close())

	// The door stays closed when the process that closed it is gone.
	l = open(t, path)
	require.ErrorIs(t, l.Charge(charge{ID: "later", Order: "o", Amount: 1, Record: "aa", Fence: 4}), errFenced)
	_, _, err = l.Look("aa", 4)
	require.ErrorIs(t, err, errFenced)
	require.NoError(t, l.Charge(charge{ID: "now", Order: "o", Amount: 1, Record: "aa", Fence: 5}))
	require.NoError(t, l.Charge(charge{ID: "other", Order: "p", Amount: 1, Record: "bb", Fence: 1}), "records do not share fences")
}

func TestLedgerWritesDoubleChargesSoThatTheyAreCounted(t *testing.T) {
	t.Parallel()
	l := open(t, filepath.Join(t.TempDir(), "ledger"))
	for range 2 {
		require.NoError(t, l.Charge(charge{ID: "x", Order: "o", Amount: 1, Record: "aa", Fence: 1}))
		require.NoError(t, l.Charge(charge{ID: "y", Order: "p", Amount: 1}))
	}
	require.Len(t, l.Of("o"), 2)
	require.Len(t, l.Of("p"), 2)
}

func TestLedgerCutsOffALineThatAKillCutShort(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	require.NoError(t, l.Charge(charge{ID: "whole", Order: "o", Amount: 1}))
	require.NoError(t, l.Close())
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString("charge\t\t0\ttorn")
	require.NoError(t, err)
	require.NoError(t, file.Close())

	l = open(t, path)
	require.NoError(t, l.Charge(charge{ID: "next", Order: "o", Amount: 2}))
	require.Equal(t, []charge{{ID: "whole", Order: "o", Amount: 1}, {ID: "next", Order: "o", Amount: 2}}, l.Of("o"))
	charges, err := readCharges(path)
	require.NoError(t, err)
	require.Len(t, charges["o"], 2)
}

func TestLedgerRefusesAFileThatIsNoLedger(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"hello\n", "charge\ta\n", "charge\taa\tx\tid\t1\t\"o\"\n", "charge\taa\t1\tid\tx\t\"o\"\n", "charge\taa\t1\tid\t1\to\n", "look\taa\tx\n"} {
		path := filepath.Join(t.TempDir(), "ledger")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := openLedger(path)
		require.ErrorContains(t, err, "none of its own", text)
	}
}

func TestLedgerIsOpenInOneProcessAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	open(t, path)
	_, err := openLedger(path)
	require.ErrorContains(t, err, "another process has the ledger open")
}

func TestLedgerTakesChargesFromManyAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				_ = l.Charge(charge{ID: "id", Order: "o", Amount: 1}) // counted below
			}
		})
	}
	wg.Wait()
	charges, err := readCharges(path)
	require.NoError(t, err)
	require.Len(t, charges["o"], 40)
}
