package demo

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// proxy is the unreliable network between the clients and the payments service.
// It forwards TCP connections and reads just enough of HTTP/2 to fail at the
// worst instant: it lets a request through, and when the reply's first frame
// comes back it drops it and cuts the connection. It cuts some connections
// before the request goes through, too.
type proxy struct {
	lis     net.Listener
	backend string
	faults  *faults
}

// faults draws what goes wrong, and counts it. It is safe for concurrent use.
type faults struct {
	mu       sync.Mutex
	random   *rand.Rand
	loss     float64
	replies  atomic.Int64 // lost
	requests atomic.Int64 // cut before they went through
}

// newFaults loses the share loss of replies, and cuts a quarter as many
// requests. Equal seeds draw equal sequences; which call meets which draw still
// depends on timing.
func newFaults(loss float64, seed uint64) *faults {
	return &faults{loss: loss, random: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // faults are no secrets
}

func (f *faults) loseReply() bool { return f.draw(f.loss, &f.replies) }

func (f *faults) cutRequest() bool { return f.draw(f.loss/4, &f.requests) }

func (f *faults) draw(share float64, count *atomic.Int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.random.Float64() >= share {
		return false
	}
	count.Add(1)
	return true
}

// newProxy listens on a free loopback port and forwards to backend.
func newProxy(ctx context.Context, backend string, f *faults) (*proxy, error) {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &proxy{lis: lis, backend: backend, faults: f}, nil
}

// Addr is where clients connect.
func (p *proxy) Addr() string { return p.lis.Addr().String() }

// Run forwards until ctx ends, then cuts every connection and returns nil.
func (p *proxy) Run(ctx context.Context) error {
	var conns errgroup.Group
	stop := context.AfterFunc(ctx, func() { _ = p.lis.Close() }) // ends Accept; nothing else can be done about it
	defer stop()
	for {
		client, err := p.lis.Accept()
		if err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			return errors.Join(err, conns.Wait())
		}
		conns.Go(func() error {
			p.forward(ctx, client)
			return nil
		})
	}
}

// forward serves one connection until either side or a fault ends it. A backend
// that is down looks like a connection that closes at once.
func (p *proxy) forward(ctx context.Context, client net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialer := net.Dialer{Timeout: time.Second}
	backend, err := dialer.DialContext(ctx, "tcp", p.backend)
	if err != nil {
		_ = client.Close()
		return
	}
	// Closing both ends both copies; a cut is meant to lose data, so errors of
	// Close tell nothing.
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = backend.Close()
	})
	defer stop()
	var copies errgroup.Group
	copies.Go(func() error {
		defer cancel()
		return copyFrames(backend, client, len(preface), everyRequest(p.faults.cutRequest))
	})
	copies.Go(func() error {
		defer cancel()
		return copyFrames(client, backend, 0, firstOfStream(p.faults.loseReply))
	})
	_ = copies.Wait() // how it ended is what the clients are here to find out
	cancel()
	_ = client.Close()
	_ = backend.Close()
}

// preface is what an HTTP/2 client sends before its first frame.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

const (
	frameHeaderSize = 9
	frameHeaders    = 0x1
	flagEndStream   = 0x1
)

// errCut ends a copy that a fault chose.
var errCut = errors.New("cut")

// frame is the header of an HTTP/2 frame.
type frame [frameHeaderSize]byte

func (f *frame) size() int64     { return int64(f[0])<<16 | int64(f[1])<<8 | int64(f[2]) }
func (f *frame) isHeaders() bool { return f[3] == frameHeaders }
func (f *frame) ends() bool      { return f[4]&flagEndStream != 0 }
func (f *frame) stream() uint32  { return binary.BigEndian.Uint32(f[5:]) &^ (1 << 31) }

// copyFrames forwards a preamble of the given size and then whole frames, until
// src ends or cutAt says that a frame must not arrive.
func copyFrames(dst io.Writer, src io.Reader, preamble int, cutAt func(*frame) bool) error {
	in, out := bufio.NewReader(src), bufio.NewWriter(dst)
	if _, err := io.CopyN(out, in, int64(preamble)); err != nil {
		return err
	}
	var f frame
	for {
		if in.Buffered() < frameHeaderSize {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(in, f[:]); err != nil {
			return err
		}
		if cutAt(&f) {
			return errCut
		}
		if _, err := out.Write(f[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, f.size()); err != nil {
			return err
		}
	}
}

// everyRequest asks cut about each request: its only headers frame.
func everyRequest(cut func() bool) func(*frame) bool {
	return func(f *frame) bool { return f.isHeaders() && cut() }
}

// firstOfStream asks cut about each reply once, at its first headers frame; the
// second one holds its trailers.
func firstOfStream(cut func() bool) func(*frame) bool {
	open := map[uint32]bool{}
	return func(f *frame) bool {
		if !f.isHeaders() {
			return false
		}
		first := !open[f.stream()]
		if f.ends() {
			delete(open, f.stream())
		} else {
			open[f.stream()] = true
		}
		return first && cut()
	}
}
