package dedupdtest_test

import (
	"context"
	"fmt"
	"net"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/dedupdtest"
)

// place is the saga, the handler of an order: charge, take from stock, ship; where
// a step is refused for good, undo the ones before it. Three things make it
// harmless to run again from its first line, after a kill at any point:
//
//   - Every call has a child key, which names the step: a second run gets the
//     answers of the first, and no effect happens twice. So its method is rerun_safe.
//   - A refusal that the saga acts on is stored by its service for good
//     (interceptors.Final). Otherwise a second run could be told something else
//     after the first has begun to undo, and ship what was refunded.
//   - That the order was called off is an answer, not an error: an error of a run
//     that repeats an unknown one settles nothing.
func (s *shop) place(ctx context.Context, order string) (string, error) {
	steps := []struct{ do, undo string }{
		{"/saga.Payments/Charge", "/saga.Payments/Refund"},
		{"/saga.Stock/Take", "/saga.Stock/Return"},
		{"/saga.Shipping/Ship", ""},
	}
	for i, step := range steps {
		switch err := s.call(ctx, step.do, order); {
		case err == nil:
		case refused(err):
			for j := i - 1; j >= 0; j-- {
				if err := s.call(ctx, steps[j].undo, order); err != nil {
					return "", err
				}
			}
			return "called off", s.dies("before the answer")
		default: // not known, or not now: the same saga goes on in the next run
			return "", err
		}
	}
	return "shipped", s.dies("before the answer")
}

// call makes one step under a key of its own.
func (s *shop) call(ctx context.Context, step, order string) error {
	if err := s.dies("before " + step); err != nil {
		return err
	}
	key, err := interceptors.ChildKey(ctx, step)
	if err != nil {
		return err
	}
	if err := s.services.Invoke(ctx, step, wrapperspb.String(order), new(wrapperspb.StringValue), interceptors.WithKey(key)); err != nil {
		return err
	}
	return s.dies("after " + step)
}

// refused tells a service's own refusal from one of dedupd's.
func refused(err error) bool {
	_, dedupds := interceptors.ReasonOf(err)
	return status.Code(err) == codes.FailedPrecondition && !dedupds
}

// shop places orders; it can be killed at any point.
type shop struct {
	kit      *dedupdtest.Kit
	services *grpc.ClientConn
	points   []string // where the last run of an order has been
	killAt   string
	kills    int // that are still to come there
}

func (s *shop) dies(point string) error {
	s.points = append(s.points, point)
	if point != s.killAt || s.kills == 0 {
		return nil
	}
	s.kills--
	s.kit.Kill()
	return status.Error(codes.Unavailable, "killed")
}

// services are the three that the saga calls; what they did is counted.
type services struct {
	done  map[string]int // step and order → how often
	asked map[string]bool
}

func (s *services) do(step string) handler {
	return func(_ context.Context, order string) (string, error) {
		if !s.asked[step+" "+order] && (step == "/saga.Stock/Take" && order[:4] == "gone" || step == "/saga.Shipping/Ship" && order[:4] == "afar") {
			s.asked[step+" "+order] = true // by now it is in stock again
			return "", interceptors.Final(status.Error(codes.FailedPrecondition, "it cannot be done"))
		}
		s.done[step+" "+order]++
		return "done", nil
	}
}

func (s *services) of(order string) string {
	count := func(step string) int { return s.done[step+" "+order] }
	return fmt.Sprintf("charged %d, refunded %d, taken %d, returned %d, shipped %d",
		count("/saga.Payments/Charge"), count("/saga.Payments/Refund"), count("/saga.Stock/Take"), count("/saga.Stock/Return"), count("/saga.Shipping/Ship"))
}

// A saga over three services is killed at every point, twice, and run again: every
// step has one effect, or all of them are undone.
func Example_saga() {
	var t testing // in a test: func TestPlace(t *testing.T)
	defer t.end()
	kit := dedupdtest.New(&t)
	called := &services{done: map[string]int{}, asked: map[string]bool{}}
	s := &shop{kit: kit, services: serve(&t, kit, called)}
	place := "/saga.Orders/Place"
	conn := kit.Serve(func(r grpc.ServiceRegistrar) { r.RegisterService(describe(map[string]handler{place: s.place}), nil) },
		interceptors.SharedCaller(),
		interceptors.WithMethod(place, interceptors.Method{Policy: &dedupv1.MethodPolicy{
			Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED, RerunSafe: true,
		}}))

	// order places one until it is answered, as a client of ours does.
	order := func(name string) string {
		ctx := metadata.AppendToOutgoingContext(context.Background(), interceptors.HeaderKey, name)
		for range 10 {
			s.points = nil
			answer := new(wrapperspb.StringValue)
			if err := conn.Invoke(ctx, place, wrapperspb.String(name), answer); err == nil {
				return answer.GetValue() + ": " + called.of(name)
			}
		}
		return "never answered"
	}
	for _, kind := range []string{"easy", "gone", "afar"} {
		want := order(kind)
		points := s.points
		same := 0
		for i, point := range points {
			s.killAt, s.kills = point, 2
			if order(fmt.Sprint(kind, i)) == want && s.kills == 0 {
				same++
			}
		}
		fmt.Printf("%s\n  and the same for %d of %d points to be killed at\n", want, same, len(points))
	}
	// Output:
	// shipped: charged 1, refunded 0, taken 1, returned 0, shipped 1
	//   and the same for 7 of 7 points to be killed at
	// called off: charged 1, refunded 1, taken 0, returned 0, shipped 0
	//   and the same for 6 of 6 points to be killed at
	// called off: charged 1, refunded 1, taken 1, returned 1, shipped 0
	//   and the same for 10 of 10 points to be killed at
}

// serve starts the three services and connects to them.
func serve(t *testing, kit *dedupdtest.Kit, called *services) *grpc.ClientConn {
	options, err := interceptors.ServerOptions(kit.Dedup(), interceptors.WithNamespace("services"), interceptors.SharedCaller())
	t.must(err)
	server := grpc.NewServer(options...)
	for _, steps := range [][]string{{"/saga.Payments/Charge", "/saga.Payments/Refund"}, {"/saga.Stock/Take", "/saga.Stock/Return"}, {"/saga.Shipping/Ship"}} {
		methods := map[string]handler{}
		for _, step := range steps {
			methods[step] = called.do(step)
		}
		server.RegisterService(describe(methods), nil)
	}
	listener := bufconn.Listen(1 << 16)
	go func() { _ = server.Serve(listener) }() // Stop ends it
	client, err := interceptors.ClientOptions()
	t.must(err)
	conn, err := grpc.NewClient("passthrough:///services", append(client, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	t.must(err)
	t.Cleanup(func() {
		t.must(conn.Close())
		server.Stop()
	})
	return conn
}

func (t *testing) must(err error) {
	if err != nil {
		t.Errorf("%v", err)
	}
}

type handler func(ctx context.Context, order string) (string, error)

// describe describes a service of such methods, as generated code does.
func describe(methods map[string]handler) *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{}
	for full, h := range methods {
		var method string
		d.ServiceName, method = path.Dir(full)[1:], path.Base(full)
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: method, Handler: func(srv any, ctx context.Context, decode func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.StringValue)
			if err := decode(in); err != nil {
				return nil, err
			}
			return chain(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, func(ctx context.Context, _ any) (any, error) {
				answer, err := h(ctx, in.GetValue())
				return wrapperspb.String(answer), err
			})
		}})
	}
	return d
}
