package interceptors

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

const vectorsDir = "../proto/dedup/v1/testdata/vectors"

func readVectors(tb testing.TB, name string, into any) {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join(vectorsDir, name))
	require.NoError(tb, err)
	require.NoError(tb, json.Unmarshal(raw, into))
}

type fingerprintVectors struct {
	Types   json.RawMessage
	Vectors []struct {
		Name, Operation, Type, Canonical, Digest string
		Wire                                     []string
		UnknownFields                            bool `json:"unknown_fields"`
	}
}

// vectorTypes resolves the types of the vectors: generated ones, and those
// whose descriptors the file carries.
func vectorTypes(tb testing.TB, raw json.RawMessage) *dynamicpb.Types {
	tb.Helper()
	var set descriptorpb.FileDescriptorSet
	require.NoError(tb, protojson.Unmarshal(raw, &set))
	files := new(protoregistry.Files)
	protoregistry.GlobalFiles.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		require.NoError(tb, files.RegisterFile(fd))
		return true
	})
	for _, p := range set.GetFile() {
		fd, err := protodesc.NewFile(p, files)
		require.NoError(tb, err)
		require.NoError(tb, files.RegisterFile(fd))
	}
	return dynamicpb.NewTypes(files)
}

func TestFingerprintsOfTheVectors(t *testing.T) { // C01, C02
	t.Parallel()
	var file fingerprintVectors
	readVectors(t, "fingerprints.json", &file)
	types := vectorTypes(t, file.Types)
	require.GreaterOrEqual(t, len(file.Vectors), 40)
	for _, v := range file.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			// Each type as a dynamic message; those that are linked in as the
			// generated one too.
			kinds := []protoreflect.MessageType{}
			dynamic, err := types.FindMessageByName(protoreflect.FullName(v.Type))
			require.NoError(t, err)
			kinds = append(kinds, dynamic)
			if generated, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(v.Type)); err == nil {
				kinds = append(kinds, generated)
			}
			for _, kind := range kinds {
				for _, wire := range v.Wire {
					m := kind.New().Interface()
					raw, err := hex.DecodeString(wire)
					require.NoError(t, err)
					require.NoError(t, proto.UnmarshalOptions{Resolver: types}.Unmarshal(raw, m))
					var w canonicalWriter
					w.message(m.ProtoReflect())
					require.Equal(t, v.Canonical, hex.EncodeToString(w.bytes()), "wire %s", wire)
					got, err := Fingerprint(v.Operation, m)
					require.NoError(t, err)
					require.Equal(t, v.Digest, hex.EncodeToString(got.GetDigest()))
					require.Equal(t, v.UnknownFields, got.GetUnknownFields())
					require.EqualValues(t, 1, got.GetVersion())
				}
			}
		})
	}
}

func TestFingerprintIsOneValueForAMapOfFifty(t *testing.T) { // C01
	t.Parallel()
	fields := map[string]any{}
	for i := range 50 {
		name := strings.Repeat("k", i+1)
		fields[name] = map[string]any{name: float64(i), "x": []any{name, nil}}
	}
	m, err := structpb.NewStruct(fields)
	require.NoError(t, err)
	want := digestOf(t, m)
	for range 1000 { // a map is ranged over in another order each time
		require.Equal(t, want, digestOf(t, m))
	}
	wires := map[string]bool{}
	for range 20 {
		wire, err := proto.Marshal(m)
		require.NoError(t, err)
		wires[string(wire)] = true
		again := new(structpb.Struct)
		require.NoError(t, proto.Unmarshal(wire, again))
		require.Equal(t, want, digestOf(t, again))
	}
	require.Greater(t, len(wires), 1, "the encodings differ, or this test shows nothing")
}

func TestFingerprintIgnoresAMarkedFieldOfADescriptorLoadedAtRunTime(t *testing.T) { // C12
	t.Parallel()
	// The option parsed by type, and as bytes that nobody parsed.
	for name, resolver := range map[string]interface {
		protoregistry.ExtensionTypeResolver
		protoregistry.MessageTypeResolver
	}{"parsed": protoregistry.GlobalTypes, "unparsed": new(protoregistry.Types)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := proto.Marshal(protodesc.ToFileDescriptorProto(demov1.File_dedup_demo_v1_payments_proto))
			require.NoError(t, err)
			var p descriptorpb.FileDescriptorProto
			require.NoError(t, proto.UnmarshalOptions{Resolver: resolver}.Unmarshal(raw, &p))
			fd, err := protodesc.NewFile(&p, protoregistry.GlobalFiles)
			require.NoError(t, err)
			loaded := dynamicpb.NewMessage(fd.Messages().ByName("ChargeRequest"))
			charge := &demov1.ChargeRequest{Order: "4471", Amount: 1999, SentAt: timestamppb.Now()}
			wire, err := proto.Marshal(charge)
			require.NoError(t, err)
			require.NoError(t, proto.Unmarshal(wire, loaded))
			charge.SentAt = nil
			require.Equal(t, digestOf(t, charge), digestOf(t, loaded))
		})
	}
}

func TestFingerprintSeesEveryDifference(t *testing.T) {
	t.Parallel()
	base := func() *demov1.ChargeRequest {
		return &demov1.ChargeRequest{Order: "1", Amount: 2, Currency: "EUR", Labels: map[string]string{"a": "b"}}
	}
	want := digestOf(t, base())
	for name, change := range map[string]func(*demov1.ChargeRequest){
		"a string":    func(m *demov1.ChargeRequest) { m.Order = "2" },
		"a number":    func(m *demov1.ChargeRequest) { m.Amount = 3 },
		"a map value": func(m *demov1.ChargeRequest) { m.Labels["a"] = "c" },
		"a map key":   func(m *demov1.ChargeRequest) { m.Labels = map[string]string{"b": "b"} },
		"an entry":    func(m *demov1.ChargeRequest) { m.Labels["b"] = "" },
		"moved text":  func(m *demov1.ChargeRequest) { m.Order, m.Currency = "1EUR", "" },
		"unknown": func(m *demov1.ChargeRequest) {
			m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9, 0), 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := base()
			change(m)
			require.NotEqual(t, want, digestOf(t, m))
		})
	}
	other, err := Fingerprint("op2", base())
	require.NoError(t, err)
	require.NotEqual(t, want, hex.EncodeToString(other.GetDigest()))
}

func TestFingerprintOfNothing(t *testing.T) {
	t.Parallel()
	_, err := Fingerprint("op", nil)
	require.ErrorIs(t, err, errNilMessage)
	// A typed nil is what gRPC sends as an empty message.
	require.Equal(t, digestOf(t, &demov1.ChargeRequest{}), digestOf(t, (*demov1.ChargeRequest)(nil)))
	// Unknown fields that no decoder lets in.
	m := &structpb.Struct{Fields: map[string]*structpb.Value{"a": {}, "b": {}}}
	m.GetFields()["b"].ProtoReflect().SetUnknown([]byte{0xff})
	_, err = Fingerprint("op", m)
	require.ErrorIs(t, err, errBadUnknown)
}

func TestFingerprintTravelsAsAHeader(t *testing.T) {
	t.Parallel()
	fp, err := Fingerprint("op", &demov1.ChargeRequest{Order: "1"})
	require.NoError(t, err)
	value := wireFingerprint(fp)
	require.Regexp(t, `^1:[0-9a-f]{64}$`, value)
	other := "1:" + strings.Repeat("0", 64)
	for _, tt := range []struct {
		name    string
		values  []string
		want    []byte
		refused bool
	}{
		{"none", nil, nil, false},
		{"one", []string{value}, fp.GetDigest(), false},
		{"in upper case", []string{"1:" + strings.ToUpper(value[2:])}, fp.GetDigest(), false},
		{"the same twice", []string{value, value}, fp.GetDigest(), false},
		{"a newer one beside it", []string{"2:abc", value}, fp.GetDigest(), false},
		{"only a newer one", []string{"12:abc"}, nil, false},
		{"two that differ", []string{value, other}, nil, true},
		{"no version", []string{value[2:]}, nil, true},
		{"an empty version", []string{":" + value[2:]}, nil, true},
		{"a word for a version", []string{"v1:" + value[2:]}, nil, true},
		{"too short", []string{value[:64]}, nil, true},
		{"too long", []string{value + "00"}, nil, true},
		{"no hexadecimal", []string{"1:" + strings.Repeat("g", 64)}, nil, true},
		{"empty", []string{""}, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := clientDigest(metadata.MD{HeaderFingerprint: tt.values})
			if tt.refused {
				requireRefusal(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_INPUT_INVALID)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// FuzzFingerprint feeds wire bytes: nothing panics, and no way of encoding one
// message, at random orders of maps and fields, moves its digest.
func FuzzFingerprint(f *testing.F) {
	var file fingerprintVectors
	readVectors(f, "fingerprints.json", &file)
	types := vectorTypes(f, file.Types)
	kinds := []protoreflect.MessageType{}
	for _, name := range []protoreflect.FullName{
		"dedup.vectors.v1.Everything", "dedup.vectors.v1.OldEverything", "dedup.vectors.v1.Legacy",
		"google.protobuf.Struct", "dedup.demo.v1.ChargeRequest",
	} {
		kind, err := types.FindMessageByName(name)
		require.NoError(f, err)
		kinds = append(kinds, kind)
	}
	for i, v := range file.Vectors {
		raw, err := hex.DecodeString(v.Wire[len(v.Wire)-1])
		require.NoError(f, err)
		f.Add(byte(i), uint64(i), raw)
		f.Add(byte(0), uint64(i), raw)
		f.Add(byte(1), uint64(i), raw)
	}
	f.Fuzz(func(t *testing.T, which byte, seed uint64, wire []byte) {
		kind := kinds[int(which)%len(kinds)]
		m := kind.New().Interface()
		if !decodes(types, wire, m) {
			return
		}
		want, err := Fingerprint("op", m)
		require.NoError(t, err)
		again, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		require.NoError(t, err)
		shuffled := shuffleFields(rand.New(rand.NewPCG(seed, 0)), again)
		for _, encoding := range [][]byte{again, shuffled} {
			n := kind.New().Interface()
			require.True(t, decodes(types, encoding, n))
			got, err := Fingerprint("op", n)
			require.NoError(t, err)
			require.Equal(t, want.GetDigest(), got.GetDigest())
			require.Equal(t, want.GetUnknownFields(), got.GetUnknownFields())
		}
	})
}

// decodes reports whether wire is a message. The decoder for dynamic messages
// panics on a map entry with two keys of which the last has a wrong wire type
// (protobuf-go 1.36.12); that is no business of the fingerprint's.
func decodes(types *dynamicpb.Types, wire []byte, into proto.Message) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return proto.UnmarshalOptions{Resolver: types}.Unmarshal(wire, into) == nil
}

// shuffleFields puts the top-level fields of a message into another order and
// keeps that of equal numbers.
func shuffleFields(r *rand.Rand, wire []byte) []byte {
	byNumber := map[protowire.Number][]byte{}
	numbers := []protowire.Number{}
	for len(wire) > 0 {
		number, _, n := protowire.ConsumeField(wire)
		if _, seen := byNumber[number]; !seen {
			numbers = append(numbers, number)
		}
		byNumber[number] = append(byNumber[number], wire[:n]...)
		wire = wire[n:]
	}
	r.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	var out bytes.Buffer
	for _, n := range numbers {
		out.Write(byNumber[n])
	}
	return out.Bytes()
}

func BenchmarkFingerprint(b *testing.B) {
	m := &demov1.ChargeRequest{
		Order: "4471", Amount: 1999, Currency: "EUR", SentAt: timestamppb.Now(),
		Labels: map[string]string{"shop": "17", "channel": "web", "campaign": "autumn"},
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Fingerprint("/dedup.demo.v1.PaymentsService/Charge", m); err != nil {
			b.Fatal(err)
		}
	}
}

func digestOf(tb testing.TB, m proto.Message) string {
	tb.Helper()
	fp, err := Fingerprint("op", m)
	require.NoError(tb, err)
	return hex.EncodeToString(fp.GetDigest())
}

func requireRefusal(tb testing.TB, err error, code codes.Code, reason dedupv1.Reason) {
	tb.Helper()
	require.Equal(tb, code, status.Code(err), "%v", err)
	got, ok := ReasonOf(err)
	require.True(tb, ok)
	require.Equal(tb, reason, got)
}
