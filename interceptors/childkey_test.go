package interceptors

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dedupd/dedupd/interceptors/internal/keying"
)

type childKeyVectors struct {
	Calls []struct {
		Name, Record, Method, Fingerprint, Key string
		Earlier                                uint64
	}
	Steps []struct{ Name, Record, Step, Key string }
}

func TestChildKeysOfTheVectors(t *testing.T) { // C12
	t.Parallel()
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	var file childKeyVectors
	readVectors(t, "childkeys.json", &file)
	require.Len(t, file.Calls, 6)
	require.Len(t, file.Steps, 5)
	all := map[string]bool{}
	for _, v := range file.Calls {
		require.Equal(t, v.Key, keying.Child(unhex(v.Record), v.Method, unhex(v.Fingerprint), v.Earlier), v.Name)
		require.NoError(t, validateKey(v.Key))
		all[v.Key] = true
	}
	for _, v := range file.Steps {
		require.Equal(t, v.Key, keying.Step(unhex(v.Record), v.Step), v.Name)
		all[v.Key] = true
	}
	require.Len(t, all, len(file.Calls)+len(file.Steps))
}

func TestOutsideAKeyedHandlerThereAreNoChildKeys(t *testing.T) {
	t.Parallel()
	_, err := ChildKey(t.Context(), "ship")
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
}
