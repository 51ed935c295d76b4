package wire

import (
	"encoding/binary"

	"github.com/limpet-dev/limpet"
)

// This file is what calls and results say of capabilities, byte by byte.

const (
	// maxExports is how many capabilities one side of a connection may have given
	// to the other that were not released.
	maxExports = 10_000
	// maxReleases is the bytes of frameRelease.
	maxReleases = 16 << 10
)

// descriptor is one capability in a call or result.
type descriptor struct {
	kind limpet.CapabilityKind
	// home: id is of the receiver, who gets its own back. Else it is of the
	// sender, who never uses an id twice on a connection.
	home bool
	id   uint64
}

// appendDescriptors writes capabilities: varint count, each
//
//	1 bits   1 byte stream, 2 the receiver's own
//	varint id
func appendDescriptors(b []byte, all []descriptor) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, d := range all {
		bits := byte(d.kind)
		if d.home {
			bits |= 2
		}
		b = binary.AppendUvarint(append(b, bits), d.id)
	}
	return b
}

func (c *cursor) descriptors() []descriptor {
	n := c.varint(maxExports)
	if c.bad || n == 0 || n > uint64(len(c.b)) { // each has two bytes or more
		c.bad = c.bad || n != 0
		return nil
	}
	all := make([]descriptor, n)
	for i := range all {
		bits := c.u8()
		all[i] = descriptor{limpet.CapabilityKind(bits & 1), bits&2 != 0, c.varint(1<<64 - 1)}
		c.bad = c.bad || bits > 3 || all[i].id == 0
	}
	return all
}

// Bits of Ext.
const (
	extProperty = 1 << iota
	extPipelinable
)

// appendExt writes what plain calls do not have:
//
//	1 bits   1 property, 2 pipelinable
//	varint count, each a text: the path
//	capabilities in the arguments
func appendExt(b []byte, x *Ext) []byte {
	bits := byte(0)
	if x.Property {
		bits |= extProperty
	}
	if x.Pipelinable {
		bits |= extPipelinable
	}
	b = binary.AppendUvarint(append(b, bits), uint64(len(x.Path)))
	for _, name := range x.Path {
		b = appendText(b, name)
	}
	return appendDescriptors(b, x.caps)
}

func (c *cursor) ext(x *Ext) {
	bits := c.u8()
	c.bad = c.bad || bits > extProperty|extPipelinable
	x.Property, x.Pipelinable = bits&extProperty != 0, bits&extPipelinable != 0
	for n := c.varint(limpet.MaxPath); n > 0 && !c.bad; n-- {
		x.Path = append(x.Path, c.text(maxMethod))
	}
	x.caps = c.descriptors()
}

// readReleases reads the payload of frameRelease: varint ids.
func readReleases(p []byte, each func(id uint64) error) error {
	for c := (cursor{b: p}); len(c.b) > 0; {
		id := c.varint(1<<64 - 1)
		if c.bad {
			return violation("RELEASE is malformed")
		}
		if err := each(id); err != nil {
			return err
		}
	}
	return nil
}
