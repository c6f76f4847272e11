package server

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/emptypb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// TestInProcessEqualsTheWire makes the same calls both ways, each way on a
// server of its own, and compares what comes back to the byte.
func TestInProcessEqualsTheWire(t *testing.T) {
	t.Parallel()
	type call struct {
		method string
		req    proto.Message
		reply  proto.Message
		ctx    func(context.Context) (context.Context, context.CancelFunc)
	}
	const dedup, admin = "/dedup.v1.DedupService/", "/dedup.v1.AdminService/"
	inTime := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Minute)
	}
	large := completeReq(1, 1, "")
	large.Outcome.GetResponse().Value = make([]byte, MaxMessage)
	badText := reserveReq(1)
	badText.Identity.Operation = "\xff"
	calls := map[string]call{
		"granted":        {dedup + "Reserve", reserveReq(1), &dedupv1.ReserveResponse{}, inTime},
		"in progress":    {dedup + "Reserve", reserveReq(2), &dedupv1.ReserveResponse{}, inTime},
		"refused":        {dedup + "Release", releaseReq(2, 1, dedupv1.Effect_EFFECT_NONE), &dedupv1.ReleaseResponse{}, inTime},
		"malformed":      {dedup + "Extend", &dedupv1.ExtendRequest{}, &dedupv1.ExtendResponse{}, inTime},
		"nil message":    {dedup + "Reserve", (*dedupv1.ReserveRequest)(nil), &dedupv1.ReserveResponse{}, inTime},
		"not UTF-8":      {dedup + "Reserve", badText, &dedupv1.ReserveResponse{}, inTime},
		"too large":      {dedup + "Complete", large, &dedupv1.CompleteResponse{}, inTime},
		"listed":         {admin + "ListRecords", &dedupv1.ListRecordsRequest{}, &dedupv1.ListRecordsResponse{}, inTime},
		"unknown method": {dedup + "Nothing", &dedupv1.ListRecordsRequest{}, &dedupv1.ListRecordsResponse{}, inTime},
		"other service":  {"/dedup.v1.Nothing/Reserve", reserveReq(1), &dedupv1.ReserveResponse{}, inTime},
		"deadline passed": {dedup + "Reserve", reserveReq(1), &dedupv1.ReserveResponse{}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Now().Add(-time.Second))
		}},
		"cancelled before": {dedup + "Reserve", reserveReq(1), &dedupv1.ReserveResponse{}, func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}},
	}
	// Times differ between the two ways; everything else must not.
	same := cmp.Options{
		protocmp.Transform(),
		protocmp.IgnoreMessages(&dedupv1.Granted{}, &dedupv1.InProgress{}),
		protocmp.IgnoreFields(&dedupv1.RecordInfo{}, "fence", "version", "lease_left", "age", "created_at", "granted_at", "lease_ends_at"),
	}
	// These texts are gRPC's own.
	ownText := map[string]bool{"too large": true, "not UTF-8": true, "unknown method": true, "other service": true}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ask := func(cc grpc.ClientConnInterface, b *bundle) (proto.Message, *status.Status) {
				b.use(b.Conn())
				if name != "granted" {
					b.grant(t, 1)
				}
				ctx, cancel := c.ctx(t.Context())
				defer cancel()
				reply := proto.Clone(c.reply)
				err := cc.Invoke(ctx, c.method, c.req, reply)
				return reply, status.Convert(err)
			}
			near, far := setup(t), setup(t)
			nearReply, nearStatus := ask(near.Conn(), near)
			farReply, farStatus := ask(far.serve(t).cc, far)
			require.Empty(t, cmp.Diff(farReply, nearReply, same))
			require.Equal(t, farStatus.Code(), nearStatus.Code(), "%v, %v", farStatus, nearStatus)
			if !ownText[name] {
				require.Empty(t, cmp.Diff(farStatus.Proto(), nearStatus.Proto(), protocmp.Transform()))
			}
		})
	}
}

func TestMessagesAreNeverSharedInProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := b.grant(t, 1)
	req := completeReq(1, g.GetFence(), "kept")
	_, err := b.dedup.Complete(t.Context(), req)
	require.NoError(t, err)
	copy(req.GetOutcome().GetResponse().GetValue(), "OVER")
	for range 2 {
		res, err := b.dedup.Reserve(t.Context(), reserveReq(2))
		require.NoError(t, err)
		require.Equal(t, "kept", string(res.GetCompleted().GetOutcome().GetResponse().GetValue()))
		copy(res.GetCompleted().GetOutcome().GetResponse().GetValue(), "OVER")
	}
}

func TestADeadlineEndsACallWhateverTheStoreDoes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	finish := make(chan struct{})
	b.store.hook(func(context.Context, string) error { <-finish; return nil })
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := b.dedup.Reserve(ctx, reserveReq(1))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	close(finish)
	<-b.gate.stop()
	require.Zero(t, b.store.size(), "nothing is granted to a caller that left")
}

// echo answers with what it was sent beside the message.
func echo(_ any, ctx context.Context, read func(any) error, chain grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // gRPC's order
	if err := read(&emptypb.Empty{}); err != nil {
		return nil, err
	}
	handler := func(ctx context.Context, _ any) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		sent, _ := metadata.FromOutgoingContext(ctx)
		from, _ := peer.FromContext(ctx)
		method, _ := grpc.Method(ctx)
		_ = grpc.SetHeader(ctx, metadata.Pairs("method", method, "left-over", string(rune('0'+len(sent))), "has-peer", from.Addr.Network()))
		_ = grpc.SendHeader(ctx, metadata.Pairs("x-bin", md.Get("x-bin")[0]))
		if grpc.SetHeader(ctx, md) == nil {
			return nil, status.Error(codes.Internal, "a header after the header")
		}
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-text", md.Get("x-text")[1]))
		return &emptypb.Empty{}, nil
	}
	return chain(ctx, &emptypb.Empty{}, &grpc.UnaryServerInfo{FullMethod: "/test.Echo/Do"}, handler)
}

func TestMetadataTravelsInProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	desc := &grpc.ServiceDesc{ServiceName: "test.Echo", Methods: []grpc.MethodDesc{{MethodName: "Do", Handler: echo}}}
	b.conn.RegisterService(desc, nil)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-bin", "\x00\xff", "x-text", "1", "x-text", "2")
	var header, trailer metadata.MD
	var from peer.Peer
	finished := 0
	err := b.Conn().Invoke(ctx, "/test.Echo/Do", &emptypb.Empty{}, &emptypb.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer),
		grpc.Peer(&from), grpc.OnFinish(func(error) { finished++ }), grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, metadata.Pairs("method", "/test.Echo/Do", "left-over", "0", "has-peer", "in-process", "x-bin", "\x00\xff"), header)
	require.Equal(t, metadata.Pairs("x-text", "2"), trailer)
	require.Equal(t, "in-process", from.Addr.String())
	require.Equal(t, 1, finished)

	_, err = b.Conn().NewStream(ctx, &grpc.StreamDesc{}, "/grpc.health.v1.Health/Watch")
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.Equal(t, codes.Internal, status.Code(b.Conn().Invoke(ctx, "/test.Echo/Do", nil, &emptypb.Empty{})))
}

// FuzzRequests sends any bytes as any request: an answer or an error that says
// what is wrong, never a panic.
func FuzzRequests(f *testing.F) {
	methods := []struct {
		name       string
		req, reply proto.Message
	}{
		{"DedupService/Reserve", &dedupv1.ReserveRequest{}, &dedupv1.ReserveResponse{}},
		{"DedupService/BeginRun", &dedupv1.BeginRunRequest{}, &dedupv1.BeginRunResponse{}},
		{"DedupService/Complete", &dedupv1.CompleteRequest{}, &dedupv1.CompleteResponse{}},
		{"DedupService/Extend", &dedupv1.ExtendRequest{}, &dedupv1.ExtendResponse{}},
		{"DedupService/Release", &dedupv1.ReleaseRequest{}, &dedupv1.ReleaseResponse{}},
		{"DedupService/Lookup", &dedupv1.LookupRequest{}, &dedupv1.LookupResponse{}},
		{"AdminService/ListRecords", &dedupv1.ListRecordsRequest{}, &dedupv1.ListRecordsResponse{}},
		{"AdminService/Resolve", &dedupv1.ResolveRequest{}, &dedupv1.ResolveResponse{}},
		{"AdminService/Stats", &dedupv1.StatsRequest{}, &dedupv1.StatsResponse{}},
		{"AdminService/Redact", &dedupv1.RedactRequest{}, &dedupv1.RedactResponse{}},
		{"AdminService/Forget", &dedupv1.ForgetRequest{}, &dedupv1.ForgetResponse{}},
		{"DeadLetterService/Park", &dedupv1.ParkRequest{}, &dedupv1.ParkResponse{}},
		{"DeadLetterService/List", &dedupv1.DeadLetterServiceListRequest{}, &dedupv1.DeadLetterServiceListResponse{}},
		{"DeadLetterService/Get", &dedupv1.DeadLetterServiceGetRequest{}, &dedupv1.DeadLetterServiceGetResponse{}},
		{"DeadLetterService/Groups", &dedupv1.GroupsRequest{}, &dedupv1.GroupsResponse{}},
		{"DeadLetterService/Claim", &dedupv1.ClaimRequest{}, &dedupv1.ClaimResponse{}},
		{"DeadLetterService/Settle", &dedupv1.SettleRequest{}, &dedupv1.SettleResponse{}},
		{"DeadLetterService/Requeue", &dedupv1.RequeueRequest{}, &dedupv1.RequeueResponse{}},
		{"DeadLetterService/Discard", &dedupv1.DiscardRequest{}, &dedupv1.DiscardResponse{}},
	}
	entry := [][]byte{attempt(1)}
	resolve := resolveReq(make([]byte, 8))
	resolve.Verdict = &dedupv1.ResolveRequest_Completed{}
	for i, seed := range []proto.Message{
		reserveReq(1), &dedupv1.BeginRunRequest{Identity: identity(), AttemptId: attempt(1), Fence: 1}, completeReq(1, 1, "x"),
		&dedupv1.ExtendRequest{Identity: identity(), AttemptId: attempt(1), Fence: -1}, releaseReq(1, 1, 99), lookupReq(0),
		&dedupv1.ListRecordsRequest{PageToken: make([]byte, 32), States: []dedupv1.State{-1}}, resolve,
		&dedupv1.StatsRequest{HotKeys: 100}, &dedupv1.RedactRequest{Selector: &dedupv1.RecordSelector{}, Note: "n"},
		&dedupv1.ForgetRequest{Selector: callerSelector("c"), Note: "n", PageToken: make([]byte, 17)},
		&dedupv1.ParkRequest{Record: &dedupv1.ParkRequest_Identity{}, ParkId: attempt(1), Kind: 1, Method: "m", Request: &dedupv1.Response{}},
		&dedupv1.DeadLetterServiceListRequest{PageToken: make([]byte, 17)}, &dedupv1.DeadLetterServiceGetRequest{EntryId: attempt(1)},
		&dedupv1.GroupsRequest{Filter: &dedupv1.DeadLetterFilter{States: []dedupv1.DeadLetterState{-1}}},
		&dedupv1.ClaimRequest{Token: attempt(1), Operator: true}, &dedupv1.SettleRequest{EntryId: attempt(1), Token: attempt(1), Result: 4},
		&dedupv1.RequeueRequest{EntryIds: entry, Note: "n"}, &dedupv1.DiscardRequest{EntryIds: entry, Note: "n"},
	} {
		raw, err := proto.Marshal(seed)
		require.NoError(f, err)
		f.Add(uint8(i), raw)
	}
	v, err := validator()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, method uint8, raw []byte) {
		m := methods[int(method)%len(methods)]
		req := proto.Clone(m.req)
		if proto.Unmarshal(raw, req) != nil {
			return
		}
		store := newFakeStore()
		id := storageIdentity()
		store.rows[id.RecordID()], _ = storage.Apply(nil, storage.Reserve{Identity: id, Attempt: storage.AttemptID(attempt(1))}, 1, 0)
		s, err := New(Config{Store: store, validator: v})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // it may ask to wait
		defer cancel()
		err = s.Conn().Invoke(ctx, "/dedup.v1."+m.name, req, proto.Clone(m.reply))
		require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown, codes.Unavailable}, status.Code(err), "%v", err)
	})
}
