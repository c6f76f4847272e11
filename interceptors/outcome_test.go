package interceptors

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/headerlist"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const roomy = 1 << 20

// stored is what comes back after a stay in dedupd: bytes, and nothing else.
func stored(tb testing.TB, o *dedupv1.Outcome) *dedupv1.Outcome {
	tb.Helper()
	raw, err := proto.Marshal(o)
	require.NoError(tb, err)
	back := new(dedupv1.Outcome)
	require.NoError(tb, proto.Unmarshal(raw, back))
	return back
}

func TestASuccessIsReplayed(t *testing.T) {
	t.Parallel()
	withUnknown := &demov1.ChargeResponse{ChargeId: "c1"}
	withUnknown.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, 0), 7))
	for name, resp := range map[string]proto.Message{
		"a receipt":           &demov1.ChargeResponse{ChargeId: "c1", Order: "4471", Amount: 1999},
		"an empty message":    &demov1.ChargeResponse{},
		"a well-known type":   &emptypb.Empty{},
		"with unknown fields": withUnknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := newOutcome(resp, nil, nil, nil, allowList{}, roomy)
			require.NoError(t, err)
			require.Empty(t, o.GetStatus())
			got, headers, trailers, err := replayOutcome(stored(t, o), "/p.S/M")
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(resp, got, protocmp.Transform()))
			require.Empty(t, headers)
			require.Empty(t, trailers)
		})
	}
	o, err := newOutcome(nil, nil, nil, nil, allowList{}, roomy)
	require.NoError(t, err)
	got, _, _, err := replayOutcome(stored(t, o), "/p.S/M")
	require.NoError(t, err, "a nil response is an answer too: gRPC sends no bytes")
	require.Nil(t, got)
}

func TestAResponseIsKeptWholeOrNotAtAll(t *testing.T) { // D01
	t.Parallel()
	resp := &demov1.ChargeResponse{ChargeId: strings.Repeat("x", 200<<10)}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(resp)
	require.NoError(t, err)
	size := int64(len(value))
	for _, limit := range []int64{size, size + 1} {
		o, err := newOutcome(resp, nil, nil, nil, allowList{}, limit)
		require.NoError(t, err)
		require.Equal(t, value, o.GetResponse().GetValue())
	}
	for _, limit := range []int64{size - 1, 64 << 10, 0, -1} {
		o, err := newOutcome(resp, nil, nil, nil, allowList{}, limit)
		require.NoError(t, err)
		sum := sha256.Sum256(value)
		want := &dedupv1.OmittedResponse{Size: size, Sha256: sum[:], TypeUrl: "type.googleapis.com/dedup.demo.v1.ChargeResponse"}
		require.Empty(t, cmp.Diff(want, o.GetOmitted(), protocmp.Transform()))
		got, _, _, err := replayOutcome(stored(t, o), "/p.S/M")
		require.Nil(t, got)
		requireRefusal(t, err, codes.DataLoss, dedupv1.Reason_REASON_OUTCOME_NOT_STORED)
		require.ErrorContains(t, err, fmt.Sprint(size, " bytes"))
		require.Equal(t, policy.EffectApplied, policy.Default().Classify(policy.Try{Err: err}).Effect)
	}
}

func TestEqualAnswersMakeEqualOutcomes(t *testing.T) { // C01
	t.Parallel()
	fields := map[string]any{}
	headers := metadata.MD{}
	names := []string{}
	for i := range 20 {
		name := fmt.Sprint("x-", i)
		fields[name] = i
		headers[name] = []string{"b", "a"}
		names = append(names, name)
	}
	allow, err := newAllowList(names, nil)
	require.NoError(t, err)
	var first []byte
	for range 100 {
		resp, err := structpb.NewStruct(fields)
		require.NoError(t, err)
		o, err := newOutcome(resp, nil, headers, nil, allow, roomy)
		require.NoError(t, err)
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
		require.NoError(t, err)
		if first == nil {
			first = raw
		}
		require.Equal(t, first, raw)
	}
}

func TestAnErrorIsReplayedByteForByte(t *testing.T) { // D04
	t.Parallel()
	known, err := anypb.New(&errdetails.ErrorInfo{Reason: "OUT_OF_STOCK", Domain: "shop.example", Metadata: map[string]string{"b": "2", "a": "1"}})
	require.NoError(t, err)
	unknownField := &errdetails.LocalizedMessage{Locale: "de"}
	unknownField.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 77, 0), 1))
	extended, err := anypb.New(unknownField)
	require.NoError(t, err)
	rich := &statuspb.Status{Code: int32(codes.NotFound), Message: "no such order", Details: []*anypb.Any{
		{TypeUrl: "example.test/shop.v9.NotLinkedIn", Value: []byte{0xff, 0x00, 0x01}},
		known,
		extended,
	}}
	rich.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9, 0), 1))
	bare := status.FromProto(rich).Err()
	for name, handler := range map[string]error{
		"bare":              bare,
		"wrapped":           fmt.Errorf("charge: %w", bare),
		"joined":            errors.Join(errors.New("rollback failed"), bare),
		"no status":         errors.New("boom"),
		"not UTF-8":         status.Error(codes.Internal, "a\xffb"),
		"a code of no name": status.Error(codes.Code(42), "x"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := policy.StatusOf(handler)
			o, err := newOutcome(&demov1.ChargeResponse{}, handler, nil, nil, allowList{}, roomy)
			require.NoError(t, err)
			require.Nil(t, o.GetResult(), "an error has no response")
			resp, _, _, replay := replayOutcome(stored(t, o), "/p.S/M")
			require.Nil(t, resp)
			second := policy.StatusOf(replay)
			require.Equal(t, encoded(t, first), encoded(t, second))
			require.Equal(t, encoded(t, first), o.GetStatus())
			require.Equal(t, status.Code(handler), second.Code())
		})
	}
}

func encoded(tb testing.TB, s *status.Status) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Proto())
	require.NoError(tb, err)
	return b
}

func TestAStatusOverItsLimitIsNotCut(t *testing.T) {
	t.Parallel()
	message := func(n int) error { return status.Error(codes.NotFound, strings.Repeat("x", n)) }
	head := len(encoded(t, status.Convert(message(60_000)))) - 60_000
	o, err := newOutcome(nil, message(maxStatusBytes-head), nil, nil, allowList{}, roomy)
	require.NoError(t, err)
	require.Len(t, o.GetStatus(), maxStatusBytes)
	_, _, _, err = replayOutcome(o, "/p.S/M")
	require.Equal(t, codes.NotFound, status.Code(err))

	o, err = newOutcome(nil, message(maxStatusBytes-head+1), nil, nil, allowList{}, roomy)
	require.NoError(t, err)
	require.Less(t, len(o.GetStatus()), 1<<10)
	_, _, _, err = replayOutcome(o, "/p.S/M")
	requireRefusal(t, err, codes.DataLoss, dedupv1.Reason_REASON_OUTCOME_NOT_STORED)
	require.ErrorContains(t, err, "code NotFound whose status of 65537 bytes")
}

func TestMetadataIsReplayedByAllowList(t *testing.T) { // D02
	t.Parallel()
	allow, err := newAllowList([]string{"x-resource", "x-proof-bin", "x-resource"}, []string{"x-version"})
	require.NoError(t, err)
	headers := metadata.MD{
		"x-resource": {"r2", "r1"}, "x-proof-bin": {"\x00\xff"}, "x-other": {"o"},
		"set-cookie": {"session=1"}, "authorization": {"Bearer t"},
	}
	trailers := metadata.MD{"x-version": {"3"}, "x-resource": {"not here"}, "grpc-status": {"0"}, TrailerReplayed: {"true"}}
	for name, handler := range map[string]error{"a success": nil, "an error": status.Error(codes.NotFound, "no")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := newOutcome(&demov1.ChargeResponse{}, handler, headers, trailers, allow, roomy)
			require.NoError(t, err)
			_, gotHeaders, gotTrailers, err := replayOutcome(stored(t, o), "/p.S/M")
			require.Equal(t, status.Code(handler), status.Code(err))
			require.Equal(t, metadata.MD{"x-resource": {"r2", "r1"}, "x-proof-bin": {"\x00\xff"}}, gotHeaders)
			require.Equal(t, metadata.MD{"x-version": {"3"}}, gotTrailers)
		})
	}
	// Whatever another writer stored, secrets stay where they are.
	_, gotHeaders, _, err := replayOutcome(&dedupv1.Outcome{
		Result:  &dedupv1.Outcome_Response{Response: &dedupv1.Response{}},
		Headers: []*dedupv1.MetadataEntry{{Key: "set-cookie", Value: []byte("s")}, {Key: "x-resource", Value: []byte("r")}},
	}, "/p.S/M")
	require.NoError(t, err)
	require.Equal(t, metadata.MD{"x-resource": {"r"}}, gotHeaders)
}

func TestAllowListsAreCheckedWhenTheyAreMade(t *testing.T) { // D02
	t.Parallel()
	for _, name := range []string{
		"", "X-Upper", "x y", "grpc-status", "grpc-retry-pushback-ms", "set-cookie", "authorization",
		"www-authenticate", "proxy-authenticate", TrailerReplayed, HeaderKey, "idempotency-anything", ":path",
		strings.Repeat("x", 256),
	} {
		_, err := newAllowList([]string{name}, nil)
		require.Error(t, err, "header %q", name)
		_, err = newAllowList(nil, []string{"x-fine", name})
		require.Error(t, err, "trailer %q", name)
	}
}

func TestMetadataOverALimitIsLeftOutWhole(t *testing.T) {
	t.Parallel()
	allow, err := newAllowList([]string{"a", "b", "c", "d"}, nil)
	require.NoError(t, err)
	headers := metadata.MD{
		"a": {"fine", strings.Repeat("x", headerlist.MaxValue+1)}, // one value too long
		"b": {strings.Repeat("x", headerlist.MaxValue)},
		"c": make([]string, headerlist.MaxEntries), // one entry too many, after b's
		"d": make([]string, headerlist.MaxEntries-1),
	}
	o, err := newOutcome(nil, nil, headers, nil, allow, roomy)
	require.NoError(t, err)
	_, got, _, err := replayOutcome(o, "/p.S/M")
	require.NoError(t, err)
	require.Len(t, got["b"], 1)
	require.Len(t, got["d"], headerlist.MaxEntries-1)
	require.Len(t, got, 2)
}

func TestAnAnswerThatIsNotThereIsSaidToBeMissing(t *testing.T) {
	t.Parallel()
	response := func(url string, value ...byte) *dedupv1.Outcome {
		return &dedupv1.Outcome{Result: &dedupv1.Outcome_Response{Response: &dedupv1.Response{TypeUrl: url, Value: value}}}
	}
	for name, o := range map[string]*dedupv1.Outcome{
		"settled by an operator": nil,
		"without a result":       {},
		"a type not linked in":   response("type.googleapis.com/shop.v9.NotLinkedIn"),
		"a type of no name":      response("", 1),
		"bytes of another type":  response("type.googleapis.com/dedup.demo.v1.ChargeResponse", 0xff),
		"a status unreadable":    {Status: []byte{0xff}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, headers, trailers, err := replayOutcome(o, "/shop.Orders/Place")
			require.Nil(t, resp)
			require.Nil(t, headers)
			require.Nil(t, trailers)
			requireRefusal(t, err, codes.DataLoss, dedupv1.Reason_REASON_OUTCOME_NOT_STORED)
			got, _ := policy.RefusalOf(err)
			require.Equal(t, "/shop.Orders/Place", got.Operation)
		})
	}
}

func TestAResponseThatCannotBeEncodedIsAnError(t *testing.T) {
	t.Parallel()
	_, err := newOutcome(&demov1.ChargeResponse{ChargeId: "\xff"}, nil, nil, nil, allowList{}, roomy)
	require.ErrorContains(t, err, "response cannot be encoded")
}

func FuzzReplayOutcome(f *testing.F) {
	o, err := newOutcome(&demov1.ChargeResponse{ChargeId: "c"}, nil, metadata.MD{"a": {"b"}}, nil, allowList{headers: []string{"a"}}, roomy)
	require.NoError(f, err)
	raw, err := proto.Marshal(o)
	require.NoError(f, err)
	f.Add(raw)
	o, err = newOutcome(nil, status.Error(codes.NotFound, "x"), nil, nil, allowList{}, roomy)
	require.NoError(f, err)
	raw, err = proto.Marshal(o)
	require.NoError(f, err)
	f.Add(raw)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var o dedupv1.Outcome
		if proto.Unmarshal(raw, &o) != nil {
			return
		}
		resp, headers, trailers, err := replayOutcome(&o, "/p.S/M")
		if err != nil {
			require.Nil(t, resp)
			require.NotEqual(t, codes.OK, status.Code(err))
		}
		for name := range metadata.Join(headers, trailers) {
			require.False(t, headerlist.Denied(name))
		}
	})
}
