package interceptors_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

func TestAKeyIsDerivedFromTheFieldsThatTheMethodNames(t *testing.T) { // C12
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s seen
		w := newWorld(t, setup{client: []interceptors.ClientOption{interceptors.WithKeyFields(charge, "order", "amount", "currency")}})
		w.arrived = s.arrived
		first, err := w.client.Charge(t.Context(), order())
		require.NoError(t, err)
		again := order()
		again.SentAt = timestamppb.Now() // changes between attempts, and names nothing
		resp, err := w.client.Charge(t.Context(), again, interceptors.WithFreshKey())
		require.NoError(t, err)
		require.Equal(t, first.GetChargeId(), resp.GetChargeId())
		require.Equal(t, 1, w.ran())

		other := order()
		other.Amount++
		_, err = w.client.Charge(t.Context(), other)
		require.NoError(t, err)
		_, err = w.client.Charge(t.Context(), other, interceptors.WithKey("mine"))
		require.NoError(t, err)
		require.Equal(t, []string{
			"order=4471:amount=12:currency=EUR", "order=4471:amount=12:currency=EUR",
			"order=4471:amount=13:currency=EUR", "mine",
		}, s.keys, "the caller's own key wins")

		for _, missing := range []string{"", " 4471"} {
			req := order()
			req.Order = missing
			_, err = w.client.Charge(t.Context(), req)
			requireReason(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
		}
		require.Len(t, s.keys, 4, "what is refused is not sent")
	})
}

// ordersFile declares a service whose option names every kind of key field.
func ordersFile(t *testing.T) protoreflect.FileDescriptor {
	t.Helper()
	field := func(name string, n int32, kind descriptorpb.FieldDescriptorProto_Type, message string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &n, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		if message != "" {
			f.TypeName = &message
		}
		return f
	}
	options := &descriptorpb.MethodOptions{}
	protobuf.SetExtension(options, dedupv1.E_Method, &dedupv1.MethodPolicy{
		KeyFields: []string{"order.id", "order.raw", "count", "rush", "rule"},
	})
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: protobuf.String("dedup/test/v1/orders.proto"), Package: protobuf.String("dedup.test.v1"), Syntax: protobuf.String("proto3"),
		Dependency: []string{"dedup/v1/options.proto"},
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: protobuf.String("Order"), Field: []*descriptorpb.FieldDescriptorProto{
				field("id", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""),
				field("raw", 2, descriptorpb.FieldDescriptorProto_TYPE_BYTES, ""),
			}},
			{Name: protobuf.String("PlaceRequest"), Field: []*descriptorpb.FieldDescriptorProto{
				field("order", 1, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".dedup.test.v1.Order"),
				field("count", 2, descriptorpb.FieldDescriptorProto_TYPE_UINT64, ""),
				field("rush", 3, descriptorpb.FieldDescriptorProto_TYPE_BOOL, ""),
				field("rule", 4, descriptorpb.FieldDescriptorProto_TYPE_ENUM, ".dedup.v1.KeyRule"),
			}},
		},
		Service: []*descriptorpb.ServiceDescriptorProto{{
			Name: protobuf.String("OrdersService"),
			Method: []*descriptorpb.MethodDescriptorProto{{
				Name: protobuf.String("Place"), Options: options,
				InputType: protobuf.String(".dedup.test.v1.PlaceRequest"), OutputType: protobuf.String(".dedup.test.v1.Order"),
			}},
		}},
	}, protoregistry.GlobalFiles)
	require.NoError(t, err)
	return file
}

func TestTheProtoOptionNamesTheKeyFields(t *testing.T) { // C12
	file := ordersFile(t)
	require.NoError(t, protoregistry.GlobalFiles.RegisterFile(file))
	t.Parallel() // from here on: see declare
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		var keys []string
		conn := w.dial(t, []interceptors.ClientOption{interceptors.PerTry(
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
				md, _ := metadata.FromOutgoingContext(ctx)
				keys = append(keys, md[interceptors.HeaderKey]...)
				return nil
			})})
		defer func() { require.NoError(t, conn.Close()) }()
		types := file.Messages()
		request := types.ByName("PlaceRequest").Fields()
		req := dynamicpb.NewMessage(types.ByName("PlaceRequest"))
		place := func() error {
			return conn.Invoke(t.Context(), "/dedup.test.v1.OrdersService/Place", req, dynamicpb.NewMessage(types.ByName("Order")))
		}
		requireReason(t, place(), codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID) // no order at all

		order := req.Mutable(request.ByName("order")).Message()
		order.Set(types.ByName("Order").Fields().ByName("id"), protoreflect.ValueOfString("a:1"))
		order.Set(types.ByName("Order").Fields().ByName("raw"), protoreflect.ValueOfBytes([]byte{0, 0xff}))
		req.Set(request.ByName("rule"), protoreflect.ValueOfEnum(2))
		require.NoError(t, place())
		require.Equal(t, []string{"order.id=a%3A1:order.raw=00ff:count=0:rush=false:rule=2"}, keys, "zero is a number as any other")
	})
}

func TestKeyFieldsAreCheckedAtConstruction(t *testing.T) {
	t.Parallel()
	for field, says := range map[string]string{
		"nope": "has no field", "labels": "strings, bytes", "sent_at": "strings, bytes", "order.id": "no single message", "labels.x": "no single message",
	} {
		_, err := interceptors.ClientOptions(interceptors.WithKeyFields(charge, field))
		require.ErrorContains(t, err, says, field)
		require.ErrorContains(t, err, charge)
	}
	_, err := interceptors.ClientOptions(interceptors.WithKeyFields(charge))
	require.ErrorContains(t, err, "at least one")
	_, err = interceptors.ClientOptions(interceptors.WithKeyFields(charge, "sent_at.seconds"))
	require.NoError(t, err)
}
