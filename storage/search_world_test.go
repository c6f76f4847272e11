package storage

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"time"
)

// The search explores everything that can happen to one key: handler attempts
// that stop at any point for any time (a crash is a stop for ever), messages
// that arrive late, never or many times, replies that are lost, effects that
// land later, and an operator. The rules are the real Apply.

const maxProcs = 3

const (
	searchLease     = 10 * time.Second
	searchHold      = 3 * time.Second
	searchRetention = 300 * time.Second
	searchTombstone = 600 * time.Second
)

// pc is where an attempt stands.
type pc uint8

const (
	idle       pc = iota
	reserving     // Reserve is on its way
	looking       // granted to reconcile
	sawApplied    // the look found the effect
	sawNothing    // the look found nothing
	beginning     // BeginRun is on its way
	running       // free to apply the effect
	sending       // the effect is on its way
	applied       // the effect happened, and the handler knows
	completing    // Complete is on its way
	releasing     // Release(NONE or REPEATABLE) is on its way
	done
)

// message is a kind of request of one attempt. What was sent once may arrive at
// any time, any number of times.
type message uint8

const (
	mReserve message = iota
	mGiveBack
	mBeginRun
	mExtend
	mComplete
	mReleaseNone
	mReleaseRepeatable
	mReleaseUnknown
	messages
)

// value names an outcome: none, a success or an error of one attempt, or the
// one that an operator gave.
type value uint8

const (
	noValue  value = 0
	okOf     value = 1 // + attempt
	errOf    value = okOf + maxProcs
	operator value = errOf + maxProcs
)

// outcomes holds one Outcome per value, so that records share them.
var outcomes = func() (all [operator + 1]*Outcome) {
	for i := range maxProcs {
		all[okOf+value(i)] = success(string(rune('a' + i)))
		all[errOf+value(i)] = failure(string(rune('a' + i)))
	}
	all[operator] = success("operator")
	return all
}()

// valueOf finds the name of an outcome, which Apply hands on as it is.
func valueOf(o *Outcome) value {
	for v := okOf; v <= operator; v++ {
		if o == outcomes[v] {
			return v
		}
	}
	return noValue
}

func (v value) success() bool { return v >= okOf && v < errOf || v == operator }

// proc is one handler attempt.
type proc struct {
	pc        pc
	out       value // what it completes with
	flying    bool  // its effect is on its way
	sent      uint16
	fence     Fence
	end       Instant // end of its lease as far as it knows
	flightEnd Instant // the deadline that its effect carries
}

// history is what the world remembers to judge the invariants; the rules never
// see it.
type history struct {
	granted   [maxProcs]Fence // the attempt's grant in this life of the record
	told      [maxProcs]Mode  // its mode, as told last
	current   int8            // the attempt granted last, -1 none
	run       int8            // the last attempt that was let run
	high      Fence           // the highest fence ever granted
	answered  value           // the success that a client has heard
	definite  bool            // a client has heard a definite error
	corrected bool            // the corrected request was granted
	// repeatable: a run has told that it left effects under child keys only.
	repeatable bool
	later      bool  // not the record's first life
	reopened   value // the final error that a replay opened, until the record is settled
}

// world is one state of the search.
type world struct {
	rec   *Record
	now   Instant
	procs [maxProcs]proc
	slow  *slowWrite

	effects  uint8 // of runs that nobody declared safe to rerun
	happened value // the response of the first effect
	children uint8 // requests with effects under child keys, a bit each
	mark     Fence // highest fence that the resource has seen
	row      bool  // the inbox has its row

	letters   []*DeadLetter // replaced, never written to
	parked    bool          // the client has sent its Park
	replayers [maxClaims]replayer
	claimed   uint8 // how often a Claim was granted

	opPC      pc // idle, looking, sawApplied, completing
	opSaw     bool
	opVersion int64

	history
}

// slowWrite is a write that a two-step store has decided on and not made yet.
type slowWrite struct {
	read, next *Record
	who        int
	msg        message
	verdict    Verdict
}

func firstWorld() world {
	w := world{now: 1_700_000_000_000_000}
	w.current, w.run = -1, -1
	return w
}

// key names the state up to what can make no difference: instants count from
// now, fences and versions by their order.
func (w *world) key(seed maphash.Seed) [2]uint64 {
	e := encoder{w: w, b: make([]byte, 0, 256)}
	e.ranks()
	e.record(w.rec)
	if w.slow != nil {
		e.record(w.slow.read)
		e.record(w.slow.next)
		e.bytes(uint8(w.slow.who), uint8(w.slow.msg))
	}
	for i := range w.procs {
		p := &w.procs[i]
		e.bytes(uint8(p.pc), uint8(p.out), bit(p.flying), uint8(p.sent), uint8(p.sent>>8), e.fence(p.fence))
		e.times(p.end, p.flightEnd)
		e.bytes(e.fence(w.granted[i]), uint8(w.told[i]))
	}
	e.bytes(w.effects, uint8(w.happened), w.children, e.fence(w.mark), bit(w.row))
	e.bytes(uint8(w.opPC), bit(w.opSaw), e.version(w.opVersion))
	e.letters()
	e.bytes(uint8(w.reopened), uint8(w.current), uint8(w.run), e.fence(w.high), uint8(w.answered), bit(w.definite), bit(w.corrected), bit(w.repeatable), bit(w.later))
	return [2]uint64{maphash.Bytes(seed, e.b), fnv(e.b)}
}

func fnv(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// encoder writes a world's key.
type encoder struct {
	w        *world
	b        []byte
	fences   [24]Fence
	versions [8]int64
	nf, nv   int
}

func (e *encoder) ranks() {
	add := func(f Fence) {
		if !slices.Contains(e.fences[:e.nf], f) {
			e.fences[e.nf] = f
			e.nf++
		}
	}
	addVersion := func(v int64) {
		if !slices.Contains(e.versions[:e.nv], v) {
			e.versions[e.nv] = v
			e.nv++
		}
	}
	recs := [3]*Record{e.w.rec}
	if e.w.slow != nil {
		recs[1], recs[2] = e.w.slow.read, e.w.slow.next
	}
	add(0)
	addVersion(0)
	addVersion(e.w.opVersion)
	for _, r := range recs {
		if r != nil {
			add(r.Fence)
			add(r.RunFence)
			addVersion(r.Version)
			addVersion(r.ResolvedFrom)
		}
	}
	for i := range e.w.procs {
		add(e.w.procs[i].fence)
		add(e.w.granted[i])
	}
	add(e.w.mark)
	add(e.w.high)
	for _, l := range e.w.letters {
		add(l.ClaimFence)
	}
	slices.Sort(e.fences[:e.nf])
	slices.Sort(e.versions[:e.nv])
}

func (e *encoder) bytes(b ...uint8)       { e.b = append(e.b, b...) }
func (e *encoder) fence(f Fence) uint8    { return uint8(slices.Index(e.fences[:e.nf], f)) }
func (e *encoder) version(v int64) uint8  { return uint8(slices.Index(e.versions[:e.nv], v)) }
func (e *encoder) fp(f Fingerprint) uint8 { return f[0].Server[0] }
func (e *encoder) times(limits ...Instant) { // what is over is over, however long
	for _, at := range limits {
		left := uint16(0xffff)
		if at != 0 {
			left = uint16(max(0, at.Sub(e.w.now)) / time.Second)
		}
		e.b = binary.BigEndian.AppendUint16(e.b, left)
	}
}

func (e *encoder) record(r *Record) {
	if r == nil {
		e.bytes(0)
		return
	}
	e.bytes(uint8(r.State), uint8(r.Mode), r.Attempt[0], r.RunAttempt[0], e.fence(r.Fence), e.fence(r.RunFence))
	e.bytes(bit(r.Open), bit(r.Bound), uint8(r.ReleasedAs), uint8(valueOf(r.Outcome)), uint8(r.Pins), uint8(valueOf(r.Reopened)))
	e.bytes(e.version(r.Version), e.version(r.ResolvedFrom))
	e.times(r.LeaseEnd, r.RunEnd, r.HoldEnd, r.ExpiresAt, r.DropAt)
	e.bytes(uint8(len(r.Ended)), uint8(len(r.Superseded)))
	for _, a := range r.Ended {
		e.bytes(a[0])
	}
	for _, f := range r.Superseded {
		e.bytes(e.fp(f))
	}
	if len(r.Fingerprint) > 0 {
		e.bytes(e.fp(r.Fingerprint))
	}
}
