package guard_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows is a store in a map: the rules and nothing else.
type rows struct {
	storage.DeadLetters // nothing here parks with it

	mu   sync.Mutex
	rows map[storage.RecordID]*storage.Record
	skew time.Duration
	// readOnly: nothing can be written, as after a network break.
	readOnly bool
}

func (s *rows) lock(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readOnly = on
}

// forget drops every record.
func (s *rows) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.rows)
}

func (s *rows) judge(ctx context.Context, id storage.RecordID, req storage.Request) (storage.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return storage.Answer{}, err
	}
	next, ans := storage.Apply(s.rows[id], req, storage.InstantOf(time.Now()), s.skew)
	if next != nil && s.readOnly {
		return storage.Answer{}, fmt.Errorf("%w: read-only", storage.ErrUnavailable)
	}
	if next != nil {
		s.rows[id] = next
	}
	return ans, nil
}

func (s *rows) Reserve(ctx context.Context, q storage.Reserve) (storage.Answer, error) {
	return s.judge(ctx, q.Identity.RecordID(), q)
}

func (s *rows) Release(ctx context.Context, q storage.Release) (storage.Answer, error) {
	return s.judge(ctx, q.Identity.RecordID(), q)
}

func (s *rows) BeginRun(ctx context.Context, id storage.RecordID, q storage.BeginRun) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *rows) Complete(ctx context.Context, id storage.RecordID, q storage.Complete) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *rows) Extend(ctx context.Context, id storage.RecordID, q storage.Extend) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *rows) Lookup(ctx context.Context, id storage.RecordID, q storage.Lookup) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *rows) Resolve(ctx context.Context, id storage.RecordID, q storage.Resolve) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *rows) Redact(ctx context.Context, id storage.RecordID, q storage.Redact) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *rows) Forget(ctx context.Context, id storage.RecordID, q storage.Forget) (storage.Answer, error) {
	return s.judge(ctx, id, q)
}

func (s *rows) List(context.Context, storage.List) (storage.Page, error) { return storage.Page{}, nil }
func (s *rows) Sweep(context.Context, int) (int, error)                  { return 0, nil }
func (s *rows) Check(context.Context) error                              { return nil }
func (s *rows) Skew() time.Duration                                      { return s.skew }
func (s *rows) Close() error                                             { return nil }

// fault is what happens to calls of dedupd.
type fault struct {
	lost  bool          // it is done, but its reply never comes
	after time.Duration // it is done this much later
	deaf  bool          // the wait does not end with its context
	err   error         // it is not done
}

// wire is the way to dedupd, with faults on it.
type wire struct {
	cc grpc.ClientConnInterface

	mu     sync.Mutex
	calls  map[string]int
	faults map[string]func(n int) fault
}

var errCut = status.Error(codes.Unavailable, "the connection was cut")

// on sets what happens to the n-th call, from 1, of a method from now on.
func (w *wire) on(method string, f func(n int) fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[method] = f
	w.calls[method] = 0
}

func (w *wire) count(method string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[method]
}

func (w *wire) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	method := name[len("/dedup.v1.DedupService/"):]
	w.mu.Lock()
	w.calls[method]++
	var f fault
	if w.faults[method] != nil {
		f = w.faults[method](w.calls[method])
	}
	w.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	if f.deaf {
		pass(f.after)
	} else if f.after > 0 {
		select {
		case <-time.After(f.after):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	err := w.cc.Invoke(ctx, name, args, reply, opts...)
	if f.lost {
		return errCut
	}
	return err
}

func (w *wire) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

func always(f fault) func(int) fault { return func(int) fault { return f } }

func firstly(times int, f fault) func(int) fault {
	return func(n int) fault {
		if n <= times {
			return f
		}
		return fault{}
	}
}

// world is a dedupd and an engine that reaches it by a wire.
type world struct {
	*wire
	store  *rows
	dedupd *server.Server
	engine *guard.Engine
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{store: &rows{rows: map[storage.RecordID]*storage.Record{}}}
	var err error
	w.dedupd, err = server.New(server.Config{Store: w.store})
	require.NoError(t, err)
	w.wire, w.engine = w.join(t, guard.Observer{})
	return w
}

// join makes one more engine, as another process would have it.
func (w *world) join(t *testing.T, o guard.Observer) (*wire, *guard.Engine) {
	t.Helper()
	return w.joinWith(t, guard.Config{Observer: o})
}

func (w *world) joinWith(t *testing.T, c guard.Config) (*wire, *guard.Engine) {
	t.Helper()
	way := &wire{cc: w.dedupd.Conn(), calls: map[string]int{}, faults: map[string]func(int) fault{}}
	c.Dedup, c.Namespace = dedupv1.NewDedupServiceClient(way), "test"
	engine, err := guard.New(c)
	require.NoError(t, err)
	t.Cleanup(engine.Close)
	return way, engine
}

// state tells the record's state as dedupd sees it.
func (w *world) state(t *testing.T, c guard.Call) dedupv1.State {
	t.Helper()
	return w.lookup(t, c).GetState()
}

func (w *world) lookup(t *testing.T, c guard.Call) *dedupv1.RecordInfo {
	t.Helper()
	resp, err := dedupv1.NewDedupServiceClient(w.dedupd.Conn()).Lookup(t.Context(), &dedupv1.LookupRequest{
		Record: &dedupv1.LookupRequest_Identity{Identity: identity(c)},
	})
	require.NoError(t, err)
	return resp.GetRecord()
}

func identity(c guard.Call) *dedupv1.Identity {
	return &dedupv1.Identity{Namespace: "test", Operation: c.Operation, Caller: c.Caller, Key: c.Key}
}

func call() guard.Call {
	return guard.Call{
		Operation: "/pay.v1.Pay/Charge", Caller: []byte("ada"), Key: []byte("order 1"),
		Fingerprints: []*dedupv1.Fingerprint{{Version: 1, Digest: []byte("same request")}},
	}
}

func reconciling(basis dedupv1.Basis, v guard.Verdict, err error) guard.Call {
	c := call()
	c.Basis = basis
	c.Reconciler = func(context.Context, guard.Attempt) (guard.Verdict, error) { return v, err }
	return c
}

func answerOf(text string) *dedupv1.Outcome {
	return &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{
		TypeUrl: "type.googleapis.com/test", Value: []byte(text),
	}}}
}

// effect is work whose runs are counted.
type effect struct {
	mu   sync.Mutex
	runs int
}

func (e *effect) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs
}

func (e *effect) add() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs++
}

func (e *effect) run(context.Context, guard.Attempt) guard.Ending {
	e.add()
	return guard.Ending{Outcome: answerOf("done")}
}

// lasting is work that takes d and stops when told to.
func (e *effect) lasting(d time.Duration) guard.Run {
	return func(ctx context.Context, a guard.Attempt) guard.Ending {
		select {
		case <-time.After(d):
			return e.run(ctx, a)
		case <-ctx.Done():
			return guard.Ending{Effect: dedupv1.Effect_EFFECT_UNKNOWN}
		}
	}
}

// crash leaves a grant behind, as a process does that dies in its handler.
func (w *world) crash(t *testing.T, c guard.Call) {
	t.Helper()
	_, err := dedupv1.NewDedupServiceClient(w.dedupd.Conn()).Reserve(t.Context(), &dedupv1.ReserveRequest{
		Identity: identity(c), Fingerprints: c.Fingerprints, AttemptId: []byte("a dead process's"),
	})
	require.NoError(t, err)
}

func requireStored(t *testing.T, res guard.Result, err error, text string) {
	t.Helper()
	require.NoError(t, err)
	require.NotNil(t, res.Stored, "the answer comes from the record")
	require.Equal(t, text, string(res.Stored.GetOutcome().GetResponse().GetValue()))
}

func requireOwn(t *testing.T, res guard.Result, err error) {
	t.Helper()
	require.NoError(t, err)
	require.Nil(t, res.Stored, "the run's own answer stands")
}

func requireRefused(t *testing.T, err error, reason dedupv1.Reason, unknown bool) (retryAfter time.Duration) {
	t.Helper()
	var r *guard.RefusalError
	require.ErrorAs(t, err, &r)
	require.Equal(t, reason.String(), r.Reason.String())
	require.Equal(t, unknown, errors.Is(err, guard.ErrOutcomeUnknown))
	return r.RetryAfter
}

// pass lets time go by; every test runs in a synctest bubble.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // only called in bubbles
}
