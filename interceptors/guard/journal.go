package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

// A journal is one file of frames: length and CRC-32C, four bytes each, big
// endian, then the payload. Nothing is changed in place.
const (
	journalName  = "completions"
	journalLimit = 2 * MaxPendingBytes // bytes of the file
	spoolName    = "deadletters"
	frameHeader  = 8
	maxFrame     = 16 << 20

	kindComplete = 'C'
	kindRelease  = 'R'
	kindPark     = 'P'
	kindDone     = 'D'
)

var (
	errJournalFull   = errors.New("the journal is full")
	errJournalClosed = errors.New("the journal is closed")
	errFrame         = errors.New("a frame of the journal cannot be read")
)

// journal keeps on disk what dedupd has not acknowledged, over a restart of the
// process. append returns once the letter is on disk. It is safe for concurrent
// use.
type journal struct {
	dir   string
	name  string // of the file
	lock  *os.File
	limit int64 // bytes of the file

	mu   sync.Mutex
	f    *os.File // nil: closed
	size int64
	next uint64
	live map[uint64]span // letters that are not done
}

type span struct{ at, length int64 }

// openJournal opens the journal of an engine in dir.
func openJournal(dir string) (j *journal, letters []*letter, torn int64, err error) {
	return openFile(dir, journalName, journalLimit)
}

// openFile opens a journal in dir, makes it if there is none, and returns the
// letters that are not done, in their order. torn is how many bytes at its end a
// crash has left unreadable; they are cut off.
func openFile(dir, name string, limit int64) (j *journal, letters []*letter, torn int64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("guard: open the journal: %w", err)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, 0, err
	}
	j = &journal{dir: dir, name: name, limit: limit, next: 1, live: map[uint64]span{}}
	if j.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, nil, 0, err
	}
	if err := lockFile(j.lock); err != nil {
		return nil, nil, 0, errors.Join(fmt.Errorf("%s is in use by another process, give each process a directory of its own: %w", dir, err), j.lock.Close())
	}
	if j.f, err = os.OpenFile(j.path(), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, nil, 0, errors.Join(err, j.lock.Close())
	}
	letters, torn, err = j.load()
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return nil, nil, 0, errors.Join(err, j.f.Close(), j.lock.Close())
	}
	return j, letters, torn, nil
}

func (j *journal) path() string { return filepath.Join(j.dir, j.name) }

// load reads the file up to its first unreadable frame and cuts it there.
func (j *journal) load() (letters []*letter, torn int64, err error) {
	data, err := io.ReadAll(j.f)
	if err != nil {
		return nil, 0, err
	}
	byID := map[uint64]*letter{}
	var order []uint64
	for {
		payload, ok := frameAt(data[j.size:])
		if !ok {
			break
		}
		kind, id, l, err := decodeLetter(payload)
		if err != nil {
			break // of a later version, or nonsense under a right checksum
		}
		length := int64(frameHeader + len(payload))
		if kind == kindDone {
			delete(byID, id)
			delete(j.live, id)
		} else {
			byID[id], j.live[id] = l, span{at: j.size, length: length}
			order = append(order, id)
		}
		j.size += length
		j.next = max(j.next, id+1)
	}
	for _, id := range order {
		if l := byID[id]; l != nil {
			letters = append(letters, l)
		}
	}
	torn = int64(len(data)) - j.size
	if torn > 0 {
		if err := j.f.Truncate(j.size); err != nil {
			return nil, 0, err
		}
	}
	return letters, torn, nil
}

// frameAt returns the payload of the first frame in data.
func frameAt(data []byte) ([]byte, bool) {
	if len(data) < frameHeader {
		return nil, false
	}
	length := binary.BigEndian.Uint32(data)
	if length > maxFrame || int(length) > len(data)-frameHeader {
		return nil, false
	}
	payload := data[frameHeader : frameHeader+int(length)]
	return payload, binary.BigEndian.Uint32(data[4:]) == checksum(payload)
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func frame(payload []byte) []byte {
	b := make([]byte, frameHeader, frameHeader+len(payload))
	binary.BigEndian.PutUint32(b, uint32(len(payload))) //nolint:gosec // at most maxFrame
	binary.BigEndian.PutUint32(b[4:], checksum(payload))
	return append(b, payload...)
}

// append writes a letter and syncs it to disk.
func (j *journal) append(l *letter) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return errJournalClosed
	}
	payload, err := encodeLetter(j.next, l)
	if err != nil {
		return err
	}
	b := frame(payload)
	if j.size+int64(len(b)) > j.limit {
		if err := j.compactLocked(); err != nil {
			return err
		}
	}
	if len(payload) > maxFrame || j.size+int64(len(b)) > j.limit {
		return errJournalFull
	}
	if err := j.writeLocked(b); err != nil {
		return err
	}
	if err := j.f.Sync(); err != nil {
		return err
	}
	l.id = j.next
	j.live[l.id] = span{at: j.size - int64(len(b)), length: int64(len(b))}
	j.next++
	return nil
}

// writeLocked adds b at the end. After a failure the end is where it was: the
// next write goes over what this one left.
func (j *journal) writeLocked(b []byte) error {
	if _, err := j.f.WriteAt(b, j.size); err != nil {
		return err
	}
	j.size += int64(len(b))
	return nil
}

// done marks a letter as delivered. That is not synced: what is delivered twice
// gets the same answer twice.
func (j *journal) done(id uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.live, id)
	if j.f == nil {
		return
	}
	if len(j.live) == 0 && j.f.Truncate(0) == nil {
		j.size = 0
		return
	}
	payload := binary.BigEndian.AppendUint64([]byte{kindDone}, id)
	_ = j.writeLocked(frame(payload)) // else it is delivered once more after a restart
}

// compactLocked writes the living letters into a new file, which then takes the
// old one's place.
func (j *journal) compactLocked() (err error) {
	f, err := os.OpenFile(j.path()+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	live := make(map[uint64]span, len(j.live))
	var size int64
	for _, id := range slices.Sorted(maps.Keys(j.live)) {
		s := j.live[id]
		if _, err := io.Copy(io.NewOffsetWriter(f, size), io.NewSectionReader(j.f, s.at, s.length)); err != nil {
			return err
		}
		live[id] = span{at: size, length: s.length}
		size += s.length
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), j.path()); err != nil {
		return err
	}
	old := j.f
	j.f, j.size, j.live = f, size, live
	_ = old.Close() // its file is gone
	return syncDir(j.dir)
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return
	}
	// Whatever is not on disk yet is a mark that may be lost.
	_ = j.f.Close()
	_ = j.lock.Close()
	j.f = nil
}

// syncDir makes what was done to names in dir last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// encodeLetter: kind, id, whether the answer stands, the length of a
// LookupRequest with the fingerprints, that, and the message.
func encodeLetter(id uint64, l *letter) ([]byte, error) {
	kind, stands := byte(kindRelease), byte(0)
	switch {
	case l.complete != nil:
		kind = kindComplete
	case l.park != nil:
		kind = kindPark
	}
	if l.stands {
		stands = 1
	}
	request, err := proto.Marshal(&dedupv1.LookupRequest{Fingerprints: l.fingerprints})
	if err != nil {
		return nil, err
	}
	b := append(binary.BigEndian.AppendUint64([]byte{kind}, id), stands)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(request))), request...) //nolint:gosec // four digests
	return proto.MarshalOptions{}.MarshalAppend(b, l.message())
}

func decodeLetter(b []byte) (kind byte, id uint64, l *letter, err error) {
	const head = 9
	if len(b) < head {
		return 0, 0, nil, errFrame
	}
	kind, id = b[0], binary.BigEndian.Uint64(b[1:])
	if kind == kindDone {
		return kind, id, nil, nil
	}
	rest := b[head:]
	if len(rest) < 5 || int64(len(rest)-5) < int64(binary.BigEndian.Uint32(rest[1:])) {
		return 0, 0, nil, errFrame
	}
	request, message := rest[5:5+binary.BigEndian.Uint32(rest[1:])], rest[5+binary.BigEndian.Uint32(rest[1:]):]
	l = &letter{id: id, stands: rest[0] == 1}
	var look dedupv1.LookupRequest
	if err := proto.Unmarshal(request, &look); err != nil {
		return 0, 0, nil, errFrame
	}
	l.fingerprints = look.GetFingerprints()
	var identity *dedupv1.Identity
	switch kind {
	case kindComplete:
		l.complete = &dedupv1.CompleteRequest{}
		err = proto.Unmarshal(message, l.complete)
		identity = l.complete.GetIdentity()
	case kindRelease:
		l.release = &dedupv1.ReleaseRequest{}
		err = proto.Unmarshal(message, l.release)
		identity = l.release.GetIdentity()
	case kindPark:
		l.park = &dedupv1.ParkRequest{}
		if proto.Unmarshal(message, l.park) != nil {
			return 0, 0, nil, errFrame
		}
		l.operation, l.recordID = l.park.GetMethod(), parkedKey(l.park)
		return kind, id, l, nil
	default:
		err = errFrame
	}
	if err != nil || identity == nil {
		return 0, 0, nil, errFrame
	}
	l.operation, l.recordID = identity.GetOperation(), string(RecordID(identity))
	return kind, id, l, nil
}
