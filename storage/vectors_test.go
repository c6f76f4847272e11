package storage

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// vectors reads a file of the contract with the other languages.
func vectors(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "proto", "dedup", "v1", "testdata", "vectors", name))
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(into))
}

// hexed is bytes written as hex.
type hexed []byte

func (h *hexed) UnmarshalText(b []byte) (err error) {
	*h, err = hex.DecodeString(string(b))
	return err
}

// prefixed puts the length before b, in size bytes of hex.
func prefixed(size int, b []byte) []byte {
	n, _ := hex.DecodeString(fmt.Sprintf("%0*x", 2*size, len(b)))
	return append(n, b...)
}

// C10: cut anywhere, parts that hold separators give different records.
func TestRecordVectors(t *testing.T) {
	t.Parallel()
	var file struct {
		Comment string
		Records []struct {
			Name                              string
			Namespace, Operation, Caller, Key hexed
			RecordID                          string `json:"record_id"`
		}
	}
	vectors(t, "records.json", &file)
	require.GreaterOrEqual(t, len(file.Records), 18)
	seen := map[string]string{}
	for _, v := range file.Records {
		id := Identity{string(v.Namespace), string(v.Operation), string(v.Caller), string(v.Key)}
		require.NoError(t, id.Validate(), v.Name)
		byHand := bytes.Join([][]byte{prefixed(4, v.Namespace), prefixed(4, v.Operation), prefixed(4, v.Caller), prefixed(4, v.Key)}, nil)
		require.Equal(t, v.RecordID, fmt.Sprintf("%x", sha256.Sum256(byHand)), v.Name)
		require.Equal(t, v.RecordID, id.RecordID().String(), v.Name)
		require.Empty(t, seen[v.RecordID], v.Name)
		seen[v.RecordID] = v.Name
	}
}

func TestOutcomeVectors(t *testing.T) {
	t.Parallel()
	type entry struct {
		Key   string
		Value hexed
	}
	var file struct {
		Comment  string
		Outcomes []struct {
			Name              string
			Status            hexed
			TypeURL           string `json:"type_url"`
			Response          *hexed
			OmittedSHA256     hexed `json:"omitted_sha256"`
			Size              int64
			Headers, Trailers []entry
			Hash              string
		}
	}
	vectors(t, "outcomes.json", &file)
	require.GreaterOrEqual(t, len(file.Outcomes), 12)
	seen := map[string]string{}
	for _, v := range file.Outcomes {
		o := Outcome{Status: v.Status, TypeURL: v.TypeURL, Size: v.Size}
		byHand := append(prefixed(8, []byte("dedup.outcome.v1")), prefixed(8, v.Status)...)
		count := func(n int) { byHand = append(byHand, prefixed(8, make([]byte, n))[:8]...) }
		sum := v.OmittedSHA256
		if v.Response != nil {
			o.HasResponse, o.Response = true, *v.Response
			s := sha256.Sum256(*v.Response)
			sum = s[:]
		} else if sum != nil {
			o.Omitted, o.Sum = true, [sha256.Size]byte(sum)
		}
		if sum == nil {
			count(0)
		} else {
			count(1)
			byHand = append(append(byHand, prefixed(8, []byte(v.TypeURL))...), prefixed(8, sum)...)
		}
		for _, md := range []struct {
			from []entry
			to   *[]MetadataEntry
		}{{v.Headers, &o.Headers}, {v.Trailers, &o.Trailers}} {
			count(len(md.from))
			for _, e := range md.from {
				*md.to = append(*md.to, MetadataEntry{Key: e.Key, Value: e.Value})
				byHand = append(append(byHand, prefixed(8, []byte(e.Key))...), prefixed(8, e.Value)...)
			}
		}
		require.Equal(t, v.Hash, fmt.Sprintf("%x", sha256.Sum256(byHand)), v.Name)
		require.Equal(t, v.Hash, fmt.Sprintf("%x", o.Hash()), v.Name)
		if v.Name != "the same response left out" { // which hashes as the response kept
			require.Empty(t, seen[v.Hash], v.Name)
		}
		seen[v.Hash] = v.Name
	}
	require.Zero(t, (*Outcome)(nil).Hash())
}

func TestFingerprintsAreComparedUnderTheHighestCommonVersion(t *testing.T) {
	t.Parallel()
	v := func(version uint32, server string) Digest { return Digest{Version: version, Server: server} }
	unknown := func(server, client string) Fingerprint {
		return Fingerprint{{Version: 1, Server: server, Client: client, UnknownFields: true}}
	}
	for name, c := range map[string]struct {
		a, b Fingerprint
		same bool
	}{
		"equal":                          {Fingerprint{v(1, "x")}, Fingerprint{v(1, "x")}, true},
		"different":                      {Fingerprint{v(1, "x")}, Fingerprint{v(1, "y")}, false},
		"no common version":              {Fingerprint{v(1, "x")}, Fingerprint{v(2, "x")}, false},
		"none at all":                    {nil, nil, false},
		"the highest common one decides": {Fingerprint{v(1, "x"), v(2, "p")}, Fingerprint{v(2, "q"), v(1, "x")}, false},
		"one side knows one more":        {Fingerprint{v(1, "x"), v(2, "p")}, Fingerprint{v(1, "x"), v(3, "r")}, true},
		"unknown fields, client agrees":  {unknown("x", "c"), Fingerprint{{Version: 1, Server: "y", Client: "c"}}, true},
		"unknown fields, client differs": {unknown("x", "c"), unknown("y", "d"), false},
		"unknown fields, no client":      {unknown("x", ""), unknown("y", ""), false},
		"known fields, client agrees":    {Fingerprint{{Version: 1, Server: "x", Client: "c"}}, Fingerprint{{Version: 1, Server: "y", Client: "c"}}, false},
	} {
		require.Equal(t, c.same, c.a.Same(c.b), name)
		require.Equal(t, c.same, c.b.Same(c.a), name)
	}
}
