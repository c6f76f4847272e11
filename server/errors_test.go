package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/storage"
)

// C04: every refusal can be told from the application's own codes.
func TestC04EveryRefusalSaysWhyAndWhetherToWait(t *testing.T) {
	t.Parallel()
	const lapsed = storage.DefaultLease + time.Second
	for name, c := range map[string]struct {
		code   codes.Code
		reason dedupv1.Reason
		waits  bool
		state  string
		call   func(t *testing.T, b *bundle) error
	}{
		"an unknown outcome that may still settle": {
			codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, true, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.grant(t, 1)
				b.store.advance(lapsed)
				return b.reserve(t, 2)
			},
		},
		"an unknown outcome that will not": {
			codes.FailedPrecondition, dedupv1.Reason_REASON_OUTCOME_UNKNOWN, false, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.grant(t, 1)
				b.store.advance(time.Hour)
				return b.reserve(t, 2)
			},
		},
		"a key used for another request": {
			codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_REUSED, false, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.grant(t, 1)
				req := reserveReq(2)
				req.Fingerprints = prints("another")
				_, err := b.dedup.Reserve(t.Context(), req)
				return err
			},
		},
		"a key past its retention": {
			codes.FailedPrecondition, dedupv1.Reason_REASON_KEY_EXPIRED, false, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				g := b.grant(t, 1)
				_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), ""))
				require.NoError(t, err)
				b.store.advance(storage.DefaultRetention + time.Second)
				return b.reserve(t, 2)
			},
		},
		"a holder that lost its grant": {
			codes.FailedPrecondition, dedupv1.Reason_REASON_STALE_HOLDER, false, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				g := b.grant(t, 1)
				b.store.advance(lapsed)
				_, err := b.dedup.Extend(t.Context(), &dedupv1.ExtendRequest{Identity: identity(), AttemptId: attempt(1), Fence: g.GetFence()})
				return err
			},
		},
		"a holder that has not found out": {
			codes.FailedPrecondition, dedupv1.Reason_REASON_NOT_RECONCILED, false, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.grant(t, 1)
				b.store.advance(lapsed)
				req := reserveReq(2)
				req.OnUnknown, req.Basis = dedupv1.OnUnknown_ON_UNKNOWN_RECONCILE, dedupv1.Basis_BASIS_INBOX
				res, err := b.dedup.Reserve(t.Context(), req)
				require.NoError(t, err)
				_, err = b.dedup.Release(t.Context(), releaseReq(2, res.GetGranted().GetFence(), dedupv1.Effect_EFFECT_REPEATABLE))
				return err
			},
		},
		"an operator before the lease's end": {
			codes.Aborted, dedupv1.Reason_REASON_IN_PROGRESS, true, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.grant(t, 1)
				_, err := b.admin.Resolve(t.Context(), resolveReq(b.look(t).GetVersion()))
				return err
			},
		},
		"an operator who looked at another version": {
			codes.FailedPrecondition, dedupv1.Reason_REASON_RECORD_CHANGED, false, "unknown",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.grant(t, 1)
				b.store.advance(lapsed)
				_, err := b.admin.Resolve(t.Context(), resolveReq(make([]byte, 8)))
				return err
			},
		},
		"a store out of reach": {
			codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE, true, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.store.fail(errDown)
				return b.reserve(t, 1)
			},
		},
		"a store that is closed": {
			codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE, true, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				require.NoError(t, b.store.Close())
				return b.reserve(t, 1)
			},
		},
		"a store that fails in a way nobody foresaw": {
			codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE, true, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.store.fail(status.Error(codes.Unknown, "raw"))
				return b.reserve(t, 1)
			},
		},
		"new work while draining": {
			codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE, true, "",
			func(t *testing.T, b *bundle) error {
				t.Helper()
				b.gate.drain()
				return b.reserve(t, 1)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			err := c.call(t, b)
			d := requireRefused(t, err, c.code, c.reason)
			require.Equal(t, c.waits, d.retry != nil)
			if c.waits {
				require.Positive(t, d.retry.GetRetryDelay().AsDuration())
			}
			require.Equal(t, testOperation, d.info.GetMetadata()["operation"])
			require.Equal(t, storageIdentity().RecordID().Short(), d.info.GetMetadata()["record"])
			require.Equal(t, c.state, d.info.GetMetadata()["state"])
			require.NotContains(t, err.Error(), "sda1")
			require.NotContains(t, b.logs.String(), secretKey)
			require.InDelta(t, 1, b.metric(t, "dedupd_calls_total", "reason", d.info.GetReason(), "code", c.code.String()), 0)
		})
	}
}

func (b *bundle) reserve(t *testing.T, n byte) error {
	t.Helper()
	_, err := b.dedup.Reserve(t.Context(), reserveReq(n))
	return err
}

func (b *bundle) look(t *testing.T) *dedupv1.RecordInfo {
	t.Helper()
	res, err := b.dedup.Lookup(t.Context(), lookupReq(0))
	require.NoError(t, err)
	return res.GetRecord()
}

func TestEveryVerdictHasARow(t *testing.T) {
	t.Parallel()
	seen := map[dedupv1.Reason]bool{}
	for v := storage.VerdictInProgress; v <= storage.VerdictFull; v++ {
		r := refused(v)
		require.NotEqual(t, dedupv1.Reason_REASON_STORE_UNAVAILABLE, r.reason, "%s", v)
		require.False(t, seen[r.reason], "%s", v)
		seen[r.reason] = true
		require.NotEmpty(t, r.message)
	}
	require.Equal(t, dedupv1.Reason_REASON_STORE_UNAVAILABLE, refused(storage.VerdictGranted).reason)
}

func TestH01TheStoreComesBackWithoutARestart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.fail(errDown)
	for range 3 {
		requireRefused(t, b.reserve(t, 1), codes.Unavailable, dedupv1.Reason_REASON_STORE_UNAVAILABLE)
	}
	require.Equal(t, 3*storeTries, b.store.calls("Reserve"))
	require.InDelta(t, 3, b.metric(t, "dedupd_store_errors_total"), 0)
	require.InDelta(t, 3*(storeTries-1), b.metric(t, "dedupd_store_retries_total"), 0)
	require.Equal(t, 1, strings.Count(b.logs.String(), "the store failed"), "once a second at most")
	require.Contains(t, b.logs.String(), "sda1", "the operator is told the cause")
	b.store.fail(nil)
	b.grant(t, 1)
}

func TestAShortFaultOfTheStoreIsNotSeen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	left := storeTries - 1
	b.store.hook(func(context.Context, string) error {
		if left--; left >= 0 {
			return errDown
		}
		return nil
	})
	b.grant(t, 1)
}

func TestTriesStayWithinTheDeadline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var cancel context.CancelFunc
	ctx, cancel := context.WithCancel(t.Context())
	b.store.hook(func(context.Context, string) error { cancel(); return errDown })
	_, err := b.dedup.Reserve(ctx, reserveReq(1))
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Equal(t, 1, b.store.calls("Reserve"))

	ctx, cancel = context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = b.dedup.Reserve(ctx, reserveReq(1))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
}

// TestMalformedInputIsRefusedWithItsField sends what breaks a limit.
func TestMalformedInputIsRefusedWithItsField(t *testing.T) {
	t.Parallel()
	badStatus := []byte{0xff}
	okStatus, err := proto.Marshal(&spb.Status{Message: "code is OK"})
	require.NoError(t, err)
	reserve := func(change func(*dedupv1.ReserveRequest)) func(context.Context, *bundle) error {
		return func(ctx context.Context, b *bundle) error {
			req := reserveReq(1)
			change(req)
			_, err := b.dedup.Reserve(ctx, req)
			return err
		}
	}
	complete := func(change func(*dedupv1.CompleteRequest)) func(context.Context, *bundle) error {
		return func(ctx context.Context, b *bundle) error {
			req := completeReq(1, 1, "x")
			change(req)
			_, err := b.dedup.Complete(ctx, req)
			return err
		}
	}
	release := func(change func(*dedupv1.ReleaseRequest)) func(context.Context, *bundle) error {
		return func(ctx context.Context, b *bundle) error {
			req := releaseReq(1, 1, dedupv1.Effect_EFFECT_NONE)
			change(req)
			_, err := b.dedup.Release(ctx, req)
			return err
		}
	}
	header := func(key, value string) func(context.Context, *bundle) error {
		return complete(func(r *dedupv1.CompleteRequest) {
			r.Outcome.Headers = []*dedupv1.MetadataEntry{{Key: "ok", Value: []byte("v")}, {Key: key, Value: []byte(value)}}
		})
	}
	for name, c := range map[string]struct {
		field string
		call  func(context.Context, *bundle) error
	}{
		"empty key":       {"identity.key", reserve(func(r *dedupv1.ReserveRequest) { r.Identity.Key = nil })},
		"long key":        {"identity.key", reserve(func(r *dedupv1.ReserveRequest) { r.Identity.Key = make([]byte, 256) })},
		"spaced key":      {"identity.key", reserve(func(r *dedupv1.ReserveRequest) { r.Identity.Key = []byte("k ") })},
		"no identity":     {"identity", reserve(func(r *dedupv1.ReserveRequest) { r.Identity = nil })},
		"empty request":   {"identity", reserve(func(r *dedupv1.ReserveRequest) { proto.Reset(r) })},
		"namespace":       {"identity.namespace", reserve(func(r *dedupv1.ReserveRequest) { r.Identity.Namespace = "Billing" })},
		"no operation":    {"identity.operation", reserve(func(r *dedupv1.ReserveRequest) { r.Identity.Operation = "" })},
		"control in op":   {"identity.operation", reserve(func(r *dedupv1.ReserveRequest) { r.Identity.Operation = "a\nb" })},
		"long caller":     {"identity.caller", reserve(func(r *dedupv1.ReserveRequest) { r.Identity.Caller = make([]byte, 256) })},
		"attempt id":      {"attempt_id", reserve(func(r *dedupv1.ReserveRequest) { r.AttemptId = r.AttemptId[1:] })},
		"no fingerprint":  {"fingerprints", reserve(func(r *dedupv1.ReserveRequest) { r.Fingerprints = nil })},
		"nil fingerprint": {"fingerprints[0].version", reserve(func(r *dedupv1.ReserveRequest) { r.Fingerprints = []*dedupv1.Fingerprint{nil} })},
		"long digest":     {"fingerprints[0].digest", reserve(func(r *dedupv1.ReserveRequest) { r.Fingerprints[0].Digest = make([]byte, 65) })},
		"short lease":     {"lease", reserve(func(r *dedupv1.ReserveRequest) { r.Lease = durationpb.New(time.Millisecond) })},
		"long lease":      {"lease", reserve(func(r *dedupv1.ReserveRequest) { r.Lease = durationpb.New(16 * time.Minute) })},
		"long extension": {"lease", func(ctx context.Context, b *bundle) error {
			_, err := b.dedup.Extend(ctx, &dedupv1.ExtendRequest{
				Identity: identity(), AttemptId: attempt(1), Fence: 1, Lease: durationpb.New(storage.MaxHandedLease + 1),
			})
			return err
		}},
		"long wait":      {"wait", reserve(func(r *dedupv1.ReserveRequest) { r.Wait = durationpb.New(31 * time.Second) })},
		"unknown enum":   {"on_unknown", reserve(func(r *dedupv1.ReserveRequest) { r.OnUnknown = 99 })},
		"no basis":       {"", reserve(func(r *dedupv1.ReserveRequest) { r.OnUnknown = dedupv1.OnUnknown_ON_UNKNOWN_RECONCILE })},
		"no fence":       {"fence", complete(func(r *dedupv1.CompleteRequest) { r.Fence = 0 })},
		"no outcome":     {"outcome", complete(func(r *dedupv1.CompleteRequest) { r.Outcome = nil })},
		"status bytes":   {"outcome.status", complete(func(r *dedupv1.CompleteRequest) { r.Outcome.Status = badStatus })},
		"long retention": {"retention", complete(func(r *dedupv1.CompleteRequest) { r.Retention = durationpb.New(401 * 24 * time.Hour) })},
		"large response": {"outcome.response.value", complete(func(r *dedupv1.CompleteRequest) {
			r.Outcome.GetResponse().Value = make([]byte, storage.DefaultMaxOutcome+1)
		})},
		"cookie":           {"outcome.headers[1]", header("set-cookie", "s=1")},
		"authorization":    {"outcome.headers[1]", header("authorization", "x")},
		"challenge":        {"outcome.headers[1]", header("www-authenticate", "x")},
		"transport":        {"outcome.headers[1]", header("grpc-status", "0")},
		"upper case":       {"outcome.headers[1]", header("X-Id", "1")},
		"binary text":      {"outcome.headers[1]", header("x-id", "\x00")},
		"unfenced effect":  {"", release(func(r *dedupv1.ReleaseRequest) { r.Fence, r.Effect = 0, dedupv1.Effect_EFFECT_UNKNOWN })},
		"no effect":        {"effect", release(func(r *dedupv1.ReleaseRequest) { r.Effect = 0 })},
		"error is OK":      {"error.status", release(func(r *dedupv1.ReleaseRequest) { r.Error = &dedupv1.Outcome{Status: okStatus} })},
		"error bytes":      {"error.status", release(func(r *dedupv1.ReleaseRequest) { r.Error = &dedupv1.Outcome{Status: badStatus} })},
		"error of unknown": {"error", release(func(r *dedupv1.ReleaseRequest) { r.Error, r.Effect = &dedupv1.Outcome{}, dedupv1.Effect_EFFECT_UNKNOWN })},
		"long note":        {"note", release(func(r *dedupv1.ReleaseRequest) { r.Note = strings.Repeat("n", 1025) })},
		"lookup of nothing": {"record", func(ctx context.Context, b *bundle) error {
			_, err := b.dedup.Lookup(ctx, &dedupv1.LookupRequest{})
			return err
		}},
		"record id": {"record_id", func(ctx context.Context, b *bundle) error {
			_, err := b.dedup.Lookup(ctx, &dedupv1.LookupRequest{Record: &dedupv1.LookupRequest_RecordId{RecordId: []byte("x")}})
			return err
		}},
		"page token": {"page_token", func(ctx context.Context, b *bundle) error {
			_, err := b.admin.ListRecords(ctx, &dedupv1.ListRecordsRequest{PageToken: []byte("x")})
			return err
		}},
		"page size": {"page_size", func(ctx context.Context, b *bundle) error {
			_, err := b.admin.ListRecords(ctx, &dedupv1.ListRecordsRequest{PageSize: 1001})
			return err
		}},
		"no version": {"version", func(ctx context.Context, b *bundle) error {
			_, err := b.admin.Resolve(ctx, resolveReq(nil))
			return err
		}},
		"no basis to release": {"released.basis", func(ctx context.Context, b *bundle) error {
			req := resolveReq(make([]byte, 8))
			req.GetReleased().Basis = 0
			_, err := b.admin.Resolve(ctx, req)
			return err
		}},
		"no note": {"note", func(ctx context.Context, b *bundle) error {
			req := resolveReq(make([]byte, 8))
			req.Note = ""
			_, err := b.admin.Resolve(ctx, req)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			err := c.call(t.Context(), b)
			reason := dedupv1.Reason_REASON_INPUT_INVALID
			if c.field == "identity.key" {
				reason = dedupv1.Reason_REASON_KEY_INVALID
			}
			d := requireRefused(t, err, codes.InvalidArgument, reason)
			require.Len(t, d.bad.GetFieldViolations(), 1)
			require.Equal(t, c.field, d.bad.GetFieldViolations()[0].GetField(), "%v", err)
			require.NotContains(t, err.Error(), c.field+": "+c.field+" ", "the field is named once")
			require.Nil(t, d.retry)
			require.Empty(t, b.store.asked, "refused before any store call")
		})
	}
}

func TestAnOutcomeMayBeAsLargeAsTheLimit(t *testing.T) {
	t.Parallel()
	for _, n := range []int{storage.CeilMaxOutcome - 1, storage.CeilMaxOutcome} {
		b := setup(t, func(c *Config) { c.MaxOutcome = storage.CeilMaxOutcome })
		g := b.grant(t, 1)
		require.EqualValues(t, storage.CeilMaxOutcome, g.GetMaxOutcomeBytes())
		_, err := b.dedup.Complete(t.Context(), completeReq(1, g.GetFence(), strings.Repeat("x", n)))
		require.NoError(t, err)
		res, err := b.dedup.Reserve(t.Context(), reserveReq(2))
		require.NoError(t, err)
		require.Len(t, res.GetCompleted().GetOutcome().GetResponse().GetValue(), n)
	}
}

func TestAPanicFailsOneCallAndNoMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.hook(func(context.Context, string) error { panic(errors.New(secretKey)) }) //nolint:forbidigo // what is tested
	err := b.reserve(t, 1)
	require.Equal(t, codes.Internal, status.Code(err))
	require.NotContains(t, err.Error(), secretKey)
	require.Contains(t, b.logs.String(), "fake_test.go", "the stack is logged")
	require.NotContains(t, b.logs.String(), secretKey)
	require.InDelta(t, 1, b.metric(t, "dedupd_panics_total"), 0)
	require.InDelta(t, 1, b.metric(t, "dedupd_calls_total", "code", "Internal"), 0)
	require.Zero(t, b.gate.active())
	b.store.hook(nil)
	b.grant(t, 1)
}
