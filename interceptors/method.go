package interceptors

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/policy"
)

const maxNamespace = 63

// Method is one method's policy beyond its proto option. Zero fields leave what
// the option, or the server's default, says.
type Method struct {
	// Policy overrides the proto option (dedup.v1.method), field by field.
	Policy *dedupv1.MethodPolicy
	// Replace takes Policy, or the defaults where it is nil, in place of the proto
	// option, of which no field is then looked at: to switch off what it switches
	// on.
	Replace bool
	// MaxRun ends the handler's context; zero: the server's WithMaxRun.
	MaxRun time.Duration
	// Wait is how long a repeat waits for a run that is going on; zero: the
	// server's WithWait.
	Wait time.Duration
	// RefuseAtOnce answers such a repeat with IN_PROGRESS without waiting.
	RefuseAtOnce bool
	// Errors says what the handler's status codes mean; nil: policy.Default, and
	// what Policy.errors makes of it.
	Errors *policy.Table
}

// method is what the server knows of one method.
type method struct {
	fullName  string
	keys      dedupv1.KeyRule // never unspecified
	operation string
	rerunSafe bool
	shared    bool // another method of the operation reruns or reconciles
	streaming bool

	failOpen      bool
	callerCancels bool

	lease, maxRun, wait, retention time.Duration
	refuseAtOnce                   bool

	allow     allowList
	errors    policy.Table
	reconcile ReconcileFunc
	inbox     guard.Reconciler // the ready one; at most one of the two is set
	basis     dedupv1.Basis
}

// optionOf reads a method's proto option and idempotency level.
func optionOf(d protoreflect.MethodDescriptor) (*dedupv1.MethodPolicy, descriptorpb.MethodOptions_IdempotencyLevel) {
	opts, ok := d.Options().(*descriptorpb.MethodOptions)
	if !ok || opts == nil {
		return nil, descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
	}
	p, _ := proto.GetExtension(opts, dedupv1.E_Method).(*dedupv1.MethodPolicy)
	return p, opts.GetIdempotencyLevel()
}

// fullName is how gRPC names a method.
func fullName(d protoreflect.MethodDescriptor) string {
	return "/" + string(d.Parent().FullName()) + "/" + string(d.Name())
}

// findMethod finds a method among the linked proto files; nil if it is not.
func findMethod(fullMethod string) protoreflect.MethodDescriptor {
	name := strings.Replace(strings.TrimPrefix(fullMethod, "/"), "/", ".", 1)
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil
	}
	return m
}

// linkedMethods are the methods of all linked proto files.
func linkedMethods() iter.Seq[protoreflect.MethodDescriptor] {
	return func(yield func(protoreflect.MethodDescriptor) bool) {
		protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
			for i := range f.Services().Len() {
				methods := f.Services().Get(i).Methods()
				for j := range methods.Len() {
					if !yield(methods.Get(j)) {
						return false
					}
				}
			}
			return true
		})
	}
}

// infrastructure are services whose calls never carry keys.
func infrastructure(fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.") || strings.HasPrefix(fullMethod, "/grpc.reflection.")
}

// methods makes the policies of all methods of the linked proto files, and of
// those that options name.
func (c *serverConfig) methods() (map[string]*method, error) {
	all := map[string]*method{}
	var faults []error
	for d := range linkedMethods() {
		m, err := c.method(fullName(d), d)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all[m.fullName] = m
	}
	named := map[string]bool{}
	for name := range c.overrides {
		named[name] = true
	}
	for name := range c.reconcilers {
		named[name] = true
	}
	for name := range named {
		if _, ok := all[name]; ok || findMethod(name) != nil {
			continue
		}
		m, err := c.method(name, nil)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all[name] = m
	}
	for _, m := range all {
		if m.keys == dedupv1.KeyRule_KEY_RULE_OBSERVE && len(c.shadow) > maxNamespace {
			faults = append(faults, fmt.Errorf("%s is observed, but the shadow namespace %q is longer than %d bytes: name another, WithShadowNamespace", m.fullName, c.shadow, maxNamespace))
		}
	}
	markShared(all)
	return all, errors.Join(faults...)
}

// markShared finds the operations in which a later run may answer differently.
func markShared(all map[string]*method) {
	again, inboxes := map[string]int{}, map[string]int{}
	for _, m := range all {
		if m.runsAgain() {
			again[m.operation]++
		}
		if m.protects() && m.inbox != nil {
			inboxes[m.operation]++
		}
	}
	for _, m := range all {
		others := again[m.operation]
		switch {
		case m.inbox != nil: // one inbox gives them all the same answer
			others -= inboxes[m.operation]
		case m.runsAgain():
			others--
		}
		m.shared = others > 0
	}
}

func (m *method) reconciles() bool { return m.reconcile != nil || m.inbox != nil }

// protects reports whether keyed calls are deduplicated.
func (m *method) protects() bool {
	return m.keys == dedupv1.KeyRule_KEY_RULE_OPTIONAL || m.keys == dedupv1.KeyRule_KEY_RULE_REQUIRED
}

func (m *method) runsAgain() bool {
	return m.protects() && (m.rerunSafe || m.reconciles())
}

// method makes one policy: the proto option, overridden by Go options.
func (c *serverConfig) method(name string, d protoreflect.MethodDescriptor) (*method, error) {
	p := &dedupv1.MethodPolicy{}
	level := descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
	m := &method{fullName: name, operation: name}
	if d != nil {
		var option *dedupv1.MethodPolicy
		option, level = optionOf(d)
		if !c.overrides[name].Replace {
			proto.Merge(p, option)
		}
		m.streaming = d.IsStreamingClient() || d.IsStreamingServer()
	}
	o := c.overrides[name]
	override(p, o.Policy)
	m.keys = p.GetKeys()
	if m.keys == dedupv1.KeyRule_KEY_RULE_UNSPECIFIED {
		m.keys = dedupv1.KeyRule_KEY_RULE_OPTIONAL
		if level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS || infrastructure(name) {
			m.keys = dedupv1.KeyRule_KEY_RULE_OFF
		}
	}
	if p.GetOperation() != "" {
		m.operation = p.GetOperation()
	}
	m.rerunSafe, m.failOpen, m.callerCancels = p.GetRerunSafe(), p.GetFailOpen(), p.GetCallerCancels()
	m.lease = cmp.Or(p.GetLease().AsDuration(), c.lease)
	m.maxRun = cmp.Or(o.MaxRun, c.maxRun)
	m.wait = cmp.Or(o.Wait, c.wait)
	m.refuseAtOnce = o.RefuseAtOnce
	m.retention = p.GetRetention().AsDuration()
	m.errors = policy.Default()
	if o.Errors != nil {
		m.errors = *o.Errors
	}
	if m.errors == (policy.Table{}) {
		return nil, fmt.Errorf("method %s: %w", name, errEmptyTable)
	}
	if p.GetErrors() == dedupv1.ErrorRule_ERROR_RULE_UNKNOWN {
		m.errors = m.errors.ErrorsUnknown()
	}
	if r, ok := c.reconcilers[name]; ok {
		m.reconcile, m.inbox, m.basis = r.fn, r.inbox, r.basis
	}
	var err error
	m.allow, err = newAllowList(p.GetReplayHeaders(), p.GetReplayTrailers())
	if err == nil {
		err = m.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("method %s: %w", name, err)
	}
	return m, nil
}

// override writes the set fields of o over p; lists replace lists.
func override(p, o *dedupv1.MethodPolicy) {
	if len(o.GetReplayHeaders()) > 0 {
		p.ReplayHeaders = nil
	}
	if len(o.GetReplayTrailers()) > 0 {
		p.ReplayTrailers = nil
	}
	if o.GetLease() != nil {
		p.Lease = nil
	}
	if o.GetRetention() != nil {
		p.Retention = nil
	}
	proto.Merge(p, o)
}

func (m *method) validate() error {
	if _, known := dedupv1.KeyRule_name[int32(m.keys)]; !known {
		return fmt.Errorf("the key rule %d is of a later version, update the interceptors", m.keys)
	}
	switch {
	case m.streaming && m.keys == dedupv1.KeyRule_KEY_RULE_REQUIRED:
		return errors.New("a streaming method cannot require a key: streams are never deduplicated, make it unary or drop the rule")
	case m.lease == 0 || m.maxRun <= 0 || m.wait < 0:
		return errors.New("a lease and a run take more than no time, and a wait is not negative")
	case m.reconciles() && m.keys == dedupv1.KeyRule_KEY_RULE_OFF:
		return errors.New("it ignores keys, so its reconciler would never be asked; turn keys on or drop the reconciler")
	case m.reconciles() && m.streaming:
		return errors.New("a streaming method is never deduplicated, drop its reconciler")
	}
	return guard.CheckLimits(m.operation, m.lease, m.retention)
}
