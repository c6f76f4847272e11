package server

import (
	"cmp"
	"context"
	"log/slog"

	"google.golang.org/grpc/peer"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// defaultPage is how many records a page has unless asked.
const defaultPage = 100

// adminService is for operators.
type adminService struct {
	dedupv1.UnimplementedAdminServiceServer
	*core
}

func (s *adminService) ListRecords(ctx context.Context, req *dedupv1.ListRecordsRequest) (*dedupv1.ListRecordsResponse, error) {
	q, err := listOf(req)
	if err != nil {
		return nil, err
	}
	page, err := s.store.List(ctx, q)
	if err != nil {
		return nil, err
	}
	res := &dedupv1.ListRecordsResponse{Records: make([]*dedupv1.RecordInfo, 0, len(page.Records))}
	for _, rec := range page.Records {
		info := infoOf(rec.Identity.RecordID(), rec, rec.StateAt(page.Now, s.skew), page.Now, s.skew)
		res.Records = append(res.Records, info)
	}
	if page.Next != (storage.RecordID{}) {
		res.NextPageToken = page.Next[:]
	}
	return res, nil
}

func (s *adminService) Resolve(ctx context.Context, req *dedupv1.ResolveRequest) (*dedupv1.ResolveResponse, error) {
	id, err := recordOf(req)
	if err != nil {
		return nil, err
	}
	q, err := s.resolveOf(req)
	if err != nil {
		return nil, err
	}
	ans, err := s.store.Resolve(ctx, id, q)
	s.changed(id, ans, err)
	s.audit(ctx, id, req, ans, err)
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	return &dedupv1.ResolveResponse{Record: infoOf(id, ans.Record, ans.State, ans.Now, s.skew)}, nil
}

// audit writes what an operator asked for and what came of it, refusals too.
func (s *adminService) audit(ctx context.Context, id storage.RecordID, req *dedupv1.ResolveRequest, ans storage.Answer, err error) {
	verdict := "completed"
	if req.GetReleased() != nil {
		verdict = "released"
	}
	answer := "error" // the write may have happened; a repeat tells
	if err == nil {
		answer = ans.Verdict.String()
	}
	var operation storage.Identity
	if ans.Record != nil {
		operation = ans.Record.Identity
	}
	from := "unknown"
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		from = p.Addr.String()
	}
	s.log.WithGroup("audit").LogAttrs(ctx, slog.LevelInfo, "resolve",
		slog.String("record", id.Short()),
		slog.String("namespace", cmp.Or(operation.Namespace, req.GetIdentity().GetNamespace())),
		slog.String("operation", cmp.Or(operation.Operation, req.GetIdentity().GetOperation())),
		slog.Int64("version", versionOf(req.GetVersion())),
		slog.String("verdict", verdict),
		slog.String("basis", req.GetReleased().GetBasis().String()),
		slog.Bool("with_outcome", req.GetCompleted().GetOutcome() != nil),
		slog.String("note", req.GetNote()),
		slog.String("answer", answer),
		slog.String("from", from),
	)
}
