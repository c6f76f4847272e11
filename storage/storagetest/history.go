package storagetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	mathrand "math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/dedupd/dedupd/storage"
)

// checkTime bounds the search of CheckHistory.
const checkTime = 30 * time.Second

// Seen is what a caller saw of an answer; anything else is not compared.
type Seen struct {
	Verdict storage.Verdict
	Fence   storage.Fence     // of VerdictGranted
	Outcome [sha256.Size]byte // hash of the outcome that was told; zero without one
}

// SeenOf returns what a caller of a store sees.
func SeenOf(a storage.Answer) Seen {
	s := Seen{Verdict: a.Verdict, Outcome: a.Outcome.Hash()}
	if a.Verdict == storage.VerdictGranted {
		s.Fence = a.Record.Fence
	}
	return s
}

// Operation is one call of a history.
type Operation struct {
	Client       int
	Record       storage.RecordID
	Request      storage.Request // any but Resolve
	Call, Return time.Duration   // since one moment, by one clock
	Lost         bool            // no answer: it may take effect at any time after Call, or never
	Seen         Seen
}

// Recorder records concurrent calls as a history. It is safe for concurrent
// use; NewRecorder makes one.
type Recorder struct {
	start time.Time
	mu    sync.Mutex
	ops   []Operation
}

// NewRecorder starts a history.
func NewRecorder() *Recorder { return &Recorder{start: time.Now()} }

// Do makes one call and records it; an error is recorded as a lost answer.
func (r *Recorder) Do(client int, id storage.RecordID, req storage.Request, call func() (Seen, error)) (Seen, error) {
	op := Operation{Client: client, Record: id, Request: req, Call: time.Since(r.start)}
	seen, err := call()
	op.Return, op.Seen, op.Lost = time.Since(r.start), seen, err != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
	return seen, err
}

// History returns a copy of what was recorded so far.
func (r *Recorder) History() []Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ops)
}

// CheckHistory fails tb unless the history is linearizable: for each record,
// some order of the calls that respects who finished before whom gives the
// answers that storage.Apply gives. Time stands still in it: leases, holds and
// retentions must outlast the history, all records start absent, and Resolve
// (which waits for a lapse) has no place in it. Times of a record are not
// compared, fences are.
func CheckHistory(tb testing.TB, history []Operation) {
	tb.Helper()
	model := historyModel()
	byRecord := map[storage.RecordID][]porcupine.Operation{}
	for _, op := range history {
		end := op.Return.Nanoseconds()
		if op.Lost {
			end = int64(1) << 62
		}
		byRecord[op.Record] = append(byRecord[op.Record], porcupine.Operation{
			ClientId: op.Client, Input: op, Call: op.Call.Nanoseconds(), Return: end,
		})
	}
	for id, ops := range byRecord {
		switch porcupine.CheckOperationsTimeout(model, ops, checkTime) {
		case porcupine.Illegal:
			tb.Errorf("the history of record %s is not linearizable:\n%s", id.Short(), describe(ops))
		case porcupine.Unknown:
			tb.Errorf("the history of record %s (%d calls) was not decided within %s; record fewer calls per key", id.Short(), len(ops), checkTime)
		case porcupine.Ok:
		}
	}
}

func describe(ops []porcupine.Operation) string {
	var b bytes.Buffer
	for _, o := range ops {
		if op, ok := o.Input.(Operation); ok {
			fmt.Fprintf(&b, "  client %d  %v..%v  lost=%t  %T  %s fence %d\n", op.Client, op.Call, op.Return, op.Lost, op.Request, op.Seen.Verdict, op.Seen.Fence)
		}
	}
	return b.String()
}

// modelState is a record at one moment. While no answer has told the fence of
// its grant, the record holds the lowest that it may have.
type modelState struct {
	rec    *storage.Record
	untold bool
}

// historyModel is storage.Apply at one moment. A call without an answer leads to
// two states: as if it had never come, and as if it had.
func historyModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init:  func() []any { return []any{modelState{}} },
		Equal: reflect.DeepEqual,
		Step: func(state, input, _ any) []any {
			s, isState := state.(modelState)
			op, isOp := input.(Operation)
			if !isState || !isOp {
				return nil
			}
			return s.step(op)
		},
	}
	return m.ToModel()
}

func (s modelState) step(op Operation) []any {
	const moment = storage.Instant(1)
	next := s
	rec, want := storage.Apply(s.rec, op.Request, moment, 0)
	granted := want.Verdict == storage.VerdictGranted
	if rec != nil {
		next.rec, next.untold = rec, s.untold || granted
	}
	if op.Lost {
		return []any{s, next}
	}
	if want.Verdict != op.Seen.Verdict || want.Outcome.Hash() != op.Seen.Outcome {
		return nil
	}
	if granted && !next.learn(op.Seen.Fence) {
		return nil
	}
	return []any{next}
}

// learn takes over the fence that an answer tells of the current grant, unless
// it fell or is not the one told before.
func (s *modelState) learn(f storage.Fence) bool {
	if !s.untold {
		return f == s.rec.Fence
	}
	if f < s.rec.Fence {
		return false
	}
	c := *s.rec
	if c.RunFence == c.Fence {
		c.RunFence = f
	}
	c.Fence = f
	s.rec, s.untold = &c, false
	return true
}

// linearizable records clients that contend for few keys and judges what they saw.
func linearizable(f *fixture) {
	const clients, calls = 8, 40
	rec := NewRecorder()
	together(clients, func(i int) {
		c := client{f: f, rec: rec, id: i, rng: mathrand.New(mathrand.NewPCG(uint64(i), calls))}
		for range calls {
			c.step()
		}
	})
	CheckHistory(f, rec.History())
}

// client makes random calls: it reserves, and ends in some way what it got.
type client struct {
	f     *fixture
	rec   *Recorder
	id    int
	rng   *mathrand.Rand
	last  storage.Reserve
	fence storage.Fence
}

func (c *client) step() {
	if c.fence != 0 {
		c.use()
		return
	}
	if c.last.Attempt == (storage.AttemptID{}) || c.rng.IntN(4) > 0 {
		c.last = c.f.request(string(rune('a' + c.rng.IntN(6))))
		c.last.Fingerprint = fingerprint(string(rune('a' + c.rng.IntN(8)/7)))
	}
	seen := c.do(c.last, func() (storage.Answer, error) { return c.f.Store.Reserve(c.f.Context(), c.last) })
	c.fence = seen.Fence
}

func (c *client) use() {
	ctx, id := c.f.Context(), c.last.Identity.RecordID()
	switch c.rng.IntN(6) {
	case 0:
		q := storage.Complete{Attempt: c.last.Attempt, Fence: c.fence, Outcome: success("x"), Terms: terms()}
		c.do(q, func() (storage.Answer, error) { return c.f.Store.Complete(ctx, id, q) })
		c.fence = 0
	case 1:
		q := storage.Extend{Attempt: c.last.Attempt, Fence: c.fence, Lease: storage.MaxLease}
		c.do(q, func() (storage.Answer, error) { return c.f.Store.Extend(ctx, id, q) })
	case 2:
		q := storage.Lookup{Fingerprint: c.last.Fingerprint}
		c.do(q, func() (storage.Answer, error) { return c.f.Store.Lookup(ctx, id, q) })
	default:
		q := storage.Release{Identity: c.last.Identity, Attempt: c.last.Attempt, Fence: c.fence, Effect: storage.EffectNone, Terms: terms()}
		if c.rng.IntN(3) == 0 {
			q.Fence = 0
		}
		c.do(q, func() (storage.Answer, error) { return c.f.Store.Release(ctx, q) })
		c.fence = 0
	}
}

func (c *client) do(req storage.Request, call func() (storage.Answer, error)) Seen {
	seen, err := c.rec.Do(c.id, c.last.Identity.RecordID(), req, func() (Seen, error) {
		ans, err := call()
		if err != nil {
			return Seen{}, err
		}
		return SeenOf(ans), nil
	})
	if err != nil {
		c.f.Errorf("%T: %v", req, err)
	}
	return seen
}
