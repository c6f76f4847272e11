package guard_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors/guard"
)

// desk is dedupd as a parker sees it.
type desk struct {
	dedupv1.DeadLetterServiceClient

	mu      sync.Mutex
	refuse  func(*dedupv1.ParkRequest) error // nil: everything is taken
	lost    bool                             // what is taken is not answered
	asked   int
	ids     map[string]bool                 // park ids taken
	entries map[string]*dedupv1.ParkRequest // by key: the last one
	counts  map[string]int
}

func newDesk() *desk {
	return &desk{ids: map[string]bool{}, entries: map[string]*dedupv1.ParkRequest{}, counts: map[string]int{}}
}

func (d *desk) Park(ctx context.Context, req *dedupv1.ParkRequest, _ ...grpc.CallOption) (*dedupv1.ParkResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if d.refuse != nil {
		if err := d.refuse(req); err != nil {
			return nil, err
		}
	}
	key := string(req.GetIdentity().GetKey())
	if !d.ids[string(req.GetParkId())] {
		d.ids[string(req.GetParkId())] = true
		d.counts[key]++
	}
	d.entries[key] = req
	if d.lost {
		return nil, errCut
	}
	return &dedupv1.ParkResponse{Entry: &dedupv1.DeadLetter{EntryId: []byte("entry of " + key)}}, nil
}

func (d *desk) set(refuse func(*dedupv1.ParkRequest) error, lost bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse, d.lost = refuse, lost
}

func (d *desk) taken() (keys, parks int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.entries), len(d.ids)
}

// entry is what was parked last for a key; count how often.
func (d *desk) entry(key string) (last *dedupv1.ParkRequest, count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.entries[key], d.counts[key]
}

func away(*dedupv1.ParkRequest) error { return errCut }

func full(*dedupv1.ParkRequest) error {
	s, err := status.New(codes.ResourceExhausted, "the namespace is at its cap").WithDetails(
		&errdetails.ErrorInfo{Domain: "dedup.v1", Reason: "QUOTA_EXCEEDED"}, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Minute)})
	if err != nil {
		return err
	}
	return s.Err()
}

// heard counts what a parker's observer is told.
type heard struct {
	mu                    sync.Mutex
	parked, spooled, lost int
	failed, waiting       int
}

func (o *heard) observer() guard.ParkObserver {
	add := func(n *int) {
		o.mu.Lock()
		defer o.mu.Unlock()
		*n++
	}
	return guard.ParkObserver{
		Parked:      func(string, dedupv1.DeadLetterKind) { add(&o.parked) },
		Spooled:     func(string, dedupv1.DeadLetterKind) { add(&o.spooled) },
		Lost:        func(string) { add(&o.lost) },
		SpoolFailed: func() { add(&o.failed) },
		Waiting: func(n int, _ int64) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.waiting = n
		},
	}
}

func parker(t *testing.T, d *desk, o *heard, c guard.ParkerConfig) *guard.Parker {
	t.Helper()
	c.DeadLetters, c.Observer = d, o.observer()
	p, err := guard.NewParker(c)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func letter(key, note string) *dedupv1.ParkRequest {
	return &dedupv1.ParkRequest{
		Record: &dedupv1.ParkRequest_Identity{Identity: &dedupv1.Identity{Namespace: "test", Operation: "/pay.v1.Pay/Charge", Key: []byte(key)}},
		Kind:   dedupv1.DeadLetterKind_DEAD_LETTER_KIND_EXHAUSTED, Method: "/pay.v1.Pay/Charge", Note: note,
		Request: &dedupv1.Response{Value: make([]byte, 100)},
	}
}

func TestADeadLetterIsParkedAndItsIDTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := newDesk(), &heard{}
		p := parker(t, d, o, guard.ParkerConfig{})
		kept := p.Park(t.Context(), letter("k", ""), time.Second)
		require.Equal(t, guard.Parked{Entry: []byte("entry of k")}, kept)
		require.Equal(t, heard{parked: 1}, o.counts())
	})
}

func (o *heard) counts() heard {
	o.mu.Lock()
	defer o.mu.Unlock()
	return heard{parked: o.parked, spooled: o.spooled, lost: o.lost, failed: o.failed, waiting: o.waiting}
}

// G03: one key is one entry in the spool too, and a lost answer parks nothing
// twice.
func TestWhatDedupdDoesNotTakeIsSpooledOncePerKeyAndDrainedWhenItIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := newDesk(), &heard{}
		d.set(nil, true) // it is taken, and the answer is lost
		p := parker(t, d, o, guard.ParkerConfig{})
		require.True(t, p.Park(t.Context(), letter("lost", ""), time.Second).Spooled)
		d.set(away, false)
		for n := range 3 {
			require.True(t, p.Park(t.Context(), letter("k", fmt.Sprint("try ", n)), time.Second).Spooled)
		}
		pass(time.Second)
		require.Equal(t, heard{spooled: 4, waiting: 2}, o.counts(), "one letter per key waits")

		d.set(nil, false)
		pass(time.Minute)
		keys, parks := d.taken()
		require.Equal(t, []int{2, 2}, []int{keys, parks})
		last, _ := d.entry("k")
		require.Equal(t, "try 2", last.GetNote(), "the newest one stands")
		_, count := d.entry("lost")
		require.Equal(t, 1, count, "the park id makes the drain harmless")
		require.Zero(t, o.counts().waiting)
	})
}

func TestWhileDedupdIsKnownToBeAwayNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := newDesk(), &heard{}
		d.set(away, false)
		p := parker(t, d, o, guard.ParkerConfig{})
		p.Park(t.Context(), letter("1", ""), time.Second)
		synctest.Wait()
		d.mu.Lock()
		asked := d.asked
		d.mu.Unlock()
		p.Park(t.Context(), letter("2", ""), time.Second)
		d.mu.Lock()
		require.Equal(t, asked, d.asked)
		d.mu.Unlock()
	})
}

// G03: at the cap nothing is dropped; it waits here until there is room.
func TestWhatTheCapRefusesWaitsForRoomAndHoldsNobodyElseUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := newDesk(), &heard{}
		d.set(func(q *dedupv1.ParkRequest) error {
			if string(q.GetIdentity().GetKey()) == "capped" {
				return full(q)
			}
			return nil
		}, false)
		p := parker(t, d, o, guard.ParkerConfig{})
		require.True(t, p.Park(t.Context(), letter("capped", ""), time.Second).Spooled)
		require.NotNil(t, p.Park(t.Context(), letter("other", ""), time.Second).Entry)
		pass(72 * time.Hour)
		require.Equal(t, heard{parked: 1, spooled: 1, waiting: 1}, o.counts(), "it is never given up")
		d.set(nil, false)
		pass(3 * time.Minute)
		keys, _ := d.taken()
		require.Equal(t, 2, keys)
	})
}

func TestASpoolOnDiskSurvivesTheProcessAndATornEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d, o := newDesk(), &heard{}
		d.set(away, false)
		p := parker(t, d, o, guard.ParkerConfig{Spool: dir})
		for _, key := range []string{"a", "b", "b", "torn"} {
			require.True(t, p.Park(t.Context(), letter(key, ""), time.Second).Spooled)
		}
		path := filepath.Join(dir, "deadletters")
		data, err := os.ReadFile(path)
		require.NoError(t, err, "it is on disk before the caller has its error")
		p.Close()
		require.Zero(t, o.counts().lost, "what is on disk is not given up")
		require.NoError(t, os.WriteFile(path, data[:len(data)-5], 0o600))

		d.set(nil, false)
		next := &heard{}
		parker(t, d, next, guard.ParkerConfig{Spool: dir})
		pass(time.Minute)
		keys, parks := d.taken()
		require.Equal(t, []int{2, 2}, []int{keys, parks}, "a and b, once each")
		require.Zero(t, next.counts().waiting)
		_, err = guard.NewParker(guard.ParkerConfig{DeadLetters: d, Spool: dir})
		require.ErrorContains(t, err, "another process")
	})
}

// G03: a full spool refuses the newest, loudly, and forgets nothing.
func TestAFullSpoolIsToldAndKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]guard.ParkerConfig{
		"entries": {SpoolEntries: 2}, "bytes": {SpoolBytes: 1500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d, o := newDesk(), &heard{}
				d.set(away, false)
				p := parker(t, d, o, c)
				require.True(t, p.Park(t.Context(), letter("1", ""), time.Second).Spooled)
				require.True(t, p.Park(t.Context(), letter("2", ""), time.Second).Spooled)
				require.Equal(t, guard.Parked{}, p.Park(t.Context(), letter("3", ""), time.Second))
				require.True(t, p.Park(t.Context(), letter("1", "again"), time.Second).Spooled, "its key is there already")
				require.Equal(t, heard{spooled: 3, lost: 1, waiting: 2}, o.counts())
				d.set(nil, false)
				pass(time.Minute)
				keys, _ := d.taken()
				require.Equal(t, 2, keys)
			})
		})
	}
}

func TestWhatDedupdRefusesForGoodIsToldAsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := newDesk(), &heard{}
		d.set(func(q *dedupv1.ParkRequest) error {
			if q.GetRequest() != nil || string(q.GetIdentity().GetKey()) == "hopeless" {
				return status.Error(codes.InvalidArgument, "the request is too large")
			}
			return nil
		}, false)
		p := parker(t, d, o, guard.ParkerConfig{})
		require.NotNil(t, p.Park(t.Context(), letter("large", ""), time.Second).Entry, "better without its request than not at all")
		large, _ := d.entry("large")
		require.Nil(t, large.GetRequest())
		require.Equal(t, guard.Parked{}, p.Park(t.Context(), letter("hopeless", ""), time.Second))
		require.Equal(t, heard{parked: 1, lost: 1}, o.counts())
	})
}

func TestWhatIsOnlyInMemoryIsToldAsLostAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := newDesk(), &heard{}
		d.set(away, false)
		p := parker(t, d, o, guard.ParkerConfig{CloseTime: time.Second})
		p.Park(t.Context(), letter("k", ""), time.Second)
		p.Close()
		require.Equal(t, heard{spooled: 1, lost: 1}, o.counts())
		require.Equal(t, guard.Parked{}, p.Park(t.Context(), letter("late", ""), time.Second), "and after it everything is")
	})
}

func TestAParkerSaysWhatItMisses(t *testing.T) {
	t.Parallel()
	_, err := guard.NewParker(guard.ParkerConfig{})
	require.ErrorContains(t, err, "DeadLetterService")
	_, err = guard.NewParker(guard.ParkerConfig{DeadLetters: newDesk(), SpoolEntries: -1})
	require.ErrorContains(t, err, "negative")
}
