package console_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/server/console"
)

// services answers as it is told and remembers what changes were asked for.
type services struct {
	dedupv1.UnimplementedDedupServiceServer
	dedupv1.UnimplementedDeadLetterServiceServer
	dedupv1.UnimplementedAdminServiceServer

	mu       sync.Mutex
	records  []*dedupv1.RecordInfo
	entries  []*dedupv1.DeadLetter
	refuse   error // of every change
	lists    []*dedupv1.ListRecordsRequest
	resolved []*dedupv1.ResolveRequest
	requeued [][]byte
	thrown   [][]byte
}

func (s *services) Lookup(_ context.Context, req *dedupv1.LookupRequest) (*dedupv1.LookupResponse, error) {
	for _, r := range s.records {
		if string(r.GetRecordId()) == string(req.GetRecordId()) {
			return &dedupv1.LookupResponse{Record: r}, nil
		}
	}
	return &dedupv1.LookupResponse{Record: &dedupv1.RecordInfo{
		RecordId: req.GetRecordId(), State: dedupv1.State_STATE_ABSENT, Version: make([]byte, 8),
	}}, nil
}

func (s *services) ListRecords(_ context.Context, req *dedupv1.ListRecordsRequest) (*dedupv1.ListRecordsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists = append(s.lists, req)
	if len(req.GetPageToken()) == 0 {
		return &dedupv1.ListRecordsResponse{NextPageToken: []byte{1}}, nil // an empty page, and more to come
	}
	return &dedupv1.ListRecordsResponse{Records: s.records}, nil
}

func (s *services) Stats(context.Context, *dedupv1.StatsRequest) (*dedupv1.StatsResponse, error) {
	return &dedupv1.StatsResponse{
		Unfinished:  []*dedupv1.UnfinishedStats{{Namespace: "shop", Operation: "<i>op</i>", State: dedupv1.State_STATE_UNKNOWN, Records: 3}},
		DeadLetters: []*dedupv1.DeadLetterStats{{Namespace: "shop", Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Entries: 7}},
		Operations:  []*dedupv1.OperationStats{{Namespace: "shop", Operation: "/a/B", Granted: 41}},
		HotKeys:     []*dedupv1.HotKey{{Record: "0123456789ab", Count: 99}},
	}, nil
}

func (s *services) Resolve(_ context.Context, req *dedupv1.ResolveRequest) (*dedupv1.ResolveResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resolved = append(s.resolved, req)
	return &dedupv1.ResolveResponse{}, s.refuse
}

// List pages by the index of the next entry, in two bytes.
func (s *services) List(_ context.Context, req *dedupv1.DeadLetterServiceListRequest) (*dedupv1.DeadLetterServiceListResponse, error) {
	from := 0
	if t := req.GetPageToken(); len(t) == 2 {
		from = int(t[0])<<8 | int(t[1])
	}
	to := min(len(s.entries), from+int(req.GetPageSize()))
	res := &dedupv1.DeadLetterServiceListResponse{Entries: s.entries[from:to]}
	if to < len(s.entries) {
		res.NextPageToken = []byte{byte(to >> 8), byte(to)}
	}
	return res, nil
}

func (s *services) Get(_ context.Context, req *dedupv1.DeadLetterServiceGetRequest) (*dedupv1.DeadLetterServiceGetResponse, error) {
	for _, e := range s.entries {
		if string(e.GetEntryId()) == string(req.GetEntryId()) {
			return &dedupv1.DeadLetterServiceGetResponse{Entry: e}, nil
		}
	}
	return nil, s.refuse
}

func (s *services) Groups(context.Context, *dedupv1.GroupsRequest) (*dedupv1.GroupsResponse, error) {
	return &dedupv1.GroupsResponse{Groups: []*dedupv1.DeadLetterGroup{{
		Namespace: "shop", Operation: "/a/B", Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED,
		Code: 14, Signature: "<b>down & out</b>", Entries: int64(len(s.entries)),
	}}}, nil
}

func (s *services) Requeue(_ context.Context, req *dedupv1.RequeueRequest) (*dedupv1.RequeueResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requeued = append(s.requeued, req.GetEntryIds()...)
	return &dedupv1.RequeueResponse{Answers: done(req.GetEntryIds())}, s.refuse
}

func (s *services) Discard(_ context.Context, req *dedupv1.DiscardRequest) (*dedupv1.DiscardResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.thrown = append(s.thrown, req.GetEntryIds()...)
	answers := done(req.GetEntryIds())
	answers[0].Reason, answers[0].Message = dedupv1.Reason_REASON_ENTRY_CHANGED, "a replay is <going> on"
	return &dedupv1.DiscardResponse{Answers: answers}, nil
}

func done(ids [][]byte) []*dedupv1.EntryAnswer {
	answers := make([]*dedupv1.EntryAnswer, 0, len(ids))
	for _, id := range ids {
		answers = append(answers, &dedupv1.EntryAnswer{EntryId: id})
	}
	return answers
}

// site is the console over fake services.
type site struct {
	*services
	url string
}

func newSite(t *testing.T, opts console.Options) *site {
	t.Helper()
	s := &services{}
	lis := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	dedupv1.RegisterDedupServiceServer(g, s)
	dedupv1.RegisterDeadLetterServiceServer(g, s)
	dedupv1.RegisterAdminServiceServer(g, s)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(lis) }()
	cc, err := grpc.NewClient("passthrough:///console", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	require.NoError(t, err)
	web := httptest.NewServer(http.StripPrefix("/console", console.New(cc, opts)))
	t.Cleanup(func() {
		web.Close()
		require.NoError(t, cc.Close())
		g.Stop()
		require.NoError(t, <-ended)
	})
	return &site{services: s, url: web.URL + "/console"}
}

func (s *site) get(t *testing.T, path string) (int, string) {
	t.Helper()
	return s.send(t, http.MethodGet, path, "")
}

func (s *site) post(t *testing.T, path string, form url.Values) (int, string) {
	t.Helper()
	return s.send(t, http.MethodPost, path, form.Encode())
}

func (s *site) send(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode, string(text)
}
