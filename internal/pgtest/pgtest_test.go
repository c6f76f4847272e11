package pgtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPrivateServerKeepsCommittedDataOverAKillAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s, err := StartPrivate()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	dsn := s.Schema(t)
	require.NoError(t, execSQL(t.Context(), dsn, "CREATE TABLE kept (n INT8 PRIMARY KEY)"))
	require.NoError(t, execSQL(t.Context(), dsn, "INSERT INTO kept VALUES (1)"))

	require.NoError(t, s.Kill())
	require.Error(t, execSQL(t.Context(), dsn, "SELECT 1"))
	require.NoError(t, s.Restart())
	require.ErrorContains(t, execSQL(t.Context(), dsn, "INSERT INTO kept VALUES (1)"), "23505")

	other := s.Schema(t)
	require.Error(t, execSQL(t.Context(), other, "SELECT n FROM kept"), "schemas do not see each other")

	require.NoError(t, s.Stop())
	_, err = os.Stat(s.Dir())
	require.ErrorIs(t, err, os.ErrNotExist)
}
