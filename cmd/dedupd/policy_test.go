package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	demov1 "github.com/dedupd/dedupd/gen/dedup/demo/v1"
	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// shop is a service as teams have them before they adopt dedupd.
func shop(t *testing.T) *descriptorpb.FileDescriptorProto {
	t.Helper()
	method := func(name string, p *dedupv1.MethodPolicy, level descriptorpb.MethodOptions_IdempotencyLevel, stream bool) *descriptorpb.MethodDescriptorProto {
		o := &descriptorpb.MethodOptions{IdempotencyLevel: &level}
		if p != nil {
			proto.SetExtension(o, dedupv1.E_Method, p)
		}
		return &descriptorpb.MethodDescriptorProto{
			Name: &name, Options: o, ServerStreaming: &stream,
			InputType: proto.String(".dedup.demo.v1.ChargeRequest"), OutputType: proto.String(".dedup.demo.v1.ChargeResponse"),
		}
	}
	const unset = descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
	return &descriptorpb.FileDescriptorProto{
		Name: proto.String("shop/v1/shop.proto"), Package: proto.String("shop.v1"), Syntax: proto.String("proto3"),
		Dependency: []string{"dedup/demo/v1/payments.proto", "dedup/v1/options.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Orders"), Method: []*descriptorpb.MethodDescriptorProto{
			method("CreateOrder", nil, unset, false),
			method("PlaceOrder", &dedupv1.MethodPolicy{KeyFields: []string{"order", "currency"}}, unset, false),
			method("ListOrders", nil, descriptorpb.MethodOptions_NO_SIDE_EFFECTS, false),
			method("CancelOrder", nil, unset, false),
			method("SendMail", &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OBSERVE}, unset, false),
			method("UploadFile", nil, unset, true),
			method("PostEntry", &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_REQUIRED, RerunSafe: true, FailOpen: true}, unset, false),
			method("AddTag", &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OFF}, descriptorpb.MethodOptions_IDEMPOTENT, false),
			method("GrantCredit", &dedupv1.MethodPolicy{Keys: dedupv1.KeyRule_KEY_RULE_OFF}, unset, false),
		}}},
	}
}

// descriptorSet writes files, and with whole all that they import.
func descriptorSet(t *testing.T, whole bool, files ...*descriptorpb.FileDescriptorProto) string {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	if whole {
		add(demov1.File_dedup_demo_v1_payments_proto)
	}
	set.File = append(set.File, files...)
	data, err := proto.Marshal(set)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "files.binpb")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

func TestPolicyExplainTellsWhatEachMethodGets(t *testing.T) {
	t.Parallel()
	path := descriptorSet(t, true, shop(t))
	stdout, _ := exits(t, exitDone, "policy", "explain", path, "--service", "shop.v1.Orders", "-o", "json")
	got := map[string]interceptors.Description{}
	for line := range strings.Lines(stdout) {
		var d interceptors.Description
		require.NoError(t, json.Unmarshal([]byte(line), &d))
		got[strings.TrimPrefix(d.Method, "/shop.v1.Orders/")] = d
	}
	for name, want := range map[string]struct {
		mode              string
		attempts, keyless int
		unknown           string
		warning           string
	}{
		"CreateOrder": {"optional", 5, 1, "refused", "a call without a key runs unprotected"},
		"PlaceOrder":  {"optional", 5, 1, "refused", ""},
		"ListOrders":  {"off", 5, 5, "", ""},
		"CancelOrder": {"optional", 5, 1, "refused", ""},
		"SendMail":    {"observe", 1, 1, "", "only observed"},
		"UploadFile":  {"stream", 1, 1, "", "a stream is never deduplicated"},
		"PostEntry":   {"required", 5, 0, "run again", ""},
		"AddTag":      {"off", 5, 5, "", ""},
		"GrantCredit": {"off", 1, 1, "", "keys are ignored"},
	} {
		d := got[name]
		require.Equal(t, want.mode, d.Mode, name)
		require.Equal(t, []int{want.attempts, want.keyless}, []int{d.Attempts, d.Keyless}, name)
		require.Contains(t, d.Unknown, want.unknown, name)
		require.Equal(t, want.unknown == "", d.Unknown == "", name)
		require.Contains(t, d.Warning, want.warning, name)
		require.Equal(t, want.warning == "", d.Warning == "", name)
		require.Equal(t, d.Attempts > 1, len(d.Retried) > 0 && d.Waits != "", name)
	}
	require.Len(t, got, 9)
	require.Contains(t, got["PlaceOrder"].Key, "derived from order, currency")
	require.Contains(t, got["PostEntry"].Retried, "Unavailable")
	require.NotContains(t, got["PostEntry"].Retried, "InvalidArgument")
	require.True(t, got["PostEntry"].FailOpen)

	stdout, _ = exits(t, exitDone, "policy", "explain", path)
	require.Regexp(t, `/dedup\.demo\.v1\.PaymentsService/Charge +required`, stdout)
	require.Regexp(t, `/shop\.v1\.Orders/CreateOrder .* 5, 1 without a key .* ! a call without a key`, stdout)
	require.Contains(t, stdout, "up to 250ms after the first")
	require.Contains(t, stdout, "! 4 of 11 methods seem to create something and have no protection.")
}

func TestPolicyExplainAsksARunningService(t *testing.T) {
	t.Parallel()
	s := serve(t, "--in-memory")
	stdout, _ := exits(t, exitDone, "policy", "explain", "--live", "--addr", s.grpc)
	require.Contains(t, stdout, "/dedup.v1.DedupService/Reserve")
	require.NotContains(t, stdout, "grpc.reflection")
	stdout, _ = exits(t, exitDone, "policy", "explain", "--live", "--addr", s.grpc, "--service", "dedup.v1.AdminService")
	require.NotContains(t, stdout, "/dedup.v1.DedupService/Reserve")
	_, stderr := exits(t, exitFailed, "policy", "explain", "--live", "--addr", "127.0.0.1:1", "--timeout", "2s")
	require.Contains(t, stderr, "give a file descriptor set instead")
}

func TestPolicyExplainSaysWhatIsWrongWithAFile(t *testing.T) {
	t.Parallel()
	broken := shop(t)
	proto.SetExtension(broken.GetService()[0].GetMethod()[0].GetOptions(), dedupv1.E_Method, &dedupv1.MethodPolicy{ReplayHeaders: []string{"set-cookie"}})
	garbage := filepath.Join(t.TempDir(), "garbage")
	require.NoError(t, os.WriteFile(garbage, []byte("no proto"), 0o600))
	for _, c := range []struct {
		says string
		args []string
	}{
		{"build it with its imports", []string{descriptorSet(t, false, shop(t))}},
		{"set-cookie", []string{descriptorSet(t, true, broken)}},
		{"is no file descriptor set", []string{garbage}},
		{"read the file descriptor set", []string{garbage + ".none"}},
		{"there is no service Orders; name it in full", []string{descriptorSet(t, true, shop(t)), "--service", "Orders"}},
	} {
		_, stderr := exits(t, exitFailed, append([]string{"policy", "explain"}, c.args...)...)
		require.Contains(t, stderr, c.says)
	}
}
