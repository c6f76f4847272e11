package demo

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// errFenced is returned for a fence below one that the ledger has seen for the
// same record: a later grant has looked or charged, so this one comes too late.
var errFenced = errors.New("a later grant has been here; this one may no longer charge")

// ledger is the sample service's effect: a file with one line per charge, synced
// to disk before a charge is acknowledged. It is safe for concurrent use.
//
// It refuses old fences, as an outside system that takes part in the promise
// must. It does not deduplicate: a charge that arrives twice with good fences is
// written twice, so that the demo can count it.
//
// An exclusive lock is held while it is open. Opening it therefore also proves
// that every earlier process is gone, however it ended.
type ledger struct {
	mu      sync.Mutex
	file    *os.File
	fences  map[string]int64  // record → highest fence seen
	charged map[string]charge // record → its last charge
	orders  map[string][]charge
}

// charge is one line: money that was taken.
type charge struct {
	ID     string
	Order  string
	Amount int64
	// Record and Fence are of the grant it was made under; empty and 0 without
	// dedupd.
	Record string
	Fence  int64
}

// openLedger opens or makes the file at path and reads what earlier processes
// wrote. A last line that a kill cut short was never acknowledged: it is cut
// off.
func openLedger(path string) (*ledger, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &ledger{file: file, fences: map[string]int64{}, charged: map[string]charge{}, orders: map[string][]charge{}}
	if err := l.load(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, nil
}

// load runs before the ledger is shared.
func (l *ledger) load() error {
	if err := lockFile(l.file); err != nil {
		return fmt.Errorf("another process has the ledger open: %w", err)
	}
	whole, err := eachEntry(l.file, func(e entry) {
		l.fences[e.Record] = max(l.fences[e.Record], e.Fence)
		if !e.look {
			l.keepLocked(e.charge)
		}
	})
	if err != nil {
		return err
	}
	if err := l.file.Truncate(whole); err != nil {
		return err
	}
	_, err = l.file.Seek(whole, io.SeekStart)
	return err
}

// Charge appends c and returns once it is on disk. With a record it refuses
// fences below the highest seen.
func (l *ledger) Charge(c charge) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.passLocked(c.Record, c.Fence); err != nil {
		return err
	}
	if err := l.appendLocked(entry{charge: c}); err != nil {
		return err
	}
	l.keepLocked(c)
	return nil
}

// Of returns what was charged for order.
func (l *ledger) Of(order string) []charge {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.orders[order])
}

// Look registers fence for record, on disk, and then tells what was charged
// under it. From here on no earlier grant can charge: nothing found means that
// nothing will be.
func (l *ledger) Look(record string, fence int64) (charge, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.passLocked(record, fence); err != nil {
		return charge{}, false, err
	}
	if err := l.appendLocked(entry{charge: charge{Record: record, Fence: fence}, look: true}); err != nil {
		return charge{}, false, err
	}
	c, found := l.charged[record]
	return c, found, nil
}

// Close gives the lock back.
func (l *ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

func (l *ledger) keepLocked(c charge) {
	l.orders[c.Order] = append(l.orders[c.Order], c)
	if c.Record != "" {
		l.charged[c.Record] = c
	}
}

func (l *ledger) passLocked(record string, fence int64) error {
	if record == "" {
		return nil
	}
	if fence < l.fences[record] {
		return errFenced
	}
	l.fences[record] = fence
	return nil
}

func (l *ledger) appendLocked(e entry) error {
	if _, err := l.file.Write(e.line()); err != nil {
		return err
	}
	return l.file.Sync()
}

// entry is a line of the file: a charge, or a look that registers a fence.
type entry struct {
	charge
	look bool
}

func (e entry) line() []byte {
	if e.look {
		return fmt.Appendf(nil, "look\t%s\t%d\n", e.Record, e.Fence)
	}
	return fmt.Appendf(nil, "charge\t%s\t%d\t%s\t%d\t%s\n", e.Record, e.Fence, e.ID, e.Amount, strconv.Quote(e.Order))
}

func parseEntry(line string) (entry, error) {
	var e entry
	f := strings.Split(line, "\t")
	bad := fmt.Errorf("the ledger has a line that is none of its own: %q", line)
	switch {
	case f[0] == "look" && len(f) == 3:
		e.look = true
	case f[0] == "charge" && len(f) == 6:
		var err error
		if e.Amount, err = strconv.ParseInt(f[4], 10, 64); err != nil {
			return entry{}, bad
		}
		if e.Order, err = strconv.Unquote(f[5]); err != nil {
			return entry{}, bad
		}
		e.ID = f[3]
	default:
		return entry{}, bad
	}
	fence, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		return entry{}, bad
	}
	e.Record, e.Fence = f[1], fence
	return e, nil
}

// eachEntry calls do for every whole line and returns how many bytes they take.
func eachEntry(r io.Reader, do func(entry)) (int64, error) {
	lines := bufio.NewReader(r)
	var whole int64
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return whole, err
		}
		e, err := parseEntry(string(bytes.TrimSuffix(line, []byte{'\n'})))
		if err != nil {
			return whole, err
		}
		whole += int64(len(line))
		do(e)
	}
}

// readCharges returns every charge in the ledger at path, by order.
func readCharges(path string) (map[string][]charge, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	charges := map[string][]charge{}
	_, err = eachEntry(file, func(e entry) {
		if !e.look {
			charges[e.Order] = append(charges[e.Order], e.charge)
		}
	})
	return charges, errors.Join(err, file.Close())
}
