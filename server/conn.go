package server

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// conn carries unary calls to the services in process. Messages cross as bytes,
// as they would on the wire: nothing is shared, and what cannot be sent there
// cannot be sent here.
type conn struct {
	chain    grpc.UnaryServerInterceptor
	methods  map[string]method
	stopping context.Context //nolint:containedctx // ends calls that are cut off
	cut      context.CancelFunc
}

type method struct {
	service any
	desc    grpc.MethodDesc
}

var (
	_ grpc.ClientConnInterface = (*conn)(nil)
	_ grpc.ServiceRegistrar    = (*conn)(nil)
)

func newConn(chain grpc.UnaryServerInterceptor) *conn {
	c := &conn{chain: chain, methods: map[string]method{}}
	c.stopping, c.cut = context.WithCancel(context.Background())
	return c
}

// RegisterService adds a service; only before the first call.
func (c *conn) RegisterService(desc *grpc.ServiceDesc, service any) {
	for _, d := range desc.Methods {
		c.methods["/"+desc.ServiceName+"/"+d.MethodName] = method{service: service, desc: d}
	}
}

// NewStream refuses: there are no streams in process.
func (c *conn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "streams are served over the network only")
}

// Invoke calls a method and waits for its answer, or for the end of ctx.
func (c *conn) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	stream := &callStream{method: name}
	err := c.invoke(ctx, stream, args, reply, opts)
	stream.report(opts, err)
	return err
}

func (c *conn) invoke(ctx context.Context, stream *callStream, args, reply any, opts []grpc.CallOption) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	to, ok := c.methods[stream.method]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unknown method %s", stream.method)
	}
	request, err := encode(args)
	if err != nil {
		return status.Errorf(codes.Internal, "marshal the request: %v", err)
	}
	if len(request) > MaxMessage {
		return status.Errorf(codes.ResourceExhausted, "the request is %d bytes, at most %d are taken", len(request), MaxMessage)
	}
	md, err := outgoing(ctx, opts)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.stopping, cancel)() //nolint:contextcheck // the second reason to end the call
	inner = metadata.NewOutgoingContext(inner, nil)
	inner = metadata.NewIncomingContext(inner, md)
	from := inProcess{}
	from.over, _ = ctx.Value(overHTTP{}).(string)
	inner = peer.NewContext(inner, &peer.Peer{Addr: from})
	inner = grpc.NewContextWithServerTransportStream(inner, stream)
	done := make(chan answer, 1)
	go func() { done <- c.handle(inner, to, request) }()
	select {
	case <-inner.Done():
		if ctx.Err() == nil {
			return status.Error(codes.Unavailable, errStopped.Error())
		}
		return status.FromContextError(ctx.Err()).Err()
	case ans := <-done:
		if ans.err != nil {
			return ans.err
		}
		if err := decode(ans.response, reply); err != nil {
			return status.Errorf(codes.Internal, "unmarshal the response: %v", err)
		}
		return nil
	}
}

type answer struct {
	response []byte
	err      error
}

// handle is the server's side of a call.
func (c *conn) handle(ctx context.Context, to method, request []byte) answer {
	read := func(msg any) error {
		if err := decode(request, msg); err != nil {
			return status.Errorf(codes.Internal, "unmarshal the request: %v", err)
		}
		return nil
	}
	res, err := to.desc.Handler(to.service, ctx, read, c.chain)
	if err != nil {
		st, ok := status.FromError(err)
		if !ok {
			st = status.FromContextError(err)
		}
		return answer{err: status.FromProto(st.Proto()).Err()} // Proto copies
	}
	response, err := encode(res)
	if err != nil {
		return answer{err: status.Errorf(codes.Internal, "marshal the response: %v", err)}
	}
	if len(response) > MaxMessage {
		return answer{err: status.Errorf(codes.ResourceExhausted, "the response is %d bytes, at most %d are sent", len(response), MaxMessage)}
	}
	return answer{response: response}
}

func encode(msg any) ([]byte, error) {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil, errors.New("not a protobuf message")
	}
	return proto.Marshal(m)
}

func decode(b []byte, into any) error {
	m, ok := into.(proto.Message)
	if !ok {
		return errors.New("not a protobuf message")
	}
	return proto.Unmarshal(b, m)
}

// outgoing is the metadata that the caller sends, credentials included.
func outgoing(ctx context.Context, opts []grpc.CallOption) (metadata.MD, error) {
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	md = metadata.Join(md)
	for _, o := range opts {
		creds, ok := o.(grpc.PerRPCCredsCallOption)
		if !ok {
			continue
		}
		more, err := creds.Creds.GetRequestMetadata(ctx)
		if err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "credentials: %v", err)
		}
		md = metadata.Join(md, metadata.New(more))
	}
	return md, nil
}

// callStream collects what a handler sends beside its response.
type callStream struct {
	method string

	mu              sync.Mutex
	header, trailer metadata.MD
	sent            bool
}

var _ grpc.ServerTransportStream = (*callStream)(nil)

func (s *callStream) Method() string { return s.method }

func (s *callStream) SetHeader(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent {
		return status.Error(codes.Internal, "the header was sent before")
	}
	s.header = metadata.Join(s.header, md)
	return nil
}

func (s *callStream) SendHeader(md metadata.MD) error {
	if err := s.SetHeader(md); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = true
	return nil
}

func (s *callStream) SetTrailer(md metadata.MD) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}

// report fills in what the caller asked for.
func (s *callStream) report(opts []grpc.CallOption, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			*o.HeaderAddr = s.header.Copy()
		case grpc.TrailerCallOption:
			*o.TrailerAddr = s.trailer.Copy()
		case grpc.PeerCallOption:
			*o.PeerAddr = peer.Peer{Addr: inProcess{}}
		case grpc.OnFinishCallOption:
			o.OnFinish(err)
		}
	}
}

// inProcess is the address of a caller in this process, which may speak for one
// that came over HTTP.
type inProcess struct{ over string }

func (inProcess) Network() string { return "in-process" }

func (a inProcess) String() string {
	if a.over != "" {
		return a.over + " over http"
	}
	return "in-process"
}
