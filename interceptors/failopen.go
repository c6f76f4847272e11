package interceptors

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/dedupd/dedupd/interceptors/guard"
)

// openCalls counts calls that ran without protection, and logs them once a
// minute.
type openCalls struct {
	mu     sync.Mutex
	logged time.Time
	calls  int // since then
}

func (o *openCalls) count(ctx context.Context, s *server, m *method) {
	if s.observe.Unprotected != nil {
		s.observe.Unprotected(m.fullName)
	}
	o.mu.Lock()
	o.calls++
	calls := o.calls
	due := time.Since(o.logged) >= time.Minute
	if due {
		o.logged, o.calls = time.Now(), 0
	}
	o.mu.Unlock()
	if due {
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
