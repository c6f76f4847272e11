package jetstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// outer is the outer world: it has the effects, outlives every process, and takes
// part in the promise as an outside system can: it refuses fences below the
// highest that it has seen for a record, a look's included (FENCED). It does not
// deduplicate: an effect that arrives twice with good fences is counted twice.
type outer struct {
	*httptest.Server
	// at is told of the n-th effect that process pid asks for; it lets it happen, or
	// not, and returns whether it did.
	at func(n, pid int, record string, happen func() bool) bool

	mu      sync.Mutex
	arrived int
	fences  map[string]int64  // of a record
	done    map[string]string // record → what was done under it
	effects map[string]int
	refused int
	late    map[string]func() bool // of a record: an effect that is still on its way
}

func startOuter(t *testing.T) *outer {
	t.Helper()
	o := &outer{fences: map[string]int64{}, done: map[string]string{}, effects: map[string]int{}, late: map[string]func() bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apply", o.apply)
	mux.HandleFunc("POST /look", o.look)
	o.Server = httptest.NewServer(mux)
	t.Cleanup(o.Close)
	return o
}

// passLocked lets a fence pass, or refuses it.
func (o *outer) passLocked(record string, fence int64) bool {
	if fence < o.fences[record] {
		o.refused++
		return false
	}
	o.fences[record] = fence
	return true
}

func (o *outer) happen(record string, fence int64, what string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.passLocked(record, fence) {
		return false
	}
	o.effects[what]++
	o.done[record] = what
	return true
}

func (o *outer) apply(w http.ResponseWriter, r *http.Request) {
	record, fence, what := asked(r)
	pid, _ := strconv.Atoi(r.FormValue("pid"))
	o.mu.Lock()
	o.arrived++
	n := o.arrived
	o.mu.Unlock()
	if !o.at(n, pid, record, func() bool { return o.happen(record, fence, what) }) {
		w.WriteHeader(http.StatusConflict)
	}
}

// delay has an effect land only when somebody else has looked whether it did.
func (o *outer) delay(record string, happen func() bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.late[record] = happen
}

// look registers the fence and then tells what was done under the record.
func (o *outer) look(w http.ResponseWriter, r *http.Request) {
	record, fence, _ := asked(r)
	o.mu.Lock()
	ok := o.passLocked(record, fence)
	what, late := o.done[record], o.late[record]
	delete(o.late, record)
	o.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusConflict)
		return
	}
	if late != nil {
		late() // too late: a later fence was here
	}
	_ = json.NewEncoder(w).Encode(what) // a reader that left asks again
}

func asked(r *http.Request) (record string, fence int64, what string) {
	fence, _ = strconv.ParseInt(r.FormValue("fence"), 10, 64)
	return r.FormValue("record"), fence, r.FormValue("what")
}

var errFenced = errors.New("a later grant has been here")

// ask is a process's way to the outer world.
func ask(ctx context.Context, client *http.Client, where string, record []byte, fence int64, more url.Values) ([]byte, error) {
	more.Set("record", fmt.Sprintf("%x", record))
	more.Set("fence", strconv.FormatInt(fence, 10))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, where+"?"+more.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusConflict {
		err = errFenced
	}
	return body, errors.Join(err, resp.Body.Close())
}

func (o *outer) requireOnce(t *testing.T, messages int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	require.Len(t, o.effects, messages, "every message has its effect")
	for what, times := range o.effects {
		require.Equal(t, 1, times, what)
	}
}
