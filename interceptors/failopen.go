package interceptors

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dedupd/dedupd/interceptors/guard"
)

// ranOpen counts a call that runs without protection, and logs such once a
// minute.
func (s *server) ranOpen(ctx context.Context, m *method) {
	if s.observe.Unprotected != nil {
		s.observe.Unprotected(m.fullName)
	}
	if calls, due := s.open.Due(time.Minute); due {
		s.log.LogAttrs(ctx, slog.LevelError, "dedupd cannot be reached; calls of methods that fail open run without protection",
			slog.String("method", m.fullName), slog.Int("calls", calls))
	}
}

// unreached reports that nothing is known of the key because dedupd did not
// answer.
func unreached(err error) bool {
	r, ok := errors.AsType[*guard.RefusalError](err)
	return ok && r.Unreached
}
