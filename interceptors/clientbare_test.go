package interceptors_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// declare links in a service whose methods, named by their rules, take and return
// what Charge does. Call it before t.Parallel: protovalidate, as other tests start
// dedupd, reads the registry while it reads it, and hangs if a file is registered
// in between.
func declare(t *testing.T, service string, rules ...dedupv1.KeyRule) {
	t.Helper()
	file := &descriptorpb.FileDescriptorProto{
		Name: protobuf.String("dedup/test/v1/" + service + ".proto"), Package: protobuf.String("dedup.test.v1"), Syntax: protobuf.String("proto3"),
		Dependency: []string{"dedup/demo/v1/payments.proto", "dedup/v1/options.proto"},
		Service:    []*descriptorpb.ServiceDescriptorProto{{Name: &service}},
	}
	for _, rule := range rules {
		options := &descriptorpb.MethodOptions{}
		protobuf.SetExtension(options, dedupv1.E_Method, &dedupv1.MethodPolicy{Keys: rule})
		file.Service[0].Method = append(file.Service[0].Method, &descriptorpb.MethodDescriptorProto{
			Name: protobuf.String(rule.String()), Options: options,
			InputType: protobuf.String(".dedup.demo.v1.ChargeRequest"), OutputType: protobuf.String(".dedup.demo.v1.ChargeResponse"),
		})
	}
	fd, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	require.NoError(t, err)
	require.NoError(t, protoregistry.GlobalFiles.RegisterFile(fd))
}

func TestAKeyProtectsNoCallWhoseServerRunsEveryOne(t *testing.T) { // C12
	rules := []dedupv1.KeyRule{dedupv1.KeyRule_KEY_RULE_OFF, dedupv1.KeyRule_KEY_RULE_OBSERVE}
	// Before Parallel: a file that is registered while others walk through all of them
	// can stop both for ever, since walking reads the registry's lock twice.
	declare(t, "BareService", rules...)
	t.Parallel()
	for _, rule := range rules {
		method := "/dedup.test.v1.BareService/" + rule.String()
		// The first answer is lost on its way. It returns how often the handler ran and
		// dedupd was asked for the outcome.
		charge := func(t *testing.T, server []interceptors.ServerOption, client ...interceptors.ClientOption) (ran int, looks int64, err error) {
			t.Helper()
			var lookups atomic.Int64
			w := newWorld(t, setup{server: server})
			w.cutAfter = func(n int) bool { return n == 1 }
			w.ask = func(_ context.Context, name string) error {
				if name == "Lookup" {
					lookups.Add(1)
				}
				return nil
			}
			conn := w.dial(t, append(client, interceptors.WithDedupd(dedupv1.NewDedupServiceClient(w)), interceptors.WithIdentity("test", "ada"),
				interceptors.PerTry(func(ctx context.Context, _ string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					return invoker(ctx, demov1.PaymentsService_Charge_FullMethodName, req, reply, cc, opts...)
				})))
			defer func() { require.NoError(t, conn.Close()) }()
			err = conn.Invoke(t.Context(), method, order(), &demov1.ChargeResponse{}, interceptors.WithKey("k"))
			return w.ran(), lookups.Load(), err
		}
		t.Run(rule.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ran, looks, err := charge(t, []interceptors.ServerOption{withPolicy(&dedupv1.MethodPolicy{Keys: rule})})
				require.Equal(t, codes.Unavailable, status.Code(err))
				require.ErrorIs(t, err, interceptors.ErrOutcomeUnknown)
				require.Equal(t, 1, ran, "sent once, for a second try would run too")
				require.Zero(t, looks, "there is no record that counts")
			})
			synctest.Test(t, func(t *testing.T) {
				_, _, err := charge(t, nil, interceptors.WithMaxAttempts(2), interceptors.WithDeduplicated(method))
				require.NoError(t, err, "the client's own options know the server better")
			})
		})
	}
}
