package nethttp

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeysInQuotesAndBareNameTheSame(t *testing.T) { // C02
	t.Parallel()
	long := strings.Repeat("k", 255)
	for value, want := range map[string]string{
		`"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`8e03978e-40d5-43dd-bc93-6894a57f9324`:   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`  "a"	`:                                 "a",
		`"a b"`:                                  "a b",
		`"a\"b\\c"`:                              `a"b\c`,
		`"a";v=1`:                                "a",
		`"a"; v="x;y";*w`:                        "a",
		`a"b\c`:                                  `a"b\c`,
		`"` + long + `"`:                         long,
		long:                                     long,
	} {
		key, ok, err := headerKey(http.Header{HeaderKey: {value}}, false)
		require.NoError(t, err, value)
		require.True(t, ok)
		require.Equal(t, want, key, value)
		require.Equal(t, want, must(t, quoted(want)), "what is written is read again")
	}
}

func must(t *testing.T, value string) string {
	t.Helper()
	key, err := parseKey(value, true)
	require.NoError(t, err, value)
	return key
}

func TestMalformedKeysAreRefusedAndNeverTrimmed(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{
		{""},
		{`""`},
		{`"a`},
		{`"a\n"`},
		{`"a\"`},
		{"\"a\x7f\""},
		{`"é"`},
		{"é"},
		{"a b"},
		{`" a"`},
		{`"a "`},
		{`"a" b`},
		{`"a";`},
		{`"a";V=1`},
		{`"a";v=`},
		{`"a";v="x`},
		{`"a", "b"`},
		{`"a";v=a,b`},
		{strings.Repeat("k", 256)},
		{`"` + strings.Repeat("k", 256) + `"`},
		{"a", "b"},
		{"a", ""},
	} {
		key, ok, err := headerKey(http.Header{HeaderKey: values}, false)
		require.Error(t, err, values)
		require.False(t, ok)
		require.Empty(t, key)
	}
	_, ok, err := headerKey(http.Header{}, true)
	require.NoError(t, err)
	require.False(t, ok)
}

func TestTheSameKeyTwiceIsOneKeyUnlessStrict(t *testing.T) {
	t.Parallel()
	twice := http.Header{HeaderKey: {`"a"`, "a"}}
	key, ok, err := headerKey(twice, false)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "a", key)
	for _, h := range []http.Header{{HeaderKey: {`"a"`, `"a"`}}, {HeaderKey: {"a"}}} {
		_, _, err = headerKey(h, true)
		require.Error(t, err)
	}
}

func FuzzKey(f *testing.F) {
	for _, seed := range []string{`"a"`, "a", `"a\"";v="\\"`, `"`, ``, "\x00"} {
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, value string, strict bool) {
		key, err := parseKey(value, strict)
		if err != nil {
			return
		}
		require.True(t, printable(key))
		require.Equal(t, key, must(t, quoted(key)))
	})
}
