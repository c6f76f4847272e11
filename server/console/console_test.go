package console_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/server/console"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	hostile = `"><script>alert(1)</script>`
	secret  = "order-4471-secret"
)

func unknownRecord() *dedupv1.RecordInfo {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	return &dedupv1.RecordInfo{
		RecordId: bytes.Repeat([]byte{7}, 32), State: dedupv1.State_STATE_UNKNOWN, Mode: dedupv1.Mode_MODE_RUN,
		Identity: &dedupv1.Identity{Namespace: "shop", Operation: hostile, Caller: []byte("ann"), Key: []byte(secret)},
		Fence:    12, Grants: 2, Version: []byte{0, 0, 0, 0, 0, 0, 0, 9}, Note: "\u202ereversed",
		CreatedAt: timestamppb.New(at), GrantedAt: timestamppb.New(at.Add(time.Minute)), LeaseEndsAt: timestamppb.New(at.Add(90 * time.Second)),
	}
}

func letters(n int) []*dedupv1.DeadLetter {
	out := make([]*dedupv1.DeadLetter, 0, n)
	for i := range n {
		id := make([]byte, 16)
		binary.BigEndian.PutUint64(id, uint64(i))
		out = append(out, &dedupv1.DeadLetter{
			EntryId: id, State: dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED, Kind: dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED,
			RecordId: bytes.Repeat([]byte{7}, 32), Identity: &dedupv1.Identity{Namespace: "shop", Operation: "/a/B", Key: []byte(secret)},
			Code: 14, Signature: hostile, HasRequest: true, RequestSize: 12, Count: 3, Age: durationpb.New(time.Hour),
			ParkedAt: timestamppb.Now(), LastParkedAt: timestamppb.Now(),
		})
	}
	return out
}

func TestEveryPageShowsHostileTextAsTextAndNoKey(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.records = []*dedupv1.RecordInfo{unknownRecord()}
	s.entries = letters(2)
	s.entries[0].Conflict = &dedupv1.ConflictInfo{Success: true, RefusedFence: 3, RecordFence: 4}
	s.entries[0].Attempts = []*dedupv1.CallAttempt{{At: timestamppb.Now(), Code: 14}}
	id := hex.EncodeToString(s.records[0].GetRecordId())
	for _, page := range []string{
		"/", "/records", "/records/" + id, "/dead-letters", "/dead-letters/" + hex.EncodeToString(s.entries[0].GetEntryId()),
		"/dead-letters?signature=" + url.QueryEscape(hostile) + "&namespace=" + url.QueryEscape(hostile),
	} {
		code, text := s.get(t, page)
		require.Equal(t, http.StatusOK, code, page)
		require.NotContains(t, text, "<script>alert", page)
		require.NotContains(t, text, "<b>down", page)
		require.NotContains(t, text, "\u202e", page)
		require.NotContains(t, text, secret, page)
		require.NotContains(t, text, ">ann<", page)
	}
	_, text := s.get(t, "/records/"+id)
	require.Contains(t, text, "**** (17 bytes)")
	require.Less(t, strings.Index(text, "first granted"), strings.Index(text, "granted again"))
	require.Less(t, strings.Index(text, "granted again"), strings.Index(text, "lease ends"))
	require.Contains(t, text, "dead letter parked")
	letter := "/dead-letters/" + hex.EncodeToString(s.entries[0].GetEntryId())
	_, text = s.get(t, letter)
	require.Contains(t, text, `gone on to fence <span class="mono">4</span>`)
	s.entries[0].Conflict.RecordFence = 0
	_, text = s.get(t, letter)
	require.Contains(t, text, "when its record was gone: forgotten, or past its time")
}

func TestKeysAreShownWhenTheOperatorOfTheServerSaidSo(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{ShowKeys: true})
	s.records = []*dedupv1.RecordInfo{unknownRecord()}
	_, text := s.get(t, "/records/"+hex.EncodeToString(s.records[0].GetRecordId()))
	require.Contains(t, text, secret)
	require.Contains(t, text, "ann")
}

func TestASearchByKeyGoesOnPastEmptyPagesAndLeavesNoKeyInAnAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.records = []*dedupv1.RecordInfo{unknownRecord()}
	code, text := s.post(t, "/records/find", url.Values{"key": {secret}})
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "070707070707")
	require.Len(t, s.lists, 2)
	require.Equal(t, secret, string(s.lists[1].GetKey()))

	id := hex.EncodeToString(s.records[0].GetRecordId())
	code, _ = s.post(t, "/records/find", url.Values{"key": {id}})
	require.Equal(t, http.StatusSeeOther, code, "an id leads to its record")
}

func TestStaticServesItsFilesAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	for _, file := range []string{"console.css", "console.js", "icon.svg"} {
		code, text := s.get(t, "/static/"+file)
		require.Equal(t, http.StatusOK, code, file)
		require.NotEmpty(t, text, file)
	}
	for _, path := range []string{"/static/", "/static", "/static/%2e%2e/templates/frame.html", "/static/..%2ftemplates%2fframe.html", "/static/%2f", "/static/index.html"} {
		code, text := s.get(t, path)
		require.Equal(t, http.StatusNotFound, code, path)
		require.NotContains(t, text, "console.js</a>", path)
		require.NotContains(t, text, "{{define", path)
	}
}

func TestNothingIsChangedBeforeItIsConfirmed(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.records = []*dedupv1.RecordInfo{unknownRecord()}
	s.entries = letters(1)
	record := "/records/" + hex.EncodeToString(s.records[0].GetRecordId()) + "/resolve"
	verdict := url.Values{"verdict": {"released"}, "basis": {"BOUNDED"}, "note": {"looked"}, "version": {"0000000000000009"}}
	entry := url.Values{"do": {"discard"}, "id": {hex.EncodeToString(s.entries[0].GetEntryId())}, "note": {"old"}}

	code, text := s.post(t, record, verdict)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "it happens twice")
	code, text = s.post(t, "/dead-letters/act", entry)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "Discard 1")
	require.Empty(t, s.resolved)
	require.Empty(t, s.thrown)

	verdict.Set("confirm", "yes")
	entry.Set("confirm", "yes")
	code, _ = s.post(t, record, verdict)
	require.Equal(t, http.StatusSeeOther, code)
	require.Len(t, s.resolved, 1)
	require.Equal(t, dedupv1.Basis_BASIS_BOUNDED, s.resolved[0].GetReleased().GetBasis())
	require.Equal(t, uint64(9), binary.BigEndian.Uint64(s.resolved[0].GetVersion()))
	_, text = s.post(t, "/dead-letters/act", entry)
	require.Len(t, s.thrown, 1)
	require.Contains(t, text, "0 of 1 discarded", "a refusal is told, entry by entry")
	require.Contains(t, text, "a replay is &lt;going&gt; on")
}

func TestTenThousandEntriesAreListedByPageAndRequeuedAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.entries = letters(10_000)
	_, text := s.get(t, "/dead-letters")
	require.Equal(t, 50, strings.Count(text, `name="id"`))
	require.Contains(t, text, "from=0032", "the next page starts at the 51st")

	form := url.Values{"do": {"requeue"}, "all": {"yes"}, "note": {"fixed"}}
	_, text = s.post(t, "/dead-letters/act", form)
	require.Contains(t, text, "Request 10000 replays")
	form.Set("ids", between(t, text, `name="ids" value="`, `"`))
	form.Set("confirm", "yes")
	_, text = s.post(t, "/dead-letters/act", form)
	require.Contains(t, text, "10000 of 10000 put back")
	require.Len(t, s.requeued, 10_000)
}

func TestOnlyWhatWaitsForSomebodyIsOfferedAReplayOrADiscard(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.entries = letters(4)
	for i, state := range []dedupv1.DeadLetterState{
		dedupv1.DeadLetterState_DEAD_LETTER_STATE_REPLAYING, dedupv1.DeadLetterState_DEAD_LETTER_STATE_RESOLVED,
		dedupv1.DeadLetterState_DEAD_LETTER_STATE_DISCARDED, dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED,
	} {
		s.entries[i].State = state
		_, text := s.get(t, "/dead-letters/"+hex.EncodeToString(s.entries[i].GetEntryId()))
		parked := state == dedupv1.DeadLetterState_DEAD_LETTER_STATE_PARKED
		require.Equal(t, parked, strings.Contains(text, `value="requeue"`), state)
		require.Equal(t, parked, strings.Contains(text, `value="discard"`), state)
	}
	_, text := s.get(t, "/dead-letters")
	require.Equal(t, 1, strings.Count(text, `name="id"`))
	form := url.Values{"do": {"discard"}, "all": {"yes"}, "note": {"old"}}
	_, text = s.post(t, "/dead-letters/act", form)
	require.Contains(t, text, "Discard 1<")

	s.entries = s.entries[:3]
	_, text = s.get(t, "/dead-letters")
	require.NotContains(t, text, `name="do"`)
	code, _ := s.post(t, "/dead-letters/act", form)
	require.Equal(t, http.StatusBadRequest, code)
}

func TestWhatCameOfTheReplaysIsToldInWordsBesideTheFirstFailure(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.entries = letters(1)
	e := s.entries[0]
	page := "/dead-letters/" + hex.EncodeToString(e.GetEntryId())
	const failed, givenBack = dedupv1.ReplayResult_REPLAY_RESULT_FAILED, dedupv1.ReplayResult_REPLAY_RESULT_GIVEN_BACK
	for _, c := range []struct {
		tried  int64
		result dedupv1.ReplayResult
		says   string
	}{
		{0, 0, "<dd>none</dd>"},
		{1, 0, "1; nobody told how it ended"},
		{2, failed, "2; the last one failed"},
		{0, givenBack, "none; the last claim was given back without a try"},
	} {
		e.Replays, e.Result = c.tried, c.result
		_, text := s.get(t, page)
		require.Contains(t, text, c.says)
		require.NotContains(t, text, "Replay failed with")
	}
	var err error
	e.ReplayStatus, err = proto.Marshal(status.New(codes.NotFound, "no <route>").Proto())
	require.NoError(t, err)
	_, text := s.get(t, page)
	require.Contains(t, text, "<dd>Unavailable</dd>")
	require.Contains(t, text, "<dd>NotFound: no &lt;route&gt;</dd>")
}

// A06: somebody else was faster.
func TestAVerdictOnAStaleVersionIsToldToLookAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.records = []*dedupv1.RecordInfo{unknownRecord()}
	refused, err := status.New(codes.FailedPrecondition, "it has changed").WithDetails(&errdetails.ErrorInfo{Domain: "dedup.v1", Reason: "RECORD_CHANGED"})
	require.NoError(t, err)
	s.refuse = refused.Err()
	record := "/records/" + hex.EncodeToString(s.records[0].GetRecordId())
	code, text := s.post(t, record+"/resolve", url.Values{
		"version": {"0000000000000009"}, "note": {"n"}, "verdict": {"completed"}, "confirm": {"yes"},
	})
	require.Equal(t, http.StatusConflict, code)
	require.Contains(t, text, "your verdict was not taken. Look at the record again")
	require.Contains(t, text, `href="/console`+record+`">Look at it again`)
}

func TestWhatIsMissingOrDamagedIsSaidInWords(t *testing.T) {
	t.Parallel()
	s := newSite(t, console.Options{})
	s.records = []*dedupv1.RecordInfo{unknownRecord()}
	s.refuse = status.Error(codes.Unavailable, "the store is away")
	record := "/records/" + hex.EncodeToString(s.records[0].GetRecordId()) + "/resolve"
	for name, try := range map[string]struct {
		path string
		form url.Values // nil: GET
		code int
		says string
	}{
		"no page":         {"/nowhere", nil, http.StatusNotFound, "no such page"},
		"a short id":      {"/records/0707", nil, http.StatusBadRequest, "64 hex digits"},
		"no such entry":   {"/dead-letters/" + strings.Repeat("0", 32), nil, http.StatusServiceUnavailable, "store is away"},
		"bad token":       {"/records?from=zz", nil, http.StatusBadRequest, "first page"},
		"bad code":        {"/dead-letters?code=x", nil, http.StatusBadRequest, "0 to 16"},
		"no verdict":      {record, url.Values{"version": {"0000000000000009"}, "note": {"n"}}, http.StatusBadRequest, "whether the effect happened"},
		"no basis":        {record, url.Values{"version": {"0000000000000009"}, "note": {"n"}, "verdict": {"released"}}, http.StatusBadRequest, "no earlier run"},
		"no note":         {record, url.Values{"version": {"0000000000000009"}, "verdict": {"completed"}}, http.StatusBadRequest, "audit log"},
		"no entries":      {"/dead-letters/act", url.Values{"do": {"discard"}, "note": {"n"}}, http.StatusBadRequest, "at least one"},
		"unknown action":  {"/dead-letters/act", url.Values{"do": {"burn"}, "note": {"n"}}, http.StatusBadRequest, "choose what to do"},
		"a form too long": {"/records/find", url.Values{"key": {strings.Repeat("k", 2<<20)}}, http.StatusBadRequest, "too large"},
		"refused": {
			record,
			url.Values{"version": {"0000000000000009"}, "note": {"n"}, "verdict": {"completed"}, "confirm": {"yes"}},
			http.StatusServiceUnavailable, "store is away",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			method, body := http.MethodGet, ""
			if try.form != nil {
				method, body = http.MethodPost, try.form.Encode()
			}
			code, text := s.send(t, method, try.path, body)
			require.Equal(t, try.code, code)
			require.Contains(t, text, try.says)
		})
	}
}

func between(t *testing.T, text, from, to string) string {
	t.Helper()
	_, text, ok := strings.Cut(text, from)
	require.True(t, ok, "no %s on the page", from)
	text, _, _ = strings.Cut(text, to)
	return text
}
