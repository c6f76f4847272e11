package embedded_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dedupd/dedupd/storage"
	"github.com/dedupd/dedupd/storage/embedded"
)

// ack is what a store has acknowledged of a key.
type ack struct {
	fence     storage.Fence
	completed bool
	parked    storage.EntryID // zero: none
}

// load drives a store with callers that reserve and complete keys of their own,
// and park every third in between, and remembers what was acknowledged.
type load struct {
	store *embedded.Store
	mu    sync.Mutex
	acks  map[string]ack
	fault error // the first
	// onAck is called after each acknowledgement, with their number so far.
	onAck func(n int)
	count int
}

func request(key string) storage.Reserve {
	q := storage.Reserve{
		Identity:    storage.Identity{Namespace: "shop", Operation: "/pay.v1.Payments/Charge", Caller: "c", Key: key},
		Fingerprint: storage.Fingerprint{{Version: 1, Server: "s"}},
		Lease:       storage.MaxLease,
	}
	binary.BigEndian.PutUint64(q.Attempt[:], rand.Uint64())
	return q
}

// responseOf is a response that does not compress and differs from key to key.
func responseOf(key string) *storage.Outcome {
	seed := sha256.Sum256([]byte(key))
	b := make([]byte, 4000)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return &storage.Outcome{HasResponse: true, TypeURL: "t", Response: b}
}

// run makes cycles by so many callers at once; each stops at its first fault.
func (l *load) run(ctx context.Context, callers, cycles int) {
	l.acks = map[string]ack{}
	var done sync.WaitGroup
	for i := range callers {
		done.Go(func() {
			for j := range cycles {
				if err := l.cycle(ctx, fmt.Sprintf("key-%d-%d", i, j), j%parkEvery == 0); err != nil {
					l.fail(err)
					return
				}
			}
		})
	}
	done.Wait()
}

// parkEvery is how many cycles there are for each that parks.
const parkEvery = 3

func (l *load) cycle(ctx context.Context, key string, parks bool) error {
	q := request(key)
	ans, err := l.store.Reserve(ctx, q)
	if err != nil {
		return err
	}
	fence := ans.Record.Fence
	a := ack{fence: fence}
	l.note(key, a)
	if parks {
		ans, err := l.store.Park(ctx, storage.Park{Entry: storage.DeadLetter{
			Kind: storage.EntryExhausted, Identity: q.Identity, ParkID: q.Attempt, HasRequest: true, Request: []byte(key),
		}})
		if err != nil {
			return err
		}
		a.parked = ans.Entry.ID
		l.note(key, a)
	}
	_, err = l.store.Complete(ctx, q.Identity.RecordID(), storage.Complete{
		Attempt: q.Attempt, Fence: fence, Outcome: responseOf(key), Terms: storage.Terms{Retention: time.Hour},
	})
	if err != nil {
		return err
	}
	a.completed = true
	l.note(key, a)
	return nil
}

func (l *load) note(key string, a ack) {
	l.mu.Lock()
	l.acks[key] = a
	l.count++
	n := l.count
	l.mu.Unlock()
	if l.onAck != nil {
		l.onAck(n)
	}
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil {
		l.fault = err
	}
}

// acknowledged returns a copy of what was acknowledged so far.
func (l *load) acknowledged() map[string]ack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.acks)
}

// requireAcknowledged looks for all that was acknowledged in a reopened store.
func requireAcknowledged(t *testing.T, s *embedded.Store, acks map[string]ack) {
	t.Helper()
	for key, a := range acks {
		q := request(key)
		if a.parked != (storage.EntryID{}) {
			ans, err := s.Entry(t.Context(), a.parked)
			require.NoError(t, err)
			require.NotNil(t, ans.Entry, "an entry that was taken in is there")
			require.Equal(t, key, string(ans.Entry.Request))
			require.Equal(t, ans.State != storage.StateCompleted, ans.Entry.Open(), "record and entry went in one step")
		}
		ans, err := s.Reserve(t.Context(), q)
		require.NoError(t, err)
		require.NotNil(t, ans.Record, "a granted key is still known")
		require.Equal(t, a.fence, ans.Record.Fence, "it was not granted anew")
		if a.completed {
			require.Equal(t, storage.VerdictCompleted, ans.Verdict, "completed work is replayed, not run again")
		}
		if ans.Verdict == storage.VerdictCompleted {
			require.Equal(t, responseOf(key).Hash(), ans.Outcome.Hash())
		}
	}
}
