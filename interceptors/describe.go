package interceptors

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// Description is what one method gets from both interceptors by its proto file
// alone. Go options, such as reconcilers, are not in it.
type Description struct {
	// Method is its full name, "/package.Service/Method".
	Method string `json:"method"`
	// Mode is "required", "optional", "observe", "off", or "stream": streams are
	// never deduplicated nor sent again.
	Mode string `json:"mode"`
	// Operation names its records.
	Operation string `json:"operation,omitempty"`
	// Key says where the key comes from.
	Key string `json:"key"`
	// Attempts is how often our client sends a call in all; Keyless is the same
	// for a call without a key.
	Attempts int `json:"attempts"`
	Keyless  int `json:"attempts_without_key"`
	// Retried are the codes worth another attempt; none where there is one only.
	Retried []string `json:"retried_codes,omitempty"`
	// Waits says in words how long it waits in between.
	Waits string `json:"waits,omitempty"`
	// Unknown says what a repeat gets when nobody knows what an earlier run did.
	Unknown string `json:"unknown_outcome,omitempty"`
	// FailOpen: without dedupd it runs unprotected.
	FailOpen bool `json:"fail_open,omitempty"`
	// Warning says why a method that seems to create something has no protection;
	// empty if it has, or seems to create nothing.
	Warning string `json:"warning,omitempty"`
}

// Describe tells what a method gets. It returns the same faults as ServerOptions
// does for the method.
func Describe(d protoreflect.MethodDescriptor) (Description, error) {
	c := &serverConfig{lease: guard.DefaultLease, maxRun: guard.DefaultMaxRun, wait: guard.DefaultWait}
	m, err := c.method(fullName(d), d)
	if err != nil {
		return Description{}, err
	}
	option, level := optionOf(d)
	out := Description{
		Method: m.fullName, Mode: m.mode(), Attempts: 1, Keyless: 1, FailOpen: m.failOpen && m.protects(),
	}
	out.Key, out.Warning = m.keySource(level, option.GetKeyFields())
	declared := level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS || level == descriptorpb.MethodOptions_IDEMPOTENT
	if !m.streaming {
		if m.protects() {
			out.Operation, out.Attempts, out.Unknown = m.operation, DefaultMaxAttempts, m.onUnknown()
		}
		if declared {
			out.Attempts, out.Keyless = DefaultMaxAttempts, DefaultMaxAttempts
		} else if m.keys == dedupv1.KeyRule_KEY_RULE_REQUIRED {
			out.Keyless = 0
		}
	}
	if out.Attempts > 1 {
		out.Retried, out.Waits = retriedCodes(), policy.DefaultBackoff().String()
	}
	if !seemsToCreate(string(d.Name())) || declared {
		out.Warning = ""
	}
	return out, nil
}

func (m *method) mode() string {
	if m.streaming {
		return "stream"
	}
	return strings.ToLower(strings.TrimPrefix(m.keys.String(), "KEY_RULE_"))
}

func (m *method) onUnknown() string {
	if m.rerunSafe {
		return "run again"
	}
	return "refused, unless a reconciler is registered"
}

// keySource says where the method's keys come from, and what is missing if it
// should create something.
func (m *method) keySource(level descriptorpb.MethodOptions_IdempotencyLevel, fields []string) (source, missing string) {
	switch {
	case m.streaming:
		return "none", "a stream is never deduplicated: make it unary, or make its messages harmless to repeat"
	case m.protects() && len(fields) > 0:
		return "the caller's (WithKey), else derived from " + strings.Join(fields, ", "), ""
	case m.keys == dedupv1.KeyRule_KEY_RULE_REQUIRED:
		return "the caller's (WithKey), else a fresh one for each call", ""
	case m.keys == dedupv1.KeyRule_KEY_RULE_OPTIONAL:
		return "the caller's (WithKey), if it gives one", "a call without a key runs unprotected: keys: KEY_RULE_REQUIRED"
	case m.keys == dedupv1.KeyRule_KEY_RULE_OBSERVE:
		return "the caller's (WithKey), only to be counted", "it is only observed, a repeat runs again"
	case level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
		return "none needed", ""
	}
	return "none", "keys are ignored, a repeat runs again: keys: KEY_RULE_REQUIRED"
}

func retriedCodes() []string {
	var out []string
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if policy.Default().Row(c).Retry == policy.Transient {
			out = append(out, c.String())
		}
	}
	return out
}

// seemsToCreate guesses by a method's first word whether a second call would do
// a second thing.
func seemsToCreate(name string) bool {
	word := name
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			word = name[:i]
			break
		}
	}
	switch strings.ToLower(word) {
	case "add", "append", "book", "buy", "capture", "charge", "create", "credit", "debit", "deposit", "enqueue",
		"grant", "import", "insert", "invite", "issue", "launch", "make", "move", "new", "open", "order", "pay", "place",
		"post", "publish", "purchase", "redeem", "refund", "register", "request", "send", "start", "submit",
		"transfer", "upload", "withdraw":
		return true
	}
	return false
}
