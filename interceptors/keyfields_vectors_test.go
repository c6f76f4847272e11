package interceptors

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

type keyFieldVectors struct {
	Vectors []struct {
		Name, Type, Wire string
		Fields           []string
		KeyHex           string `json:"key_hex"`
		Header           string
		Refused          bool
	}
}

// The client derives the key, and a server takes it as it arrives.
func TestKeysFromFieldsOfTheVectors(t *testing.T) { // C06, C12
	t.Parallel()
	var file keyFieldVectors
	readVectors(t, "keyfields.json", &file)
	var shared fingerprintVectors
	readVectors(t, "fingerprints.json", &shared)
	types := vectorTypes(t, shared.Types)
	require.GreaterOrEqual(t, len(file.Vectors), 36)
	for _, v := range file.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			kind, err := types.FindMessageByName(protoreflect.FullName(v.Type))
			require.NoError(t, err)
			wire, err := hex.DecodeString(v.Wire)
			require.NoError(t, err)
			m := kind.New().Interface()
			require.NoError(t, proto.Unmarshal(wire, m))
			require.NoError(t, checkKeyFields(kind.Descriptor(), v.Fields))
			key, err := deriveKey(v.Fields, m)
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
}
