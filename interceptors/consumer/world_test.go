package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is dedupd, a queue's dead letters, and the outer world in which handlers
// have their effects. Every test runs it in a synctest bubble.
type world struct {
	t      *testing.T
	dedupd *server.Server

	mu      sync.Mutex
	letters []consumer.Letter
	noPark  error // parking fails
	sent    []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store, err := embedded.OpenMemory(embedded.Options{CacheBytes: 1 << 20, MemtableBytes: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w := &world{t: t}
	w.dedupd, err = server.New(server.Config{Store: store})
	require.NoError(t, err)
	return w
}

func (w *world) Park(_ context.Context, l consumer.Letter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noPark != nil {
		return w.noPark
	}
	w.letters = append(w.letters, l)
	return nil
}

// causes are those of the letters parked so far.
func (w *world) causes() (causes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.letters {
		causes = append(causes, l.Cause.String())
	}
	return causes
}

// effect is what must not happen twice.
func (w *world) effect(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, id)
}

func (w *world) effects() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.sent...)
}

// process is one process of the service, with its own way to dedupd.
type process struct {
	*consumer.Consumer
	w *world

	mu    sync.Mutex
	dead  bool                      // dedupd hears nothing of it any more
	fault func(method string) error // instead of a call
	lose  func(method string) bool  // its reply
	calls map[string]int
}

// start starts a process; how changes its settings.
func (w *world) start(how func(*consumer.Config)) *process {
	w.t.Helper()
	p := &process{w: w, calls: map[string]int{}}
	c := consumer.Config{Dedup: dedupv1.NewDedupServiceClient(p), Namespace: "test", Operation: "consume orders", DeadLetters: w}
	if how != nil {
		how(&c)
	}
	var err error
	p.Consumer, err = consumer.New(c)
	require.NoError(w.t, err)
	w.t.Cleanup(p.Close)
	return p
}

func (p *process) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// kill ends the process as kill -9 does, as far as dedupd can tell.
func (p *process) kill() { p.set(func() { p.dead = true }) }

func (p *process) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	method := name[strings.LastIndexByte(name, '/')+1:]
	p.mu.Lock()
	p.calls[method]++
	dead, fault, lose := p.dead, p.fault, p.lose
	p.mu.Unlock()
	if dead {
		return status.Error(codes.PermissionDenied, "the process is dead")
	}
	if fault != nil {
		if err := fault(method); err != nil {
			return err
		}
	}
	err := p.w.dedupd.Conn().Invoke(ctx, name, args, reply, opts...)
	if lose != nil && lose(method) {
		return status.Error(codes.Unavailable, "the connection was cut")
	}
	return err
}

func (p *process) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "dedupd has no streams")
}

// message is the n-th delivery of a message.
func message(id string, n uint64) consumer.Message {
	return consumer.Message{ID: id, Body: []byte("order " + id), Deliveries: n}
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

// deliver delivers a message until it is taken off the queue, waiting as the
// decisions ask for, and returns them in words.
func (p *process) deliver(t *testing.T, id string, fn func(ctx context.Context) error) (decisions []string) {
	t.Helper()
	for n := uint64(1); n < 50; n++ {
		d := p.Handle(t.Context(), message(id, n), fn)
		decisions = append(decisions, words(d))
		if d.Action != consumer.Nack {
			return decisions
		}
		pass(d.Delay)
	}
	require.Fail(t, "the message is never settled", "%v", decisions)
	return nil
}

func words(d consumer.Decision) string {
	s := d.Action.String()
	if d.Cause != consumer.CauseNone {
		s += " " + d.Cause.String()
	}
	if d.Duplicate {
		s += " duplicate"
	}
	if d.Runs > 0 {
		s += fmt.Sprint(" run ", d.Runs)
	}
	return s
}
