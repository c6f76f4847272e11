package interceptors

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dedupd/dedupd/interceptors/guard"
)

const unmarkedPause = time.Minute // between log lines of handlers that left their inbox alone

// WithInbox registers the ready reconciler of an inbox (inbox.Reconciler,
// pgxinbox.Reconciler) for methods by their full names
// ("/package.Service/Method"): their handlers apply every effect that has no key of
// its own in the inbox's transaction. Then a run that ended in the dark is settled
// exactly, and the first caller gets its answer although dedupd cannot be reached
// after the run. A handler of such a method that succeeds without having used its
// inbox is logged: if it were interrupted, nothing would be found of its effect, and
// it would run again.
func WithInbox(r guard.Reconciler, fullMethods ...string) ServerOption {
	return serverOption(func(c *serverConfig) error {
		if r == nil || len(fullMethods) == 0 {
			return errors.New("give an inbox's reconciler, and the methods whose handlers use it")
		}
		var faults []error
		for _, name := range fullMethods {
			faults = append(faults, c.register(name, registered{inbox: r, basis: Inbox}))
		}
		return errors.Join(faults...)
	})
}

// unmarked tells of a handler that succeeded without its inbox.
func (s *server) unmarked(ctx context.Context, m *method) {
	if calls, due := s.bare.Due(unmarkedPause); due {
		s.log.LogAttrs(ctx, slog.LevelError, "a handler succeeded without the inbox that its method is registered with; if it were interrupted it would run twice: use inbox.Do, or take the method off WithInbox",
			slog.String("method", m.fullName), slog.Int("calls", calls))
	}
}
