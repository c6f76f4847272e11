package dedupdtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// callTime ends a scenario's call that hangs.
const callTime = time.Minute

// Call is one call of the service; make it with Unary. The kit gives it its key.
type Call func(ctx context.Context, opts ...grpc.CallOption) (proto.Message, error)

// Unary makes a Call of a generated client's method and a request:
// Unary(payments.Charge, &pb.ChargeRequest{...}).
func Unary[Req, Resp proto.Message](method func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) Call {
	return func(ctx context.Context, opts ...grpc.CallOption) (proto.Message, error) {
		return method(ctx, req, opts...)
	}
}

// Answer is what a call came to.
type Answer struct {
	Response proto.Message // nil with Err
	Err      error
	Replayed bool // from the record
}

// Unknown reports that nobody knows whether the effect happened.
func (a Answer) Unknown() bool {
	reason, ok := interceptors.ReasonOf(a.Err)
	return ok && (reason == dedupv1.Reason_REASON_OUTCOME_UNKNOWN || reason == dedupv1.Reason_REASON_STORE_UNAVAILABLE)
}

func (a Answer) String() string {
	switch {
	case a.Unknown():
		return "outcome unknown"
	case a.Err != nil && a.Replayed:
		return "replayed error " + status.Code(a.Err).String()
	case a.Err != nil:
		return "error " + status.Code(a.Err).String()
	case a.Replayed:
		return "replayed"
	}
	return "answered"
}

// Report is what a scenario came to.
type Report struct {
	// First and Second are the answers to the two calls. Of a process that died
	// First is what its handler returned: it reached nobody.
	First, Second Answer
	// Effects is how many effects the scenario had.
	Effects int
}

// String tells the report in one line.
func (r Report) String() string {
	return fmt.Sprintf("first %s, second %s, effects %d", r.First, r.Second, r.Effects)
}

// Twice makes the call twice, one after the other. The second must get the
// first one's answer.
func (k *Kit) Twice(call Call) Report {
	k.t.Helper()
	return k.scenario("twice", true, func(key string) (first, second Answer) {
		return k.ask(call, key), k.ask(call, key)
	})
}

// LoseReply makes the call, loses its reply on the way back, and makes it again.
// The second must get the answer that was lost.
func (k *Kit) LoseReply(call Call) Report {
	k.t.Helper()
	return k.scenario("lose reply", true, func(key string) (first, second Answer) {
		p := k.current.Load()
		p.lose.Store(true)
		k.ask(call, key)
		first, _ = p.seen()
		return first, k.ask(call, key)
	})
}

// KillBetween makes the call in a process that dies after its handler has
// returned and before dedupd hears of it. Its lease lapses, everything that was
// on its way has landed, and the call is made again in the next process, whose
// reconciler, if there is one, has to find out. The second answer is that of the
// effect, or unknown.
func (k *Kit) KillBetween(call Call) Report {
	k.t.Helper()
	applied := false
	r := k.scenario("kill between", false, func(key string) (first, second Answer) {
		p, before := k.current.Load(), k.Effects()
		p.dies.Store(true)
		k.ask(call, key)
		_, first = p.seen()
		applied = k.Effects() > before
		k.store.lapse(3) // past the time that a reconciler which only looks has to wait
		k.start()
		return first, k.ask(call, key)
	})
	// Without an effect there was no answer to remember: the second run's counts.
	if applied {
		k.compare("kill between", r)
	}
	return r
}

// LapseLease makes the call in a process that stands still at its effect (where
// it calls Kit.Effect) until its lease has lapsed. Meanwhile the call is made
// again in another process; then the first goes on. Both must get one answer, or
// be told that it is unknown.
func (k *Kit) LapseLease(call Call) Report {
	k.t.Helper()
	stood := false
	r := k.scenario("lapse lease", false, func(key string) (first, second Answer) {
		k.atNextEffect(func() {
			stood = true
			k.store.lapse(0)
			k.start()
			second = k.ask(call, key)
		})
		first = k.ask(call, key)
		k.atNextEffect(nil)
		return first, second
	})
	if stood {
		k.compare("lapse lease", r)
	} else if k.current.Load() != nil {
		k.t.Errorf("lapse lease: the handler reported no effect; call Kit.Effect where it has one")
	}
	return r
}

// scenario runs one under a fresh key and judges it. settled: nothing happens
// in it that may leave an outcome unknown.
func (k *Kit) scenario(name string, settled bool, run func(key string) (first, second Answer)) Report {
	k.t.Helper()
	if k.current.Load() == nil {
		k.t.Errorf("%s: start the service first: Kit.Serve", name)
		return Report{}
	}
	before := k.Effects()
	var r Report
	r.First, r.Second = run(rand.Text())
	r.Effects = k.Effects() - before
	if r.Effects > 1 {
		k.t.Errorf("%s: the effect happened %d times under one key", name, r.Effects)
	}
	if fault := differ(r.First, r.Second); settled && fault != "" {
		k.t.Errorf("%s: the second answer is not the first: %s (%s)", name, fault, r)
	}
	return r
}

// compare judges answers of which one may be unknown.
func (k *Kit) compare(name string, r Report) {
	k.t.Helper()
	if r.First.Unknown() || r.Second.Unknown() {
		return
	}
	if fault := differ(r.First, r.Second); fault != "" {
		k.t.Errorf("%s: the second answer is not the first: %s (%s)", name, fault, r)
	}
}

// differ says how two answers differ; empty if they do not.
func differ(a, b Answer) string {
	switch {
	case (a.Err == nil) != (b.Err == nil):
		return "one is an error, the other is not"
	case a.Err != nil:
		if !proto.Equal(status.Convert(a.Err).Proto(), status.Convert(b.Err).Proto()) {
			return "they are different errors"
		}
	case !proto.Equal(a.Response, b.Response):
		return "they are different responses"
	}
	return ""
}

// ask makes the call once, under the key.
func (k *Kit) ask(call Call, key string) Answer {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	var trailer metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, interceptors.HeaderKey, key)
	resp, err := call(ctx, grpc.Trailer(&trailer))
	a := Answer{Response: resp, Err: err, Replayed: len(trailer[interceptors.TrailerReplayed]) > 0}
	if err != nil {
		a.Response = nil
	}
	return a
}
