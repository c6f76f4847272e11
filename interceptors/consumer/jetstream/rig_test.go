package jetstream_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
	dedupd "github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	stream  = "ORDERS"
	subject = "orders.created"
	durable = "shipping"
)

// broker is a NATS server with JetStream on disk.
type broker struct {
	url string
	js  js.JetStream
	nc  *nats.Conn
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(time.Minute), "the NATS server starts")
	b := &broker{url: s.ClientURL()}
	b.nc, b.js = connect(t, b.url)
	_, err = b.js.CreateStream(t.Context(), js.StreamConfig{
		Name: stream, Subjects: []string{subject}, Storage: js.FileStorage, Duplicates: 100 * time.Millisecond,
	})
	require.NoError(t, err)
	return b
}

func connect(t *testing.T, url string) (*nats.Conn, js.JetStream) {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	at, err := js.New(nc)
	require.NoError(t, err)
	return nc, at
}

// consume makes a consumer at the server; how changes its settings.
func (b *broker) consume(t *testing.T, how func(*js.ConsumerConfig)) js.Consumer {
	t.Helper()
	c := js.ConsumerConfig{
		Durable: durable, AckPolicy: js.AckExplicitPolicy, MaxDeliver: -1, AckWait: 2 * time.Second, MaxAckPending: 10_000,
	}
	if how != nil {
		how(&c)
	}
	made, err := b.js.CreateConsumer(t.Context(), stream, c)
	require.NoError(t, err)
	return made
}

func (b *broker) publish(t *testing.T, id string) {
	t.Helper()
	_, err := b.js.PublishMsg(t.Context(), &nats.Msg{
		Subject: subject, Data: []byte("order " + id), Header: nats.Header{js.MsgIDHeader: {id}},
	})
	require.NoError(t, err)
}

// told is what the server publishes of settled messages, on subjects below
// $JS.EVENT.
func (b *broker) told(t *testing.T, event string) chan *nats.Msg {
	t.Helper()
	msgs := make(chan *nats.Msg, 20_000)
	sub, err := b.nc.ChanSubscribe("$JS.EVENT."+event+"."+stream+"."+durable, msgs)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() }) // or closed with its connection
	require.NoError(t, b.nc.Flush())
	return msgs
}

// startDedupd serves a dedupd, on disk, and returns its address.
func startDedupd(t *testing.T) string {
	t.Helper()
	store, err := embedded.Open(embedded.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	s, err := dedupd.New(dedupd.Config{Store: store})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx, listener, nil) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
		require.NoError(t, store.Close())
	})
	return listener.Addr().String()
}

func dialDedupd(t *testing.T, address string) (*grpc.ClientConn, dedupv1.DedupServiceClient) {
	t.Helper()
	conn, err := interceptors.DialDedupd([]string{address}, interceptors.DialInsecure())
	require.NoError(t, err)
	return conn, dedupv1.NewDedupServiceClient(conn)
}

// drawer keeps dead letters.
type drawer struct {
	mu      sync.Mutex
	letters []consumer.Letter
}

func (d *drawer) Park(_ context.Context, l consumer.Letter) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.letters = append(d.letters, l)
	return nil
}

// child is a process of this test binary that runs one of its tests.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer // closed: it ends in order
	out   *bytes.Buffer
	ended chan struct{}
	err   error // how it ended
}

// startChild starts one; it is told to ended, too, when it has ended.
func startChild(t *testing.T, ended chan<- *child, test string, env ...string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), env...)
	c := &child{cmd: cmd, out: &bytes.Buffer{}, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = c.out, c.out
	var err error
	c.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	go func() {
		c.err = cmd.Wait()
		close(c.ended)
		select {
		case ended <- c:
		case <-t.Context().Done():
		}
	}()
	return c
}

// kill ends it as kill -9 does, and returns when it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}
