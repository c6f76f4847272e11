package interceptors

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

// deriveKey makes a call's key from the fields of its request that the method's
// policy names, in that order.
func deriveKey(fields []string, req any) (string, error) {
	m, ok := req.(proto.Message)
	if !ok {
		return "", keyFieldsInvalid(errors.New("the request is no protobuf message, so no key can be derived; give one by WithKey"))
	}
	parts := make([]string, len(fields))
	for i, name := range fields {
		value, err := keyFieldValue(m.ProtoReflect(), name)
		if err != nil {
			return "", err
		}
		parts[i] = name + "=" + value
	}
	return Key(parts...)
}

// keyFieldValue returns the text of the named field. It is never left out: every
// request that misses it would share one key.
func keyFieldValue(m protoreflect.Message, name string) (string, error) {
	path, err := keyFieldPath(m.Descriptor(), name)
	if err != nil {
		return "", keyFieldsInvalid(err)
	}
	for _, fd := range path[:len(path)-1] {
		m = m.Get(fd).Message()
	}
	fd := path[len(path)-1]
	missing := keyInvalid("the key is derived from the field " + name + ", which is not set; set it, or give a key by WithKey")
	if fd.HasPresence() && !m.Has(fd) || !m.IsValid() {
		return "", missing
	}
	text := keyFieldText(fd.Kind(), m.Get(fd))
	if text == "" {
		return "", missing
	}
	if keying.SpaceAtEnd(text) {
		return "", keyInvalid("the key is derived from the field " + name + ", which starts or ends with white space; it is refused, not trimmed")
	}
	return text, nil
}

func keyFieldText(kind protoreflect.Kind, v protoreflect.Value) string {
	switch kind { //nolint:exhaustive // keyFieldPath refuses the others; the rest is printed in decimal
	case protoreflect.StringKind:
		return v.String()
	case protoreflect.BytesKind:
		return hex.EncodeToString(v.Bytes())
	case protoreflect.BoolKind:
		return strconv.FormatBool(v.Bool())
	case protoreflect.EnumKind:
		return strconv.FormatInt(int64(v.Enum()), 10)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return strconv.FormatUint(v.Uint(), 10)
	default:
		return strconv.FormatInt(v.Int(), 10)
	}
}

// keyFieldPath finds the field that name, with dots into sub-messages, means.
func keyFieldPath(d protoreflect.MessageDescriptor, name string) ([]protoreflect.FieldDescriptor, error) {
	var path []protoreflect.FieldDescriptor
	steps := strings.Split(name, ".")
	for i, step := range steps {
		fd := d.Fields().ByName(protoreflect.Name(step))
		if fd == nil {
			return nil, fmt.Errorf("key field %q: %s has no field %q", name, d.FullName(), step)
		}
		path = append(path, fd)
		single := !fd.IsList() && !fd.IsMap()
		if i < len(steps)-1 {
			if !single || fd.Message() == nil {
				return nil, fmt.Errorf("key field %q: %q is no single message", name, step)
			}
			d = fd.Message()
			continue
		}
		switch kind := fd.Kind(); {
		case !single, fd.Message() != nil, kind == protoreflect.FloatKind, kind == protoreflect.DoubleKind:
			return nil, fmt.Errorf("key field %q: a key is made of strings, bytes, integers, booleans and enums; name fields inside it, or another", name)
		}
	}
	return path, nil
}

// checkKeyFields reports the first of the fields that d has not, or that no key
// can be made of.
func checkKeyFields(d protoreflect.MessageDescriptor, fields []string) error {
	for _, name := range fields {
		if _, err := keyFieldPath(d, name); err != nil {
			return err
		}
	}
	return nil
}

func keyFieldsInvalid(err error) error {
	return refusal{reason: dedupv1.Reason_REASON_INPUT_INVALID, message: err.Error(), field: "key_fields"}.err()
}
