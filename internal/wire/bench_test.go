package wire

import (
	"context"
	"net"
	"testing"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// benchSession is a session over loopback TCP with a server of k.
func benchSession(b *testing.B, k *callee) *Session {
	b.Helper()
	server, err := NewServer(ServerConfig{Callee: k, Clock: sim.Clock{}, Hello: NewHello([16]byte{1}, [16]byte{2}, [16]byte{3}, "server")})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(ln) }() // ends with Close
	s, err := (&Dialer{Clock: sim.Clock{}, Hello: NewHello([16]byte{}, [16]byte{}, [16]byte{}, "dialer")}).Dial(b.Context(), ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		s.Close()
		_ = server.Close(context.Background())
	})
	return s
}

// BenchmarkCall is a plain call, alone and beside 63 others.
func BenchmarkCall(b *testing.B) {
	args := make(limpet.Encoded, 100)
	call := func(b *testing.B, s *Session) {
		if _, err := plainCall(b.Context(), &s.duplex, method("m"), args); err != nil {
			b.Error(err)
		}
	}
	b.Run("one", func(b *testing.B) {
		s := benchSession(b, &callee{call: echo})
		b.ReportAllocs()
		for b.Loop() {
			call(b, s)
		}
	})
	b.Run("many", func(b *testing.B) {
		s := benchSession(b, &callee{call: echo})
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				call(b, s)
			}
		})
	})
}

// BenchmarkTarget is a call of a function that the node gave away.
func BenchmarkTarget(b *testing.B) {
	s := benchSession(b, parcels(func(context.Context, *Call, limpet.Parcel) (limpet.Parcel, error) {
		return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{echoThing().handle()}}, nil
	}))
	out, err := s.Call(b.Context(), method("m"), limpet.Parcel{})
	if err != nil {
		b.Fatal(err)
	}
	defer out.Release()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := out.Caps[0].Call(b.Context(), target("m", "x")); err != nil {
			b.Fatal(err)
		}
	}
}
