//go:build cockroach

package pgtest

import (
	"fmt"

	"github.com/cockroachdb/cockroach-go/v2/testserver"
)

// startOther starts a CockroachDB, whose binary is downloaded where that is allowed.
func startOther() (*Server, error) {
	ts, err := testserver.NewTestServer()
	if err != nil {
		return nil, fmt.Errorf("CockroachDB does not start (set %s to use a running one): %w", EnvURL, err)
	}
	return &Server{url: ts.PGURL().String(), stop: ts.Stop}, nil
}
