package replay

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// send calls the entry's method with its stored request, key and metadata. What
// ctx carries as outgoing metadata goes with it; the call's time is its own.
func (r *Replayer) send(ctx context.Context, e *dedupv1.DeadLetter, token []byte) (metadata.MD, error) {
	if err := sendable(e); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.CallTime)
	defer cancel()
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	for _, m := range e.GetMetadata() {
		if len(md[m.GetKey()]) == 0 { // the replayer's own win
			md.Append(m.GetKey(), string(m.GetValue()))
		}
	}
	// The key by either header is the same key, and this one takes any bytes.
	md.Set(interceptors.HeaderKeyBin, string(e.GetIdentity().GetKey()))
	md.Set(interceptors.HeaderReplay, hex.EncodeToString(e.GetEntryId())+"."+hex.EncodeToString(token))
	req, reply, codec := messagesOf(e)
	var trailer metadata.MD
	opts := append([]grpc.CallOption{
		grpc.Trailer(&trailer),
		interceptors.WithMaxAttempts(1), // the entry waits and is tried again: retries must not multiply
	}, append(codec, r.CallOptions...)...)
	err := r.Conn.Invoke(metadata.NewOutgoingContext(ctx, md), e.GetMethod(), req, reply, opts...)
	return trailer, err
}

// sendable says why an entry cannot be sent.
func sendable(e *dedupv1.DeadLetter) error {
	service, name, _ := strings.Cut(strings.TrimPrefix(e.GetMethod(), "/"), "/")
	switch {
	case e.GetRequest() == nil:
		return status.Error(codes.FailedPrecondition, "the entry has no request, so it cannot be replayed; settle its record by hand")
	case !strings.HasPrefix(e.GetMethod(), "/") || service == "" || name == "" || strings.Contains(name, "/"):
		return status.Error(codes.Unimplemented, "the entry's method is no gRPC method; replay it with the adapter that parked it")
	case len(e.GetIdentity().GetKey()) == 0:
		return status.Error(codes.FailedPrecondition, "the entry's key was erased, so it cannot be replayed")
	}
	return nil
}

// messagesOf returns what to send and what to receive into: messages of the
// linked types, so that interceptors on the way see what they know, else the
// stored bytes as they are.
func messagesOf(e *dedupv1.DeadLetter) (req, reply any, codec []grpc.CallOption) {
	value := e.GetRequest().GetValue()
	name := protoreflect.FullName(strings.Replace(strings.TrimPrefix(e.GetMethod(), "/"), "/", ".", 1))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	method, isMethod := d.(protoreflect.MethodDescriptor)
	if err == nil && isMethod {
		in, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
		out, err2 := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
		if err == nil && err2 == nil {
			msg := in.New().Interface()
			if proto.Unmarshal(value, msg) == nil {
				return msg, out.New().Interface(), nil
			}
		}
	}
	raw := rawMessage(value)
	return &raw, new(rawMessage), []grpc.CallOption{grpc.ForceCodecV2(rawCodec{})}
}

// rawMessage is a message as it is on the wire.
type rawMessage []byte

// rawCodec passes raw messages. Its name is protobuf's: that is what the bytes are.
type rawCodec struct{}

var _ encoding.CodecV2 = rawCodec{}

var errNotRaw = errors.New("not a raw message")

// Marshal returns the bytes.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*rawMessage)
	if !ok {
		return nil, errNotRaw
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal keeps the bytes.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*rawMessage)
	if !ok {
		return errNotRaw
	}
	*b = data.Materialize()
	return nil
}

// Name is that of the codec whose bytes they are.
func (rawCodec) Name() string { return "proto" }
