package storage

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A key's limits are judged on raw input, and named with what was given.
func TestIdentityLimits(t *testing.T) {
	t.Parallel()
	field := func(change func(*Identity)) Identity {
		id := identity
		change(&id)
		return id
	}
	namespace := func(s string) Identity { return field(func(id *Identity) { id.Namespace = s }) }
	operation := func(s string) Identity { return field(func(id *Identity) { id.Operation = s }) }
	caller := func(s string) Identity { return field(func(id *Identity) { id.Caller = s }) }
	key := func(s string) Identity { return field(func(id *Identity) { id.Key = s }) }
	long := func(n int) string { return strings.Repeat("a", n) }

	for name, c := range map[string]struct {
		id    Identity
		field string // at fault; empty: valid
		says  string
	}{
		"namespace of 0":                     {namespace(""), "identity.namespace", "namespace is 0 bytes, 1 to 63 are allowed"},
		"namespace of 1":                     {namespace("a"), "", ""},
		"namespace of 62":                    {namespace(long(62)), "", ""},
		"namespace of 63":                    {namespace(long(63)), "", ""},
		"namespace of 64":                    {namespace(long(64)), "identity.namespace", "namespace is 64 bytes, 1 to 63 are allowed"},
		"namespace with all it may hold":     {namespace("0a.b_c-9"), "", ""},
		"namespace that starts with a dot":   {namespace(".a"), "identity.namespace", "starts with"},
		"namespace that starts with -":       {namespace("-a"), "identity.namespace", "starts with"},
		"namespace in upper case":            {namespace("Pay"), "identity.namespace", "a-z 0-9"},
		"namespace with a slash":             {namespace("a/b"), "identity.namespace", "a-z 0-9"},
		"namespace with a letter like a":     {namespace("pаy"), "identity.namespace", "a-z 0-9"},
		"namespace with a line end":          {namespace("pay\n"), "identity.namespace", "a-z 0-9"},
		"operation of 0":                     {operation(""), "identity.operation", "operation is 0 bytes, 1 to 255 are allowed"},
		"operation of 1":                     {operation("x"), "", ""},
		"operation of 254":                   {operation(long(254)), "", ""},
		"operation of 255":                   {operation(long(255)), "", ""},
		"operation of 256":                   {operation(long(256)), "identity.operation", "operation is 256 bytes, 1 to 255 are allowed"},
		"operation of 255 bytes in 85 signs": {operation(strings.Repeat("€", 85)), "", ""},
		"operation with a space":             {operation("POST /orders"), "", ""},
		"operation with a tab":               {operation("a\tb"), "identity.operation", "cannot be printed"},
		"operation with NUL":                 {operation("a\x00"), "identity.operation", "cannot be printed"},
		"operation with a hidden mark":       {operation("a\u200b"), "identity.operation", "cannot be printed"},
		"operation not in UTF-8":             {operation("a\xff"), "identity.operation", "not valid UTF-8"},
		"caller of 0":                        {caller(""), "", ""},
		"caller of 254":                      {caller(long(254)), "", ""},
		"caller of 255 of any bytes":         {caller(strings.Repeat("\xff", 255)), "", ""},
		"caller of 256":                      {caller(long(256)), "identity.caller", "caller is 256 bytes, at most 255 are allowed"},
		"caller of white space":              {caller(" "), "", ""},
		"key of 0":                           {key(""), "identity.key", "key is 0 bytes, 1 to 255 are allowed"},
		"key of 1":                           {key("k"), "", ""},
		"key of 254":                         {key(long(254)), "", ""},
		"key of 255":                         {key(long(255)), "", ""},
		"key of 256":                         {key(long(256)), "identity.key", "key is 256 bytes, 1 to 255 are allowed"},
		"key of any bytes":                   {key("\x00\xff\xfe"), "", ""},
		"key of bytes that are no space":     {key("\x85\xa0"), "", ""},
		"key with a space inside":            {key("a b"), "", ""},
		"key of white space":                 {key(" \t "), "identity.key", "white space"},
		"key with a leading space":           {key(" a"), "identity.key", "white space"},
		"key with a trailing space":          {key("a "), "identity.key", "white space"},
		"key with a trailing line end":       {key("a\r\n"), "identity.key", "white space"},
		"key with a leading form feed":       {key("\fa"), "identity.key", "white space"},
		"key with a trailing U+0085":         {key("a\u0085"), "identity.key", "white space"},
		"key with a leading U+00A0":          {key("\u00a0a"), "identity.key", "white space"},
		"key with a trailing U+2003":         {key("a\u2003"), "identity.key", "white space"},
		"key with a leading U+2028":          {key("\u2028a"), "identity.key", "white space"},
		"key with a trailing U+3000":         {key("a\u3000"), "identity.key", "white space"},
		"key with a hidden U+200B":           {key("\u200ba"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.id.Validate()
			if c.field == "" {
				require.NoError(t, err)
				return
			}
			var invalid *InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, c.field, invalid.Field)
			require.Contains(t, invalid.Error(), c.says)
			require.Equal(t, c.field == "identity.key", invalid.Key)
		})
	}
}

// C10: no two identities share a record, wherever their parts are cut.
func FuzzIdentity(f *testing.F) {
	for _, s := range [][8]string{
		{"pay", "op", "a_b", "c", "pay", "op", "a", "b_c"},
		{"pay", "op", "a/b", "c", "pay", "op", "a", "b/c"},
		{"pay", "op", "a\x00b", "c", "pay", "op", "a", "b\x00c"},
		{"pay", "op", "", "k", "pay", "op", "k", ""},
		{"pay", "opa", "b", "k", "pay", "op", "ab", "k"},
		{"pay", "op", "\x00\x00\x00\x01", "k", "pay", "op", "", "\x00\x00\x00\x01k"},
		{"pay", "op", "c", "\xff\xfe", "pay", "op", "c", "\xff\xfe"},
		{"Pay", "op", "c", " k", ".a", "o\n", "c", "k "},
	} {
		f.Add(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7])
	}
	f.Fuzz(func(t *testing.T, n1, o1, c1, k1, n2, o2, c2, k2 string) {
		one, two := Identity{n1, o1, c1, k1}, Identity{n2, o2, c2, k2}
		errOne, errTwo := one.Validate(), two.Validate()
		if errOne != nil || errTwo != nil {
			return
		}
		require.Equal(t, one.RecordID(), Identity{n1, o1, c1, k1}.RecordID())
		require.Equal(t, one == two, one.RecordID() == two.RecordID())
		require.NotEmpty(t, strings.TrimSpace(k1))
		require.Len(t, one.RecordID().String(), 64)
		require.Equal(t, one.RecordID().String()[:12], one.RecordID().Short())
	})
}
