package interceptors

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// The one NaN of each width.
const (
	canonicalNaN32 = 0x7fc00000
	canonicalNaN64 = 0x7ff8000000000000
)

var errBadUnknown = errors.New("the message holds unknown fields that are no protobuf wire format")

// canonicalWriter writes a message in the one wire form that fingerprint
// version 1 hashes. It writes from the end to the start: the length of a
// sub-message is then known when its prefix is due, so deep nesting costs no
// second pass and no copying.
type canonicalWriter struct {
	buf     []byte
	at      int  // buf[at:] is written
	unknown bool // unknown fields were met
	err     error
	fields  []known // of the messages being written, outermost first
}

func (w *canonicalWriter) bytes() []byte { return w.buf[w.at:] }

func (w *canonicalWriter) size() int { return len(w.buf) - w.at }

// room returns the n bytes right before what is written.
func (w *canonicalWriter) room(n int) []byte {
	if n > w.at {
		grown := make([]byte, 2*len(w.buf)+n+64)
		at := len(grown) - w.size()
		copy(grown[at:], w.buf[w.at:])
		w.buf, w.at = grown, at
	}
	w.at -= n
	return w.buf[w.at : w.at+n]
}

func (w *canonicalWriter) raw(b []byte)  { copy(w.room(len(b)), b) }
func (w *canonicalWriter) text(s string) { copy(w.room(len(s)), s) }
func (w *canonicalWriter) varint(v uint64) {
	protowire.AppendVarint(w.room(protowire.SizeVarint(v))[:0], v)
}

func (w *canonicalWriter) tag(n protowire.Number, t protowire.Type) {
	w.varint(protowire.EncodeTag(n, t))
}

// length writes the length of what was written since the size was mark.
func (w *canonicalWriter) length(mark int) { w.varint(uint64(w.size() - mark)) } //nolint:gosec // never negative

// known is a populated field.
type known struct {
	field protoreflect.FieldDescriptor
	value protoreflect.Value
}

// message writes what m holds in ascending order of field numbers; under one
// number a known field comes before unknown values.
func (w *canonicalWriter) message(m protoreflect.Message) {
	base := len(w.fields)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !ignored(fd) {
			w.fields = append(w.fields, known{fd, v})
		}
		return true
	})
	slices.SortFunc(w.fields[base:], func(a, b known) int { return cmp.Compare(a.field.Number(), b.field.Number()) })
	var unknown unknownFields
	if raw := m.GetUnknown(); len(raw) > 0 {
		w.unknown = true
		var err error
		if unknown, err = parseUnknown(raw); err != nil {
			w.err = err
			return
		}
	}
	last := len(unknown.spans) - 1
	for ; len(w.fields) > base; w.fields = w.fields[:len(w.fields)-1] {
		f := w.fields[len(w.fields)-1]
		for ; last >= 0 && unknown.spans[last].number >= f.field.Number(); last-- {
			w.raw(unknown.value(last))
		}
		switch {
		case f.field.IsList():
			w.list(f.field, f.value.List())
		case f.field.IsMap():
			w.entries(f.field, f.value.Map())
		default:
			w.single(f.field, f.value)
		}
	}
	for ; last >= 0; last-- {
		w.raw(unknown.value(last))
	}
}

// unknownFields are the values of fields that this build does not know, sorted
// by number and then by their bytes. The spans are small, because a hostile
// message may hold one for every two of its bytes.
type unknownFields struct {
	buf   []byte
	spans []span
}

type span struct {
	number     protowire.Number
	start, end uint32
}

func (u unknownFields) value(i int) []byte { return u.buf[u.spans[i].start:u.spans[i].end] }

// parseUnknown splits unknown fields into values, each with its tag, its length
// prefix and, for a varint, its value in their shortest form.
func parseUnknown(raw []byte) (unknownFields, error) {
	u := unknownFields{buf: make([]byte, 0, len(raw))}
	if uint64(len(raw)) > math.MaxUint32 {
		return unknownFields{}, errBadUnknown
	}
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return unknownFields{}, errBadUnknown
		}
		raw = raw[n:]
		n = protowire.ConsumeFieldValue(number, kind, raw)
		if n < 0 {
			return unknownFields{}, errBadUnknown
		}
		start := len(u.buf)
		u.buf = appendShortest(protowire.AppendTag(u.buf, number, kind), number, kind, raw[:n])
		raw = raw[n:]
		u.spans = append(u.spans, span{number, uint32(start), uint32(len(u.buf))}) //nolint:gosec // not longer than raw
	}
	slices.SortFunc(u.spans, func(a, b span) int {
		return cmp.Or(
			cmp.Compare(a.number, b.number),
			bytes.Compare(u.buf[a.start:a.end], u.buf[b.start:b.end]),
		)
	})
	return u, nil
}

// appendShortest appends a valid value, whose tag is written, to b.
func appendShortest(b []byte, number protowire.Number, kind protowire.Type, value []byte) []byte {
	switch kind {
	case protowire.VarintType:
		v, _ := protowire.ConsumeVarint(value)
		return protowire.AppendVarint(b, v)
	case protowire.BytesType:
		v, _ := protowire.ConsumeBytes(value)
		return protowire.AppendBytes(b, v)
	case protowire.StartGroupType:
		v, _ := protowire.ConsumeGroup(number, value)
		return protowire.AppendGroup(b, number, v)
	case protowire.Fixed32Type, protowire.Fixed64Type, protowire.EndGroupType:
	}
	return append(b, value...)
}

func (w *canonicalWriter) list(fd protoreflect.FieldDescriptor, list protoreflect.List) {
	packable := packable(fd.Kind())
	mark := w.size()
	for i := list.Len() - 1; i >= 0; i-- {
		if packable {
			w.scalar(fd.Kind(), list.Get(i))
		} else {
			w.single(fd, list.Get(i))
		}
	}
	if packable {
		w.length(mark)
		w.tag(fd.Number(), protowire.BytesType)
	}
}

// entries writes a map as its entries in ascending order of their keys, key and
// value always present.
func (w *canonicalWriter) entries(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, compareKeys(fd.MapKey().Kind()))
	for _, k := range slices.Backward(keys) {
		mark := w.size()
		w.single(fd.MapValue(), m.Get(k))
		w.single(fd.MapKey(), k.Value())
		w.length(mark)
		w.tag(fd.Number(), protowire.BytesType)
	}
}

func compareKeys(kind protoreflect.Kind) func(a, b protoreflect.MapKey) int {
	switch kind { //nolint:exhaustive // the kinds that a map key may have
	case protoreflect.BoolKind:
		return func(a, b protoreflect.MapKey) int {
			return cmp.Compare(protowire.EncodeBool(a.Bool()), protowire.EncodeBool(b.Bool()))
		}
	case protoreflect.StringKind:
		return func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) }
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return func(a, b protoreflect.MapKey) int { return cmp.Compare(a.Uint(), b.Uint()) }
	default:
		return func(a, b protoreflect.MapKey) int { return cmp.Compare(a.Int(), b.Int()) }
	}
}

// single writes one value with its tag.
func (w *canonicalWriter) single(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	mark := w.size()
	switch fd.Kind() { //nolint:exhaustive // the rest is scalar
	case protoreflect.MessageKind:
		w.message(v.Message())
		w.length(mark)
		w.tag(fd.Number(), protowire.BytesType)
	case protoreflect.GroupKind:
		w.tag(fd.Number(), protowire.EndGroupType)
		w.message(v.Message())
		w.tag(fd.Number(), protowire.StartGroupType)
	case protoreflect.StringKind:
		w.text(v.String())
		w.length(mark)
		w.tag(fd.Number(), protowire.BytesType)
	case protoreflect.BytesKind:
		w.raw(v.Bytes())
		w.length(mark)
		w.tag(fd.Number(), protowire.BytesType)
	default:
		w.tag(fd.Number(), w.scalar(fd.Kind(), v))
	}
}

// scalar writes a value without its tag and returns its wire type.
func (w *canonicalWriter) scalar(kind protoreflect.Kind, v protoreflect.Value) protowire.Type {
	switch kind { //nolint:exhaustive // single writes the kinds with a length
	case protoreflect.BoolKind:
		w.varint(protowire.EncodeBool(v.Bool()))
	case protoreflect.EnumKind:
		w.varint(uint64(v.Enum())) //nolint:gosec // sign-extended, as on the wire
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		w.varint(uint64(v.Int())) //nolint:gosec // sign-extended, as on the wire
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		w.varint(protowire.EncodeZigZag(v.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		w.varint(v.Uint())
	case protoreflect.Fixed32Kind:
		return w.fixed32(uint32(v.Uint())) //nolint:gosec // 32 bits by its kind
	case protoreflect.Sfixed32Kind:
		return w.fixed32(uint32(v.Int())) //nolint:gosec // 32 bits by its kind
	case protoreflect.Fixed64Kind:
		return w.fixed64(v.Uint())
	case protoreflect.Sfixed64Kind:
		return w.fixed64(uint64(v.Int())) //nolint:gosec // the same bits
	case protoreflect.FloatKind:
		if f := float32(v.Float()); f == f {
			return w.fixed32(math.Float32bits(f))
		}
		return w.fixed32(canonicalNaN32)
	case protoreflect.DoubleKind:
		if f := v.Float(); f == f {
			return w.fixed64(math.Float64bits(f))
		}
		return w.fixed64(canonicalNaN64)
	}
	return protowire.VarintType
}

func (w *canonicalWriter) fixed32(v uint32) protowire.Type {
	protowire.AppendFixed32(w.room(4)[:0], v)
	return protowire.Fixed32Type
}

func (w *canonicalWriter) fixed64(v uint64) protowire.Type {
	protowire.AppendFixed64(w.room(8)[:0], v)
	return protowire.Fixed64Type
}

func packable(kind protoreflect.Kind) bool {
	switch kind { //nolint:exhaustive // every other kind is packable
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return false
	default:
		return true
	}
}

// ignored reports whether a field is marked FINGERPRINT_RULE_IGNORE. It looks by
// number and not by Go type: a descriptor that was loaded at run time may hold
// the option as its own type, or unparsed.
func ignored(fd protoreflect.FieldDescriptor) bool {
	options := fd.Options()
	if options == nil || !options.ProtoReflect().IsValid() {
		return false
	}
	number := dedupv1.E_Fingerprint.TypeDescriptor().Number()
	rule := protoreflect.EnumNumber(dedupv1.FingerprintRule_FINGERPRINT_RULE_UNSPECIFIED)
	options.ProtoReflect().Range(func(option protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if option.Number() == number && option.Kind() == protoreflect.EnumKind && !option.IsList() {
			rule = v.Enum()
		}
		return true
	})
	for raw := options.ProtoReflect().GetUnknown(); len(raw) > 0; {
		n, kind, size := protowire.ConsumeField(raw)
		if size < 0 {
			break
		}
		if n == number && kind == protowire.VarintType {
			_, _, tag := protowire.ConsumeTag(raw)
			v, _ := protowire.ConsumeVarint(raw[tag:])
			rule = protoreflect.EnumNumber(int32(v)) //nolint:gosec // enums are 32 bits
		}
		raw = raw[size:]
	}
	return rule == dedupv1.FingerprintRule_FINGERPRINT_RULE_IGNORE.Number()
}
