package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/hex"
	"log/slog"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// audit writes one line of what an operator asked for and what came of it,
// refusals too, under the group "audit". what never holds a key or a caller.
func (s *core) audit(ctx context.Context, act, note, answer string, what ...slog.Attr) {
	from := "unknown"
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		from = p.Addr.String()
		if by, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			from = certified(from, &by.State)
		}
	}
	what = append(what, slog.String("note", note), slog.String("answer", answer), slog.String("from", from))
	s.log.WithGroup("audit").LogAttrs(ctx, slog.LevelInfo, act, what...)
}

// certified is an address and the name in the certificate that its client showed.
func certified(addr string, by *tls.ConnectionState) string {
	if by == nil || len(by.PeerCertificates) == 0 {
		return addr
	}
	return addr + " " + by.PeerCertificates[0].Subject.String()
}

// auditAnswer is how the log tells what came of an act on the store.
func auditAnswer(ans storage.Answer, err error) string {
	if err != nil {
		return "error" // the write may have happened; a repeat tells
	}
	return ans.Verdict.String()
}

func (s *core) auditResolve(ctx context.Context, id storage.RecordID, req *dedupv1.ResolveRequest, ans storage.Answer, err error) {
	verdict, basis := "completed", ""
	if req.GetReleased() != nil {
		verdict = "released"
		basis = strings.ToLower(strings.TrimPrefix(req.GetReleased().GetBasis().String(), "BASIS_"))
	}
	identity := answerIdentity(ans)
	s.audit(ctx, "resolve", req.GetNote(), auditAnswer(ans, err),
		slog.String("record", id.Short()),
		slog.String("namespace", cmp.Or(identity.Namespace, req.GetIdentity().GetNamespace())),
		slog.String("operation", cmp.Or(identity.Operation, req.GetIdentity().GetOperation())),
		slog.String("version", hex.EncodeToString(req.GetVersion())), // as operators see it
		slog.String("verdict", verdict),
		slog.String("basis", basis),
		slog.Bool("with_outcome", req.GetCompleted().GetOutcome() != nil),
	)
}

// auditEdit is of an entry that an operator made out of another.
func (s *core) auditEdit(ctx context.Context, parent storage.EntryID, note string, ans storage.Answer, err error) {
	var into []slog.Attr
	if ans.Entry != nil {
		into = append(into, slog.String("into", hex.EncodeToString(ans.Entry.ID[:])))
	}
	s.auditEntry(ctx, "edit", parent, note, ans, err, into...)
}

// auditSettle is of an entry that a claim of an operator has closed, or one that an
// operator had asked for. What leaves it parked changes nothing for anybody.
func (s *core) auditSettle(ctx context.Context, ans storage.Answer) {
	if e := ans.Entry; e != nil && ans.Verdict == storage.VerdictOK && e.ByOperator && !e.Open() {
		result := strings.TrimPrefix(resultTo(e.Result).String(), "REPLAY_RESULT_")
		s.auditEntry(ctx, "settle", e.ID, "", ans, nil, slog.String("result", strings.ToLower(result)))
	}
}

// auditEntry is of an act on one dead letter.
func (s *core) auditEntry(ctx context.Context, act string, id storage.EntryID, note string, ans storage.Answer, err error, what ...slog.Attr) {
	what = append([]slog.Attr{slog.String("entry", hex.EncodeToString(id[:]))}, what...)
	if e := ans.Entry; e != nil {
		what = append(what,
			slog.String("record", e.Record.Short()),
			slog.String("namespace", e.Identity.Namespace),
			slog.String("operation", e.Identity.Operation),
			slog.String("kind", e.Kind.String()),
			slog.String("state", e.StateAt(ans.Now).String()),
		)
	}
	s.audit(ctx, act, note, auditAnswer(ans, err), what...)
}
