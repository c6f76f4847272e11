package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	validation "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/protovalidate"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// unaryChain is what every call goes through, over the network and in process,
// outermost first. Health and reflection are counted and recovered, and no more.
func (s *Server) unaryChain() (grpc.UnaryServerInterceptor, error) {
	if s.cfg.validator == nil {
		v, err := newValidator()
		if err != nil {
			return nil, fmt.Errorf("server: read the limits of the proto: %w", err)
		}
		s.cfg.validator = v
	}
	toStatus := &statuses{log: s.log, metrics: s.metrics, failed: s.health.checkSoon}
	own := func(i grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
		return selector.UnaryServerInterceptor(i, selector.MatchFunc(isOwn))
	}
	return inOrder(
		s.metrics.unary, // sees every end of a call, panics too
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(s.recovered)),
		selector.UnaryServerInterceptor(s.logging(), selector.MatchFunc(s.isLogged)),
		own(inOrder(
			toStatus.unary, // every error from here on becomes a status
			s.admit,
			validation.UnaryServerInterceptor(s.cfg.validator),
		)),
	), nil
}

// newValidator compiles the limits in the proto, which takes a while: once, not
// at the first call.
func newValidator() (protovalidate.Validator, error) {
	return protovalidate.New(
		protovalidate.WithFailFast(),
		protovalidate.WithMessages(
			&dedupv1.ReserveRequest{}, &dedupv1.BeginRunRequest{}, &dedupv1.CompleteRequest{},
			&dedupv1.ExtendRequest{}, &dedupv1.ReleaseRequest{}, &dedupv1.LookupRequest{},
			&dedupv1.ListRecordsRequest{}, &dedupv1.ResolveRequest{}, &dedupv1.StatsRequest{},
			&dedupv1.RedactRequest{}, &dedupv1.ForgetRequest{},
			&dedupv1.ParkRequest{}, &dedupv1.DeadLetterServiceListRequest{}, &dedupv1.DeadLetterServiceGetRequest{},
			&dedupv1.GroupsRequest{}, &dedupv1.ClaimRequest{}, &dedupv1.SettleRequest{},
			&dedupv1.RequeueRequest{}, &dedupv1.DiscardRequest{},
		),
	)
}

func (s *Server) streamChain() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(s.recovered)),
		s.endWithDrain,
	}
}

// inOrder runs the first outermost.
func inOrder(first grpc.UnaryServerInterceptor, more ...grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	if len(more) == 0 {
		return first
	}
	rest := inOrder(more[0], more[1:]...)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return first(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return rest(ctx, req, info, handler)
		})
	}
}

func isOwn(_ context.Context, c interceptors.CallMeta) bool {
	return strings.HasPrefix(c.Service, "dedup.v1.")
}

// isLogged keeps the cost of log fields off calls that nobody wants logged.
func (s *Server) isLogged(ctx context.Context, c interceptors.CallMeta) bool {
	return s.log.Enabled(ctx, slog.LevelDebug) && isOwn(ctx, c)
}

// logging writes one debug line at the end of a call: which record, what came of
// it, how long it took. Never what was asked or answered.
func (s *Server) logging() grpc.UnaryServerInterceptor {
	write := func(ctx context.Context, _ logging.Level, msg string, fields ...any) {
		attrs := make([]slog.Attr, 0, len(fields)/2)
		for i := 0; i+1 < len(fields); i += 2 {
			if name, ok := fields[i].(string); ok && name != "grpc.error" {
				attrs = append(attrs, slog.Any(name, fields[i+1]))
			}
		}
		s.log.LogAttrs(ctx, slog.LevelDebug, msg, attrs...)
	}
	return logging.UnaryServerInterceptor(logging.LoggerFunc(write),
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithDisableLoggingFields(logging.SystemTag[0], logging.ComponentFieldKey, logging.MethodTypeFieldKey),
		logging.WithFieldsFromContextAndCallMeta(func(_ context.Context, c interceptors.CallMeta) logging.Fields {
			id, operation, ok := namedBy(c.ReqOrNil)
			if !ok {
				return nil
			}
			fields := logging.Fields{"record", id.Short(), "operation", operation}
			if by, ok := c.ReqOrNil.(interface{ GetIdentity() *dedupv1.Identity }); ok {
				fields = append(fields, "namespace", by.GetIdentity().GetNamespace())
			}
			return fields
		}),
		logging.WithErrorFields(func(err error) logging.Fields {
			var w *wireError
			if errors.As(err, &w) {
				return logging.Fields{"reason", w.reason}
			}
			return nil
		}),
		logging.WithDurationField(func(d time.Duration) logging.Fields { return logging.Fields{"duration", d} }),
	)
}

// recovered makes a panic one call's failure.
func (s *Server) recovered(ctx context.Context, p any) error {
	s.metrics.panics.Inc()
	what := fmt.Sprintf("%T", p) // any other text may hold what was asked
	if fault, ok := p.(runtime.Error); ok {
		what = fault.Error()
	}
	s.log.LogAttrs(ctx, slog.LevelError, "a call panicked",
		slog.String("panic", what),
		slog.String("stack", string(debug.Stack())),
	)
	return status.Error(codes.Internal, "dedupd failed on this call; its log tells why")
}

// admit counts the call in, or turns it away while draining: what ends old work
// is always let in.
func (s *Server) admit(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	slot, ok := s.gate.enter(isNewWork(info.FullMethod))
	if !ok {
		return nil, errDraining
	}
	defer s.gate.leave(slot)
	return handler(ctx, req)
}

// endWithDrain ends a stream once calls have ended: a watch of the health would
// hold the drain up for ever.
func (s *Server) endWithDrain(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.streams, cancel)()
	return handler(srv, &endingStream{ServerStream: stream, ctx: ctx})
}

type endingStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // what a ServerStream is asked for
}

func (e *endingStream) Context() context.Context { return e.ctx }
