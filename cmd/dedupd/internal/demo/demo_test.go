package demo

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunRefusesSettingsThatCannotWork(t *testing.T) {
	t.Parallel()
	good := Config{Executable: "x"}.withDefaults()
	require.NoError(t, good.validate())
	for want, spoil := range map[string]func(*Config){
		"executable":   func(c *Config) { c.Executable = "" },
		"too few":      func(c *Config) { c.Orders = 9 },
		"place no":     func(c *Config) { c.Clients = -1 },
		"a loss of -1": func(c *Config) { c.Loss = -1 },
		"a loss of 1":  func(c *Config) { c.Loss = 1 },
	} {
		c := good
		spoil(&c)
		_, err := Run(t.Context(), c)
		require.ErrorContains(t, err, want)
	}
}

func TestAPanicInTheDemoBecomesAnError(t *testing.T) {
	t.Parallel()
	err := safely(func() error { return []error{}[len(t.Name())] })()
	require.ErrorContains(t, err, "fault in the demo itself")
}
