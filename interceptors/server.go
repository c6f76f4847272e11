package interceptors

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
	"github.com/dedupd/dedupd/interceptors/internal/ending"
	"github.com/dedupd/dedupd/interceptors/internal/seldom"
	"github.com/dedupd/dedupd/interceptors/policy"
)

// ServerOptions returns what makes a gRPC server's unary handlers run once per
// key: grpc.NewServer(options...). dedup reaches dedupd, best over a connection
// of DialDedupd. The policies of the methods are read from their proto option
// (dedup.v1.method); options override them.
//
// The chain is Before... → keys → After... → handler. Streaming calls pass
// untouched. It returns every fault of the options at once, among them a
// streaming method that requires a key.
func ServerOptions(dedup dedupv1.DedupServiceClient, opts ...ServerOption) ([]grpc.ServerOption, error) {
	c, err := newServerConfig(opts)
	if err != nil {
		return nil, err
	}
	methods, err := c.methods()
	if err != nil {
		return nil, err
	}
	engine, err := guard.New(guard.Config{
		Dedup: dedup, Namespace: c.namespace, Logger: c.log, Observer: c.observe.Observer, Journal: c.journal, Shadow: c.shadow,
		Parker: c.parker,
	})
	if err != nil {
		return nil, err
	}
	if c.lifetime != nil {
		context.AfterFunc(c.lifetime, func() {
			engine.Close()
			if c.closed != nil {
				c.closed()
			}
		})
	}
	s := &server{serverConfig: c, engine: engine, known: methods}
	chain := append(append([]grpc.UnaryServerInterceptor{}, c.before...), s.unary)
	chain = append(chain, c.after...)
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(chain...), grpc.ChainStreamInterceptor(s.stream)}, nil
}

type server struct {
	*serverConfig
	engine *guard.Engine
	known  map[string]*method // never written after construction
	open   seldom.Log         // of calls that ran without protection
	bare   seldom.Log         // of handlers that left their inbox alone
}

// policyOf returns the policy of a method that was not linked in: keys are
// taken, by the server's defaults.
func (s *server) policyOf(fullMethod string) (*method, error) {
	if m, ok := s.known[fullMethod]; ok {
		return m, nil
	}
	return s.method(fullMethod, nil)
}

// stream lets streaming calls pass: they are never deduplicated.
func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	m, err := s.policyOf(info.FullMethod)
	if err == nil && m.keys == dedupv1.KeyRule_KEY_RULE_REQUIRED {
		// Only by a Go option for a method that is not linked in: else it was
		// refused at construction.
		return status.Error(codes.Unimplemented, "the method requires a key, but streams are never deduplicated; drop the rule")
	}
	if s.observe.Stream != nil {
		md, _ := metadata.FromIncomingContext(ss.Context())
		keyed := len(md[HeaderKey])+len(md[HeaderKeyBin]) > 0
		s.observe.Stream(info.FullMethod, keyed)
	}
	return markNested(handler(srv, ss))
}

// unary runs one unary call.
func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m, err := s.policyOf(info.FullMethod)
	if err != nil {
		return nil, status.Error(codes.Internal, "the method's policy is broken")
	}
	replay, err := incomingReplay(ctx)
	if err == nil && replay != nil && !m.protects() {
		err = replayInvalid("the method ignores keys, so that a replay of it is not bound to its record")
	}
	if err != nil {
		return nil, err
	}
	switch {
	case m.keys == dedupv1.KeyRule_KEY_RULE_OFF:
		return s.plain(ctx, req, handler)
	case m.keys == dedupv1.KeyRule_KEY_RULE_OBSERVE:
		return s.observed(ctx, m, req, handler)
	case carriesKey(ctx):
	case replay != nil:
		return nil, replayInvalid("a replay carries the key of its dead letter, send it too")
	case m.keys == dedupv1.KeyRule_KEY_RULE_REQUIRED:
		return nil, refusal{
			reason: dedupv1.Reason_REASON_KEY_REQUIRED, operation: m.operation, field: HeaderKey,
			message: "the method requires a key, send one in the " + HeaderKey + " header",
		}.err()
	default:
		if s.observe.Keyless != nil {
			s.observe.Keyless(info.FullMethod)
		}
		return s.plain(ctx, req, handler)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	key, _, err := incomingKey(md)
	if err != nil {
		return nil, err
	}
	call, k, err := s.keyed(ctx, m, req, key, md)
	if err != nil {
		if status.Code(err) == codes.Unauthenticated {
			s.log.LogAttrs(ctx, slog.LevelWarn, "a keyed call was refused, its caller is not known", slog.String("method", m.fullName))
		}
		return nil, err
	}
	k.handler, k.capture = handler, &capture{method: info.FullMethod}
	call.Replay = replay
	return k.do(ctx, call)
}

// plain runs the handler as if we were not there.
func (s *server) plain(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	return resp, markNested(err)
}

// keyed says who calls for what.
func (s *server) keyed(ctx context.Context, m *method, req any, key string, md metadata.MD) (guard.Call, *keyedCall, error) {
	var caller string
	if s.caller != nil {
		var err error
		if caller, err = s.caller(ctx); err != nil || caller == "" {
			return guard.Call{}, nil, status.Error(codes.Unauthenticated, "a call with a key must be authenticated: its caller is not known")
		}
	}
	msg, ok := req.(proto.Message)
	if !ok {
		return guard.Call{}, nil, status.Error(codes.Unimplemented, "keys are for protobuf messages only, call without one")
	}
	fp, err := Fingerprint(m.operation, msg)
	if err != nil {
		return guard.Call{}, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if fp.ClientDigest, err = clientDigest(md); err != nil {
		return guard.Call{}, nil, err
	}
	k := &keyedCall{s: s, m: m, req: msg}
	return guard.Call{
		Operation: m.operation, Caller: []byte(caller), Key: []byte(key),
		Fingerprints: []*dedupv1.Fingerprint{fp}, Attempt: attemptNumber(md),
		Lease: m.lease, MaxRun: m.maxRun, Wait: m.wait, RefuseAtOnce: m.refuseAtOnce,
		Retention: m.retention, RerunSafe: m.rerunSafe, SharedWithRerun: m.shared,
		Reconciler: m.reconciler(msg, &k.found), Basis: m.basis, CallerCancels: m.callerCancels,
		Parked: func() *dedupv1.ParkRequest { return parked(m.fullName, msg) }, Traceparent: s.trace.current(ctx),
	}, k, nil
}

// keyedCall is one keyed call on its way through the engine.
type keyedCall struct {
	s       *server
	m       *method
	req     proto.Message
	handler grpc.UnaryHandler
	capture *capture

	resp  any     // the handler's own answer
	err   error   // the same, as a status
	found Verdict // what the reconciler found applied
}

func (k *keyedCall) do(ctx context.Context, call guard.Call) (any, error) {
	res, err := k.s.engine.Do(ctx, call, k.run)
	trailer := metadata.Pairs(TrailerRecord, hex.EncodeToString(res.RecordID))
	if at := res.Ends.GetExpiresAt(); at != nil {
		trailer.Set(TrailerExpires, at.AsTime().Format(time.RFC3339))
	}
	switch {
	case err != nil && k.m.failOpen && call.Replay == nil && unreached(err) && ctx.Err() == nil:
		k.s.ranOpen(ctx, k.m)
		trailer.Set(TrailerUnprotected, "true")
		if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil {
			_ = stream.SetTrailer(trailer) // it fails where the stream is gone, and then so does the answer
		}
		return k.s.plain(ctx, k.req, k.handler)
	case err != nil:
		return answer(ctx, nil, refusalStatus(err), nil, trailer)
	case res.Applied && k.m.inbox == nil:
		resp, err := k.reconciled()
		return answer(ctx, resp, err, nil, trailer)
	case res.Stored != nil:
		return k.replay(ctx, res, trailer)
	}
	if left := ending.Tell(res.Left); left != "" {
		trailer.Set(TrailerEffect, left)
	}
	headers, trailers := k.capture.end()
	return answer(ctx, k.resp, k.err, headers, metadata.Join(trailers, trailer))
}

// run is the handler as the engine runs it.
func (k *keyedCall) run(ctx context.Context, a guard.Attempt) guard.Ending {
	resp, err := k.handler(grpc.NewContextWithServerTransportStream(ctx, k.capture), k.req)
	if err == nil && k.m.inbox != nil && !guard.IsKeptWithEffect(ctx) {
		k.s.unmarked(ctx, k.m)
	}
	e, err := k.ending(ctx, resp, err, a)
	k.resp, k.err = resp, err
	return e
}

// reconciled is the answer that the reconciler found, in full, whatever of it
// could be stored.
func (k *keyedCall) reconciled() (any, error) {
	if k.found.err != nil {
		return nil, policy.StatusOf(k.found.err).Err()
	}
	return k.found.resp, nil
}

// replay answers with the stored outcome.
func (k *keyedCall) replay(ctx context.Context, res guard.Result, trailer metadata.MD) (any, error) {
	resp, headers, trailers, err := replayOutcome(res.Stored.GetOutcome(), k.capture.method)
	if reason, ok := policy.ReasonOf(err); ok && reason == dedupv1.Reason_REASON_OUTCOME_NOT_STORED {
		err = refusal{
			reason: reason, message: status.Convert(err).Message(), operation: k.m.operation, record: res.RecordID,
		}.err()
		return answer(ctx, nil, err, nil, trailer)
	}
	if !res.Applied {
		trailer.Set(TrailerReplayed, "true")
	}
	if res.Traceparent != "" {
		trailer.Set(TrailerTrace, res.Traceparent)
		k.s.trace.replayed(ctx, res.Traceparent)
	}
	return answer(ctx, resp, err, headers, metadata.Join(trailers, trailer))
}

// answer sends headers and trailers with an answer. Ahead of an error headers
// travel as trailers: a failing reply stays a single frame, which clients and
// proxies tell by.
func answer(ctx context.Context, resp any, err error, headers, trailers metadata.MD) (any, error) {
	stream := grpc.ServerTransportStreamFromContext(ctx)
	if stream == nil { // not under a gRPC server: nobody reads them
		return resp, err
	}
	// They fail where the stream is gone, and then so does the answer.
	if err != nil {
		_ = stream.SetTrailer(metadata.Join(headers, trailers))
		return nil, err
	}
	_ = stream.SetHeader(headers)
	_ = stream.SetTrailer(trailers)
	return resp, nil
}

// attemptNumber reads the client's count of its attempts; 1 where there is none
// or it is no number.
func attemptNumber(md metadata.MD) int {
	values := md[HeaderAttempt]
	if len(values) != 1 {
		return 1
	}
	n, err := strconv.ParseInt(values[0], 10, 16)
	if err != nil || n < 1 {
		return 1
	}
	return int(n)
}
