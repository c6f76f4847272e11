package interceptors

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"pgregory.net/rapid"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

type keyVectors struct {
	Derived []struct {
		Name    string
		Parts   []string
		KeyHex  string `json:"key_hex"`
		Header  string
		Refused bool
	}
	Keys []struct {
		Name   string
		KeyHex string `json:"key_hex"`
		Header string
		Valid  bool
	}
}

func TestKeysOfTheVectors(t *testing.T) { // C06, C08, C12
	t.Parallel()
	var file keyVectors
	readVectors(t, "keys.json", &file)
	require.GreaterOrEqual(t, len(file.Derived), 20)
	require.GreaterOrEqual(t, len(file.Keys), 15)
	for _, v := range file.Derived {
		t.Run("derived from "+v.Name, func(t *testing.T) {
			t.Parallel()
			key, err := Key(v.Parts...)
			if v.Refused {
				requireRefusal(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
				require.Empty(t, key)
				return
			}
			require.NoError(t, err)
			require.Equal(t, v.KeyHex, hex.EncodeToString([]byte(key)))
			requireTravels(t, key, v.Header)
		})
	}
	for _, v := range file.Keys {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			key, err := hex.DecodeString(v.KeyHex)
			require.NoError(t, err)
			if !v.Valid {
				requireRefusal(t, validateKey(string(key)), codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
				return
			}
			requireTravels(t, string(key), v.Header)
		})
	}
}

// requireTravels checks that a key is valid and arrives by the header named.
func requireTravels(tb testing.TB, key, header string) {
	tb.Helper()
	require.NoError(tb, validateKey(key))
	md, ok := metadata.FromOutgoingContext(setOutgoingKey(tb.Context(), key))
	require.True(tb, ok)
	require.Equal(tb, metadata.MD{header: {key}}, md)
	got, ok, err := incomingKey(md)
	require.NoError(tb, err)
	require.True(tb, ok)
	require.Equal(tb, key, got)
}

func TestKeysOfDifferentFactsDiffer(t *testing.T) { // C10, C12
	t.Parallel()
	alphabet := rapid.SliceOfN(rapid.SampledFrom([]string{"a", ":", "%", "3", "A", "2", "5", "sha256", "ck1", "é"}), 1, 6)
	facts := rapid.SliceOfN(rapid.Map(alphabet, func(s []string) string { return strings.Join(s, "") }), 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		a, b := facts.Draw(t, "a"), facts.Draw(t, "b")
		keyA, err := Key(a...)
		require.NoError(t, err)
		keyB, err := Key(b...)
		require.NoError(t, err)
		require.Equal(t, strings.Join(a, "\x00") == strings.Join(b, "\x00"), keyA == keyB)
		again, err := Key(a...)
		require.NoError(t, err)
		require.Equal(t, keyA, again)
	})
}

func TestKeyOfAnyFactsIsValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key, err := Key(rapid.SliceOf(rapid.String()).Draw(t, "parts")...)
		if err == nil {
			require.NoError(t, validateKey(key))
			require.LessOrEqual(t, len(key), MaxKey)
		}
	})
}

func TestRefusedKeysNameLimitAndLengthAndNeverTheKey(t *testing.T) { // C06
	t.Parallel()
	secret := strings.Repeat("secret", 50)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"empty":      {validateKey(""), "key is 0 bytes, 1 to 255 are allowed"},
		"too long":   {validateKey(secret), "key is 300 bytes, 1 to 255 are allowed"},
		"white ends": {validateKey(" secret"), "key starts or ends with white space; it is refused, not trimmed"},
		"a part":     {second(Key("secret", "")), "part 2 of 2 of the key is empty"},
		"an end":     {second(Key("secret ")), "part 1 of 1 of the key starts or ends with white space; it is refused, not trimmed"},
		"no parts":   {second(Key()), "a key needs at least one part"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireRefusal(t, tt.err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
			require.ErrorContains(t, tt.err, tt.want)
			require.NotContains(t, tt.err.Error(), "secret")
			require.Equal(t, HeaderKey, fieldOf(t, tt.err))
		})
	}
}

func second(_ string, err error) error { return err }

func TestFreshKeysAreUUIDsOfVersion7(t *testing.T) { // C12
	t.Parallel()
	now := time.UnixMilli(1795900000123)
	seen := map[string]bool{}
	for range 1000 {
		key := keying.Fresh(now)
		require.NoError(t, validateKey(key))
		require.False(t, seen[key])
		seen[key] = true
		id, err := uuid.Parse(key)
		require.NoError(t, err)
		require.Equal(t, key, id.String())
		require.EqualValues(t, 7, id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
		sec, nsec := id.Time().UnixTime()
		require.Equal(t, now, time.Unix(sec, nsec))
	}
	require.Less(t, keying.Fresh(now), keying.Fresh(now.Add(time.Millisecond)))
}

func FuzzIncomingKey(f *testing.F) {
	f.Add("order-4471", "", true, false)
	f.Add("", "\x00\xff", false, true)
	f.Add("a", "a", true, true)
	f.Add("a", "b", true, true)
	f.Add(" ", "ключ", true, true)
	f.Add(strings.Repeat("k", 256), "", true, true)
	f.Fuzz(func(t *testing.T, text, binary string, hasText, hasBinary bool) {
		md := metadata.MD{}
		if hasText {
			md.Append(HeaderKey, text)
		}
		if hasBinary {
			md.Append(HeaderKeyBin, binary)
		}
		key, ok, err := incomingKey(md)
		if err != nil {
			requireRefusal(t, err, codes.InvalidArgument, dedupv1.Reason_REASON_KEY_INVALID)
			require.False(t, ok)
			return
		}
		require.Equal(t, hasText || hasBinary, ok)
		if ok {
			require.NoError(t, validateKey(key))
			md, _ := metadata.FromOutgoingContext(setOutgoingKey(t.Context(), key))
			again, ok, err := incomingKey(md)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, key, again)
		}
	})
}
