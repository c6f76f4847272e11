package main

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// reflected asks the running service at addr for its services and their files;
// of only, where it is not empty, for those services alone.
func reflected(ctx context.Context, conn grpc.ClientConnInterface, addr string, only ...string) (*descriptorpb.FileDescriptorSet, []string, error) {
	unreflected := func(err error) error {
		if what := met(addr, status.Convert(err)); what != "" {
			return fmt.Errorf("%s; name another address, or give a file descriptor set instead", what)
		}
		return fmt.Errorf("the service at %s does not tell its files by gRPC reflection (v1); give a file descriptor set instead: %w", addr, err)
	}
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, nil, unreflected(err)
	}
	r := &reflector{stream: stream, files: map[string]*descriptorpb.FileDescriptorProto{}}
	services := only
	if len(services) == 0 {
		if services, err = r.services(); err != nil {
			return nil, nil, unreflected(err)
		}
	}
	for _, name := range services {
		if err := r.fetch(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
		}); err != nil {
			return nil, nil, unreflected(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, nil, unreflected(err)
	}
	return &descriptorpb.FileDescriptorSet{File: r.order}, services, nil
}

// reflector collects files, each after those that it imports.
type reflector struct {
	stream reflectionv1.ServerReflection_ServerReflectionInfoClient
	files  map[string]*descriptorpb.FileDescriptorProto
	order  []*descriptorpb.FileDescriptorProto
}

func (r *reflector) ask(q *reflectionv1.ServerReflectionRequest) (*reflectionv1.ServerReflectionResponse, error) {
	if err := r.stream.Send(q); err != nil {
		return nil, err
	}
	resp, err := r.stream.Recv()
	if err != nil {
		return nil, err
	}
	if e := resp.GetErrorResponse(); e != nil {
		return nil, fmt.Errorf("it answered: %s", e.GetErrorMessage())
	}
	return resp, nil
}

// services lists what the server serves, but its own infrastructure.
func (r *reflector) services() ([]string, error) {
	resp, err := r.ask(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		if name := s.GetName(); !strings.HasPrefix(name, "grpc.reflection.") && !strings.HasPrefix(name, "grpc.health.") {
			out = append(out, name)
		}
	}
	return out, nil
}

// fetch takes the files of an answer, and what they import.
func (r *reflector) fetch(q *reflectionv1.ServerReflectionRequest) error {
	resp, err := r.ask(q)
	if err != nil {
		return err
	}
	var fresh []*descriptorpb.FileDescriptorProto
	for _, b := range resp.GetFileDescriptorResponse().GetFileDescriptorProto() {
		f := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(b, f); err != nil {
			return fmt.Errorf("a file cannot be read: %w", err)
		}
		if r.files[f.GetName()] == nil {
			r.files[f.GetName()] = f
			fresh = append(fresh, f)
		}
	}
	for _, f := range fresh {
		for _, name := range f.GetDependency() {
			if r.files[name] != nil {
				continue
			}
			if err := r.fetch(&reflectionv1.ServerReflectionRequest{
				MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: name},
			}); err != nil {
				return err
			}
		}
		r.order = append(r.order, f)
	}
	return nil
}
