package wire

import (
	"bytes"
	"net"
	"testing"
	"testing/synctest"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// TestValuesWithoutRoundTrips has arguments and results of middling size, which
// need nobody's leave.
func TestValuesWithoutRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newScript(t)
		args, result := bytes.Repeat([]byte{1}, 60<<10), bytes.Repeat([]byte{2}, 60<<10)
		done := startCall(t.Context(), s, method("a"), args)
		p.expect(frameCall, 1)
		if f := p.expect(frameData, 1); !f.ends() || !bytes.Equal(f.payload, args) {
			t.Errorf("%d bytes of arguments came first, end %v; want %d", len(f.payload), f.ends(), len(args))
		}
		p.write(appendFrame(nil, frameResult, 0, 1, appendResult(nil, result, nil)))
		p.write(appendFrame(nil, frameData, flagEnd, 1, result))
		if got := <-done; got.err != nil || !bytes.Equal(got.v, result) {
			t.Errorf("the result is %d bytes, %v", len(got.v), got.err)
		}
		_ = p.conn.Close()
		s.Close()
	})
}

// TestSmallValueWindow has a peer that says nothing of values: only its initial
// window may be used.
func TestSmallValueWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		p := &script{t: t, conn: b, fr: newFrameReader(b)}
		go func() {
			if _, err := peerHello(p.fr); err != nil {
				t.Error(err)
			}
			h := NewHello([16]byte{}, [16]byte{8}, [16]byte{9}, "script")
			h.ValueWindow = 0
			p.write(appendHello(nil, h))
		}()
		s, err := NewSession(t.Context(), a, NewHello([16]byte{}, [16]byte{}, [16]byte{}, "x"), sim.Clock{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		args := limpet.Encoded(bytes.Repeat([]byte{1}, 10_000))
		done := startCall(t.Context(), s, method("a"), args)
		p.expect(frameCall, 1)
		if f := p.expect(frameData, 1); f.ends() || len(f.payload) != initialWindow {
			t.Errorf("%d bytes of arguments came first, end %v; want %d", len(f.payload), f.ends(), initialWindow)
		}
		p.write(appendWindow(nil, 1, 10_000-initialWindow))
		if f := p.expect(frameData, 1); !f.ends() || len(f.payload) != 10_000-initialWindow {
			t.Errorf("%d bytes of arguments came second, end %v", len(f.payload), f.ends())
		}
		p.write(appendFrame(nil, frameResult, flagEnd, 1, appendResult(nil, nil, nil)))
		if got := <-done; got.err != nil || got.v != nil {
			t.Errorf("the outcome is %v, %v", got.v, got.err)
		}
		_ = p.conn.Close()
		s.Close()
	})
}
