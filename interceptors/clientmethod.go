package interceptors

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// idempotency is how far a method may be sent again without a key.
type idempotency uint8

const (
	unsafe     idempotency = iota
	idempotent             // again, but it has effects
	readOnly
)

// clientMethod is what the client knows of a method.
type clientMethod struct {
	operation    string
	level        idempotency
	deduplicated bool     // calls without a key get a fresh one
	declared     bool     // its server is said to look at keys
	keyless      bool     // its server is said not to
	bare         bool     // a key protects no call of it: its server runs every one
	keyFields    []string // a key is derived from them
	guarded      *guarded // nil: the server keeps the record
	parked       bool     // a call that is given up becomes a dead letter
	plain        bool     // a call without a key of its own is sent once and goes without
}

// maxMethods bounds what is remembered of methods: a proxy may be sent any name.
const maxMethods = 10_000

// methods remembers the policies of the methods that were called, by full name.
type methods struct {
	mu    sync.RWMutex
	known map[string]*clientMethod
}

// policyOf returns what the client knows of a method.
func (c *client) policyOf(fullMethod string) *clientMethod {
	c.methods.mu.RLock()
	m := c.methods.known[fullMethod]
	c.methods.mu.RUnlock()
	if m != nil {
		return m
	}
	m = c.newPolicy(fullMethod)
	c.methods.mu.Lock()
	defer c.methods.mu.Unlock()
	if c.methods.known == nil {
		c.methods.known = map[string]*clientMethod{}
	}
	if len(c.methods.known) < maxMethods {
		c.methods.known[strings.Clone(fullMethod)] = m
	}
	return m
}

func (c *clientConfig) newPolicy(fullMethod string) *clientMethod {
	d := findMethod(fullMethod)
	m := &clientMethod{operation: fullMethod, keyFields: c.keyFieldsOf(fullMethod, d)}
	if d != nil {
		option, level := optionOf(d)
		m.operation = cmp.Or(option.GetOperation(), fullMethod)
		m.deduplicated = option.GetKeys() == dedupv1.KeyRule_KEY_RULE_REQUIRED
		m.declared = m.deduplicated || option.GetKeys() == dedupv1.KeyRule_KEY_RULE_OPTIONAL
		m.keyless = option.GetKeys() == dedupv1.KeyRule_KEY_RULE_OFF || infrastructure(fullMethod)
		m.bare = m.keyless || option.GetKeys() == dedupv1.KeyRule_KEY_RULE_OBSERVE
		switch level {
		case descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
			m.level = readOnly
		case descriptorpb.MethodOptions_IDEMPOTENT:
			m.level = idempotent
		case descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN:
		}
	}
	if c.safeMethods[fullMethod] && m.level == unsafe {
		m.level = idempotent
	}
	m.deduplicated = m.deduplicated || c.dedupMethods[fullMethod]
	if c.dedupMethods[fullMethod] || len(c.keyFields[fullMethod]) > 0 {
		m.bare = false // who writes the client knows its server better
	}
	if g := c.guarded[fullMethod]; g != nil {
		// Whatever its server says of keys, they are ours to look at.
		m.guarded, m.deduplicated, m.keyless, m.bare = g, true, false, false
		m.operation = cmp.Or(g.Operation, fullMethod)
	}
	m.declared = m.declared || m.deduplicated || len(m.keyFields) > 0
	m.parked = c.parkedMethods[fullMethod]
	m.plain = m.level == unsafe && !m.deduplicated && len(m.keyFields) == 0
	return m
}

// checkKeyFields looks at every method of the linked proto files, so that a
// mistyped field stops the start and not the first call.
func (c *clientConfig) checkKeyFields() error {
	var faults []error
	for d := range linkedMethods() {
		name := fullName(d)
		if err := checkKeyFields(d.Input(), c.keyFieldsOf(name, d)); err != nil {
			faults = append(faults, fmt.Errorf("method %s: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

// keyFieldsOf returns the fields that a method's keys are derived from; none
// where they are not.
func (c *clientConfig) keyFieldsOf(fullMethod string, d protoreflect.MethodDescriptor) []string {
	if fields, ok := c.keyFields[fullMethod]; ok || d == nil {
		return fields
	}
	option, _ := optionOf(d)
	return option.GetKeyFields()
}
