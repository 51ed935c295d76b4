package wire

import (
	"errors"
	"io"

	"github.com/limpet-dev/limpet"
)

// Tap reads one direction of a connection frame by frame, for a program that
// stands between two processes and decides what gets through (bench/promise).
type Tap struct {
	fr  *frameReader
	raw []byte
}

// Tapped is one frame as it passes.
type Tapped struct {
	// Raw is all of its bytes, valid until the next one is read.
	Raw []byte
	// Type is its name, as "CALL".
	Type string
	// Call is the number of the call that it belongs to, 0 for the connection.
	Call uint64
	// Ends says that the sender's body of the call ends with it.
	Ends bool
	// Payload is the part of Raw after the frame's head.
	Payload []byte
	// Hello is what a HELLO says, Head what a CALL of one frame says; else nil.
	Hello *Hello
	Head  *Call
	// Failure is what a FAILURE says; Rejected, that it refuses a claim.
	Failure  *limpet.Error
	Rejected bool
}

// NewTap makes a tap of what one side sends.
func NewTap(r io.Reader) *Tap { return &Tap{fr: newFrameReader(r)} }

// Next reads a frame. At the end of the connection the error is io.EOF; what is
// no frame is an error too.
func (t *Tap) Next() (Tapped, error) {
	f, err := t.fr.one()
	if err != nil {
		return Tapped{}, err
	}
	t.raw = appendFrame(t.raw[:0], f.typ, f.flags, f.call, f.payload)
	out := Tapped{Raw: t.raw, Type: f.typ.String(), Call: f.call, Ends: f.ends(), Payload: t.raw[headerBytes:]}
	if f.flags&flagMore != 0 {
		return out, nil
	}
	switch f.typ {
	case frameHello:
		h, err := readHello(f.payload)
		if err != nil {
			return out, err
		}
		out.Hello = &h
	case frameCall:
		out.Head, err = readCall(f.payload)
	case frameFailure:
		var failed error
		if failed, err = readFailure(f.payload); err != nil {
			return out, err
		}
		if e, ok := errors.AsType[*limpet.Error](failed); ok {
			out.Failure, out.Rejected = e, rejected(e)
		}
	}
	return out, err
}
