package wire

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
)

// The versions of the protocol that this package speaks.
const (
	minVersion = 1
	maxVersion = 1
)

// magic stands first on a connection, after the frame's head.
const magic = "limpet"

// maxHello bounds the first frame of a peer that nobody knows yet.
const maxHello = 4 << 10

// Hello is what a side says of itself, a CBOR map; unknown members are passed
// over, so that newer versions can say more.
//
//	dialer                               acceptor
//	   │ ── HELLO (versions, who, limits) ──▶ │
//	   │ ◀── HELLO ─────────────────────────  │   both use the highest version
//	   │ ── CALL … ─────────────────────────▶ │   that both have, or end here
type Hello struct {
	MinVersion uint16   `cbor:"1,keyasint"`
	MaxVersion uint16   `cbor:"2,keyasint"`
	Node       [16]byte `cbor:"3,keyasint"`
	Boot       [16]byte `cbor:"4,keyasint"` // of the process
	History    [16]byte `cbor:"5,keyasint"` // of the data directory; zero for a client
	// InitialWindow and MaxCalls are what the peer may use until told otherwise.
	InitialWindow uint32 `cbor:"6,keyasint"`
	MaxCalls      uint32 `cbor:"7,keyasint"`
	// Software is for people.
	Software string `cbor:"8,keyasint,omitempty"`
	// ValueWindow is what the arguments of a method that the dialer calls may begin
	// with, said by the acceptor, and its result, said by the dialer. 0 means
	// InitialWindow.
	ValueWindow uint32 `cbor:"9,keyasint,omitempty"`
}

// NewHello is the hello of a process over a data directory. A zero boot ID
// becomes a random one.
func NewHello(node, history, boot [16]byte, software string) Hello {
	if boot == ([16]byte{}) {
		_, _ = rand.Read(boot[:]) // never fails (crypto/rand)
	}
	return Hello{
		MinVersion: minVersion, MaxVersion: maxVersion, Node: node, History: history, Boot: boot,
		InitialWindow: initialWindow, MaxCalls: maxCalls, Software: cut(software, 256), ValueWindow: valueWindow,
	}
}

// Process is the life of the process behind the hello.
func (h Hello) Process() Boot { return Boot{History: h.History, Boot: h.Boot} }

// window is what a body may begin with that is sent to the side which said h.
func (h Hello) window(kind Kind, byDialer bool) uint32 {
	if (kind == KindMethod || kind == KindTarget) && byDialer && h.ValueWindow > 0 {
		return h.ValueWindow
	}
	return h.InitialWindow
}

// errNotLimpet is what a peer gets that begins with something else.
var errNotLimpet = errors.New("the peer does not speak limpet's protocol")

// VersionError says that two processes have no version of the protocol in
// common.
type VersionError struct {
	OurMin, OurMax, PeerMin, PeerMax uint16
	PeerSoftware                     string
}

// Error names both ranges and who must be brought up to date.
func (e *VersionError) Error() string {
	who := "update this process"
	if e.PeerMax < e.OurMin {
		who = "update the peer"
	}
	return fmt.Sprintf("the peer (%.100q) speaks versions %d to %d of limpet's protocol, this process %d to %d: %s",
		e.PeerSoftware, e.PeerMin, e.PeerMax, e.OurMin, e.OurMax, who)
}

func appendHello(b []byte, h Hello) []byte {
	enc, err := cborWrite.Marshal(h)
	if err != nil {
		panic(fmt.Errorf("wire: a hello can't be written: %w", err)) // numbers, bytes and UTF-8 always can
	}
	return appendFrame(b, frameHello, 0, 0, append([]byte(magic), enc...))
}

func readHello(p []byte) (Hello, error) {
	var h Hello
	rest, ok := bytes.CutPrefix(p, []byte(magic))
	if !ok || len(p) > maxHello {
		return h, errNotLimpet
	}
	if err := cborRead.Unmarshal(rest, &h); err != nil {
		return h, violation("HELLO is malformed: %v", err)
	}
	if h.MinVersion == 0 || h.MinVersion > h.MaxVersion {
		return h, violation("HELLO with versions %d to %d", h.MinVersion, h.MaxVersion)
	}
	return h, nil
}

// agree is the version that a connection uses.
func agree(ours, theirs Hello) (uint16, error) {
	v := min(ours.MaxVersion, theirs.MaxVersion)
	if v < ours.MinVersion || v < theirs.MinVersion {
		return 0, &VersionError{ours.MinVersion, ours.MaxVersion, theirs.MinVersion, theirs.MaxVersion, theirs.Software}
	}
	if theirs.ValueWindow > maxWindow || theirs.InitialWindow < 1 || theirs.InitialWindow > maxWindow || theirs.MaxCalls < 1 {
		return 0, violation("HELLO with a window of %d bytes and %d calls", theirs.InitialWindow, theirs.MaxCalls)
	}
	return v, nil
}

// peerHello reads the first frame.
func peerHello(fr *frameReader) (Hello, error) {
	head, err := fr.r.Peek(headerBytes)
	if err != nil {
		return Hello{}, err
	}
	f, n, err := parseHead(head)
	if err != nil || f.typ != frameHello || n > maxHello {
		return Hello{}, errNotLimpet
	}
	if f, err = fr.next(); err != nil {
		return Hello{}, err
	}
	return readHello(f.payload)
}
