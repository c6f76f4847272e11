package interceptors

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// sends is what became of one try that went through the interceptors of PerTry.
// They may send it several times, also side by side and without waiting for all
// of it (a hedge), so each send is watched by itself. It travels as a call option
// to watch, the innermost interceptor.
type sends struct {
	grpc.EmptyCallOption
	classify func(policy.Try) policy.Answer

	mu       sync.Mutex
	begun    int
	ended    int
	unseen   bool        // one of them ended without a word of gRPC's
	most     policy.Sent // of those that ended
	effect   policy.Effect
	answered bool // one of them ended well, and trailer is its
	trailer  metadata.MD
}

// watch is the interceptor between those of PerTry and the wire.
func watch(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for _, o := range opts {
		if all, ok := o.(*sends); ok {
			return all.send(opts, req, func(opts []grpc.CallOption) error {
				return invoker(ctx, method, req, reply, cc, opts...)
			})
		}
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}

func (s *sends) send(opts []grpc.CallOption, req any, send func([]grpc.CallOption) error) error {
	s.mu.Lock()
	s.begun++
	s.mu.Unlock()
	out, trailer := sending{}, metadata.MD(nil)
	err := send(append(out.options(opts), grpc.Trailer(&trailer)))
	one := policy.Try{Err: err, Sent: out.sent(err, req, opts)}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	s.unseen = s.unseen || one.Sent == policy.SentUnseen
	s.most = max(s.most, one.Sent)
	s.effect = max(s.effect, s.classify(one).Effect)
	if !s.answered {
		s.answered, s.trailer = err == nil, trailer
	}
	return err
}

// end says how much left the client of the try, which ended with err.
func (s *sends) end(err error) (policy.Sent, metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil, s.begun > s.ended:
		return policy.SentMessage, s.trailer
	case s.unseen && s.most < policy.SentMessage:
		return policy.SentUnseen, s.trailer
	}
	return s.most, s.trailer
}

// left says what the sends may have left behind, whatever the try ended with, and
// whether one of them is still under way.
func (s *sends) left() (effect policy.Effect, underWay bool) {
	if s == nil {
		return policy.EffectAsTable, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun > s.ended {
		return max(s.effect, policy.EffectUnknown), true
	}
	return s.effect, false
}
