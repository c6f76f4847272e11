package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// target is the service that dead letters were sent to. It is always typed: what
// an environment or an entry says of it would send money to the wrong place.
type target struct {
	Target    string   `env:"-" placeholder:"HOST:PORT" help:"gRPC address of the service that the calls are for."`
	Plaintext bool     `env:"-" help:"Reach --target without encryption."`
	TLS       bool     `name:"tls" env:"-" help:"Reach --target by TLS."`
	CA        string   `name:"ca" env:"-" type:"existingfile" placeholder:"FILE" help:"With --tls: PEM certificates to trust, in place of the system's."`
	Metadata  []string `env:"-" sep:"none" placeholder:"NAME=VALUE" help:"Metadata for --target, such as authorization=..., which tells it who replays. Repeatable."`
}

// check says what is missing.
func (t *target) check() error {
	switch {
	case t.Target == "":
		return errors.New("name the service that the calls are for: --target HOST:PORT")
	case !strings.Contains(t.Target, ":"):
		return fmt.Errorf("--target is %q; it takes HOST:PORT", t.Target)
	case t.Plaintext == t.TLS:
		return errors.New("say how --target is reached: --plaintext or --tls")
	case t.CA != "" && !t.TLS:
		return errors.New("--ca belongs to --tls")
	}
	for _, m := range t.Metadata {
		if name, _, ok := strings.Cut(m, "="); !ok || name == "" {
			return fmt.Errorf("--metadata takes NAME=VALUE, not %s", strconv.Quote(name))
		}
	}
	return nil
}

// dial connects to the service; more are options of the connection.
func (t *target) dial(more ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if t.TLS {
		c := &tls.Config{MinVersion: tls.VersionTLS12}
		if t.CA != "" {
			var err error
			if c.RootCAs, err = authorities("ca", t.CA); err != nil {
				return nil, err
			}
		}
		creds = credentials.NewTLS(c)
	}
	conn, err := grpc.NewClient(t.Target, append(more, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))...)
	if err != nil {
		return nil, usagef("--target is %q; it takes host:port", t.Target)
	}
	return conn, nil
}

// with adds the metadata for the service.
func (t *target) with(ctx context.Context) context.Context {
	md := metadata.MD{}
	for _, m := range t.Metadata {
		name, value, _ := strings.Cut(m, "=")
		md.Append(name, value)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// descriptors says where requests are described.
type descriptors struct {
	Descriptors string `env:"-" type:"existingfile" placeholder:"FILE" help:"A file descriptor set with its imports, to read requests by (buf build -o FILE). Default: --target's gRPC reflection."`
}

// requestTypes knows the request of one method.
type requestTypes struct {
	method protoreflect.MethodDescriptor
	types  *dynamicpb.Types // for what is within an Any
}

// typesOf describes the request of a method, by the file, or by the service's
// reflection.
func (d *descriptors) typesOf(ctx context.Context, t target, timeout time.Duration, method string) (*requestTypes, error) {
	service, name, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if !ok {
		return nil, fmt.Errorf("%s is no gRPC method, so that nothing describes its request", strconv.Quote(method))
	}
	set, err := d.set(ctx, t, timeout, service)
	if err != nil {
		return nil, err
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("the file descriptor set is not whole, build it with its imports: %w", err)
	}
	found, err := files.FindDescriptorByName(protoreflect.FullName(service + "." + name))
	described, isMethod := found.(protoreflect.MethodDescriptor)
	if err != nil || !isMethod {
		return nil, fmt.Errorf("the descriptors do not tell of the method %s", printable([]byte(method)))
	}
	return &requestTypes{method: described, types: dynamicpb.NewTypes(files)}, nil
}

func (d *descriptors) set(ctx context.Context, t target, timeout time.Duration, service string) (*descriptorpb.FileDescriptorSet, error) {
	if d.Descriptors != "" {
		return readDescriptors(d.Descriptors)
	}
	conn, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	ctx, cancel := context.WithTimeout(t.with(ctx), timeout)
	defer cancel()
	set, _, err := reflected(ctx, conn, t.Target, service)
	return set, err
}

func (r *requestTypes) toJSON(value []byte) (string, error) {
	m := dynamicpb.NewMessage(r.method.Input())
	if err := (proto.UnmarshalOptions{Resolver: r.types}).Unmarshal(value, m); err != nil {
		return "", fmt.Errorf("the request is no %s as the descriptors know it", r.method.Input().FullName())
	}
	text, err := protojson.MarshalOptions{Multiline: true, Resolver: r.types}.Marshal(m)
	return string(text), err
}

// fromJSON returns the request that text describes.
func (r *requestTypes) fromJSON(text []byte) (*dynamicpb.Message, error) {
	m := dynamicpb.NewMessage(r.method.Input())
	if err := (protojson.UnmarshalOptions{Resolver: r.types}).Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("the edited request is no %s in protobuf's JSON: %w", r.method.Input().FullName(), err)
	}
	return m, nil
}
