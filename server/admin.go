package server

import (
	"context"

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
		info := infoOf(rec.ID(), rec, rec.StateAt(page.Now, s.skew), page.Now, s.skew)
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
	s.auditResolve(ctx, id, req, ans, err)
	if err != nil {
		return nil, err
	}
	if ans.Verdict != storage.VerdictOK {
		return nil, refusalOf(ans)
	}
	return &dedupv1.ResolveResponse{Record: infoOf(id, ans.Record, ans.State, ans.Now, s.skew)}, nil
}
