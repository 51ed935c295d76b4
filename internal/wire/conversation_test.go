package wire

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// FuzzConversation says anything to a server that takes and gives capabilities,
// after the hello: nothing panics, and nothing is left or counted when the
// connection has ended.
func FuzzConversation(f *testing.F) {
	call := func(n uint64, c *Call, more ...byte) []byte {
		flags := uint8(flagEnd)
		if len(more) > 0 {
			flags, c.Length = 0, int64(len(more))
		}
		b := appendFrame(nil, frameCall, flags, n, appendCall(nil, c))
		if len(more) > 0 {
			b = appendFrame(b, frameData, flagEnd, n, more)
		}
		return b
	}
	of := func(k Kind, id, parent uint64) *Call {
		c := &Call{Kind: k, Ext: &Ext{capability: id, parent: parent}}
		if k == KindTargetFetch {
			c.Method, c.URL = "GET", "http://x/"
		}
		return c
	}
	join := func(all ...[]byte) (b []byte) {
		for _, p := range all {
			b = append(b, p...)
		}
		return b
	}
	give := &Call{Method: "give", Ext: &Ext{Pipelinable: true}}
	takes := &Call{Method: "take", Ext: &Ext{caps: []descriptor{{0, false, 1}, {1, false, 2}, {0, true, 1}}}}
	f.Add(join(call(1, give), call(3, of(KindTarget, 0, 1), 'x'), call(5, of(KindTarget, 1, 0)), call(7, of(KindStream, 2, 0)), appendFrame(nil, frameForget, 0, 1, nil)))
	f.Add(join(call(1, give), call(3, takes, 'x'), appendFrame(nil, frameResult, flagEnd, 2, []byte{0, 0}), appendFrame(nil, frameRelease, 0, 0, []byte{1, 2})))
	f.Add(join(call(1, give), call(3, of(KindTargetFetch, 1, 0)), call(5, of(KindStream, 2, 0)), appendWindow(nil, 5, 1000), appendFrame(nil, frameCancel, 0, 5, []byte{2})))
	f.Add(join(call(1, give), appendFrame(nil, frameCancel, 0, 1, []byte{0}), call(3, of(KindTarget, 0, 1)), appendGoAway(nil, 1, "x")))
	f.Add(join(call(1, takes, 'x'), appendFrame(nil, frameResult, 0, 2, appendResult(nil, limpet.Encoded("y"), []descriptor{{0, false, 9}})), appendFrame(nil, frameData, flagEnd, 2, []byte("y"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		k := parcels(func(ctx context.Context, c *Call, args limpet.Parcel) (limpet.Parcel, error) {
			defer args.Release()
			for _, x := range args.Caps {
				if x.Kind() == limpet.CapabilityStream {
					if r, err := x.Open(ctx); err == nil {
						_, _ = io.Copy(io.Discard, r)
						_ = r.Close()
					}
					continue
				}
				r, err := x.Call(ctx, target("a", "b", x.Dup()))
				if err == nil {
					r.Release()
				}
			}
			if c.Method == "give" {
				return limpet.Parcel{Bytes: limpet.Encoded("x"), Caps: []limpet.Capability{echoThing().handle(), bytesOf(strings.NewReader("stream")).handle()}}, nil
			}
			return limpet.Parcel{}, nil
		})
		k.fetch = func(context.Context, *Call, *http.Request) (*http.Response, error) {
			return nil, limpet.Errorf(limpet.CodeNotSupported, "no fetches")
		}
		k.tell = func(string, time.Duration) (*limpet.CallOutcome, error) {
			return nil, limpet.Errorf(limpet.CodeNotSupported, "no outcomes")
		}
		w := serve(t, k, sim.Clock{})
		conn, err := w.pipes.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, conn)
		}()
		_, _ = conn.Write(appendHello(nil, w.dialer.Hello))
		_, _ = conn.Write(b) // the server may hang up in the middle
		_ = conn.Close()
		<-read
		w.close(t)
		if w.server.caps.used != 0 {
			t.Errorf("%d capabilities are still counted", w.server.caps.used)
		}
		w.nothingHeld(t)
	})
}
