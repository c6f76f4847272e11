package interceptors

import (
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/dedupd/dedupd/interceptors/policy"
)

// sending is what gRPC tells of a try's way out, by call options: they cost a
// call next to nothing, where a stats handler makes gRPC describe every step of
// it.
//
// gRPC fills peer in once the try had a stream, whose first act is to send the
// header, and calls ended in any case. So a try that ended without a peer sent
// nothing; or the server has said of its stream that it was not processed, and
// gRPC found no connection to send it again. A try of which gRPC told nothing (an
// interceptor further in used another connection) is unseen, and counts as sent.
type sending struct {
	peer  peer.Peer
	ended bool
	opts  [2]grpc.CallOption // the try's, where they fit
}

// options returns opts and those that watch the try.
func (s *sending) options(opts []grpc.CallOption) []grpc.CallOption {
	return append(append(s.opts[:0], opts...), grpc.Peer(&s.peer), grpc.OnFinish(s.finish))
}

func (s *sending) finish(error) { s.ended = true }

// sent tells how much of the try left the client.
func (s *sending) sent(err error, req any, opts []grpc.CallOption) policy.Sent {
	switch {
	case err == nil:
		return policy.SentMessage
	case !s.ended:
		return policy.SentUnseen
	case s.peer.Addr == nil:
		return policy.SentNothing
	case refusedForSize(err, req, opts):
		return policy.SentHeader
	}
	return policy.SentMessage
}

// refusedForSize reports whether gRPC itself refused to send req, for its size.
// A server whose answer is too large says so in the same words, so they must name
// this request's size and this call's limit. A limit from elsewhere (a service
// config, an interceptor further in), or a compressed message, is not recognised.
func refusedForSize(err error, req any, opts []grpc.CallOption) bool {
	s := policy.StatusOf(err)
	m, ok := req.(proto.Message)
	if s.Code() != codes.ResourceExhausted || !ok {
		return false
	}
	limit := math.MaxInt32 // gRPC's own
	for _, o := range opts {
		if o, ok := o.(grpc.MaxSendMsgSizeCallOption); ok {
			limit = o.MaxSendMsgSize
		}
	}
	size := proto.Size(m)
	return size > limit && s.Message() == fmt.Sprintf("trying to send message larger than max (%d vs. %d)", size, limit)
}
