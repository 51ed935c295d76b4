package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

func fullCall() *Call {
	return &Call{
		Kind: KindFetch, Binding: "CART", Object: [32]byte{1, 2, 31: 9}, Name: "user-1", Named: true, Existing: true,
		Identity: limpet.Identity{Nonce: [16]byte{7, 15: 8}, CreatedMS: 1234}, Attempt: 3, Retry: true, WillRetry: true,
		Uncertain: []Boot{{History: [16]byte{1}, Boot: [16]byte{2}}, {History: [16]byte{3}, Boot: [16]byte{4}}},
		TimeLeft:  1500 * time.Millisecond, HasTimeLeft: true,
		Replay: true, Key: "order-17",
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", TraceState: "a=b",
		Length: -1, Method: "POST", URL: "http://x/y?z", Host: "x",
		Header: http.Header{"A": {"1", "2"}, "B": {""}}, Trailer: http.Header{"T": nil},
	}
}

// unexported are types of this package that tests compare.
var unexported = cmp.AllowUnexported(Ext{}, descriptor{}, resultHead{})

// extended is what calls may have beyond plain ones.
func extended() *Ext {
	return &Ext{
		Path: []string{"a", "", "ü"}, Property: true, Pipelinable: true,
		caps: []descriptor{{limpet.CapabilityTarget, false, 1}, {limpet.CapabilityStream, true, 1<<64 - 1}},
	}
}

func capabilityCall(k Kind, capability, parent uint64) *Call {
	c := &Call{Kind: k, Ext: &Ext{capability: capability, parent: parent}, TimeLeft: time.Second, HasTimeLeft: true}
	switch k {
	case KindTarget:
		x := extended()
		x.capability, x.parent = capability, parent
		c.Ext, c.Length = x, 7
	case KindTargetFetch:
		f := fullCall()
		c.Length, c.Method, c.URL, c.Host, c.Header, c.Trailer = f.Length, f.Method, f.URL, f.Host, f.Header, f.Trailer
	}
	return c
}

func TestCallBytes(t *testing.T) {
	for name, c := range map[string]*Call{
		"fetch":            fullCall(),
		"method":           {Kind: KindMethod, Binding: "B", Attempt: 1, Length: 32 << 20, Method: "add"},
		"outcome":          {Kind: KindOutcome, Binding: "B", Length: 8, Method: "key:order-17"},
		"describe":         {Kind: KindDescribe, Binding: "B"},
		"extended":         {Kind: KindMethod, Binding: "B", Method: "add", Ext: extended()},
		"target":           capabilityCall(KindTarget, 1<<63, 0),
		"child":            capabilityCall(KindTarget, 0, 77),
		"stream":           capabilityCall(KindStream, 5, 0),
		"a target's fetch": capabilityCall(KindTargetFetch, 5, 0),
	} {
		got, err := readCall(appendCall(nil, c))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(c, got, unexported); d != "" {
			t.Errorf("%s differs (-want +got):\n%s", name, d)
		}
	}
	// The bytes themselves: whoever changes them changes the version.
	c := &Call{
		Kind: KindMethod, Binding: "C", Object: [32]byte{0xaa, 31: 0xbb}, Name: "n", Named: true,
		Identity: limpet.Identity{Nonce: [16]byte{1, 15: 2}, CreatedMS: 3}, Attempt: 2, Retry: true, WillRetry: true,
		Uncertain: []Boot{{History: [16]byte{4}, Boot: [16]byte{5}}}, TimeLeft: time.Second, HasTimeLeft: true,
		Length: 6, Method: "add",
	}
	want := "00" + "3e" + "0143" + "aa" + strings.Repeat("00", 30) + "bb" + "016e" + "02" +
		"01" + strings.Repeat("00", 14) + "02" + "0000000000000003" +
		"01" + "04" + strings.Repeat("00", 15) + "05" + strings.Repeat("00", 15) + "e807" + "07" + "03616464"
	if got := hex.EncodeToString(appendCall(nil, c)); got != want {
		t.Errorf("a call's bytes are\n%s, want\n%s", got, want)
	}
	c = &Call{Kind: KindTarget, Ext: extended(), Length: 2}
	c.Ext.capability = 300
	want = "04" + "8004" + "ac02" + "00" + "03" + "03" + "0161" + "00" + "02c3bc" + "02" + "0001" + "03ffffffffffffffffff01" + "03"
	if got := hex.EncodeToString(appendCall(nil, c)); got != want {
		t.Errorf("a call of a capability is\n%s, want\n%s", got, want)
	}
	if got := hex.EncodeToString(appendResult(nil, limpet.Encoded("x"), []descriptor{{limpet.CapabilityStream, false, 9}})); got != "0301"+"01"+"0109" {
		t.Errorf("a result with a stream is %s", got)
	}
	for name, c := range map[string]*Call{
		"of nothing":              capabilityCall(KindTarget, 0, 0),
		"of two things":           capabilityCall(KindTarget, 1, 2),
		"a stream in a result":    capabilityCall(KindStream, 0, 2),
		"a fetch of a result":     capabilityCall(KindTargetFetch, 0, 2),
		"a path on a fetch":       {Kind: KindFetch, Ext: &Ext{Path: []string{"x"}}},
		"a path too long":         {Ext: &Ext{Path: make([]string, limpet.MaxPath+1)}},
		"too many capabilities":   {Ext: &Ext{caps: make([]descriptor, maxExports+1)}},
		"a capability without id": {Ext: &Ext{caps: make([]descriptor, 1)}},
	} {
		if _, err := readCall(appendCall(nil, c)); !errors.Is(err, errProtocol) {
			t.Errorf("a call %s: %v", name, err)
		}
	}
	if got := hex.EncodeToString(appendFrame(nil, frameData, flagEnd, 0x102, []byte("hi"))); got != "0602"+"0002"+"0000000000000102"+"6869" {
		t.Errorf("a frame's bytes are %s", got)
	}
}

func TestBlocks(t *testing.T) {
	for _, n := range []int{0, 1, maxPayload, maxPayload + 1, 3*maxPayload + 5, maxBlock} {
		block := bytes.Repeat([]byte{7}, n)
		b := appendBlock(nil, frameCall, flagEnd, 1, block)
		b = append(b, appendPing(nil, framePing, 5)...)
		r := newFrameReader(iotestOne{bytes.NewReader(b)})
		f, err := r.next()
		if err != nil || f.typ != frameCall || f.call != 1 || !f.ends() || !bytes.Equal(f.payload, block) {
			t.Errorf("a block of %d bytes comes back as %v of %d, %v", n, f.typ, len(f.payload), err)
		}
		if f, err = r.next(); err != nil || f.typ != framePing {
			t.Errorf("after it comes %v, %v", f.typ, err)
		}
		if _, err = r.next(); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	}
	b := appendBlock(nil, frameCall, 0, 1, make([]byte, maxBlock+1))
	if _, err := newFrameReader(bytes.NewReader(b)).next(); !errors.Is(err, errProtocol) {
		t.Errorf("a block over the limit: %v", err)
	}
	b = appendBlock(nil, frameCall, 0, 1, make([]byte, 2*MaxFrame))
	for cut := 1; cut < len(b); cut += 1000 {
		if _, err := newFrameReader(bytes.NewReader(b[:cut])).next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut after %d bytes: %v", cut, err)
		}
	}
}

// iotestOne gives one byte at a time.
type iotestOne struct{ r io.Reader }

func (o iotestOne) Read(p []byte) (int, error) { return o.r.Read(p[:min(len(p), 1)]) }

func TestFailureBytes(t *testing.T) {
	for name, e := range map[string]*limpet.Error{
		"all": limpet.ReceivedError(&limpet.Error{
			Code: "SoldOut", Name: "ShopError", Message: "none left", Delivery: limpet.DeliveryReceived, Retryable: true,
			Overloaded: true, Remote: true, Reset: true, ObjectID: strings.Repeat("ab", 32), Attempts: 2,
			Identity: "x", RequestID: "r", Fields: map[string]any{"left": int64(1)},
		}, true, true),
		"not delivered":   limpet.ReceivedError(&limpet.Error{Code: limpet.CodeDraining, Message: "m", Delivery: limpet.DeliveryNone}, false, true),
		"a refused claim": limpet.ReceivedError(&limpet.Error{Code: limpet.CodeAlreadyReceived, Message: "m", Delivery: limpet.DeliveryReceived}, false, true),
		"text of dust":    limpet.ReceivedError(&limpet.Error{Code: "X", Message: "\xff", Delivery: limpet.DeliveryReceived, Remote: true}, false, false),
	} {
		got, err := readFailure(appendFailure(nil, e))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		g := got.(*limpet.Error) //nolint:errorlint // as it was read
		if limpet.BreaksStub(g) != limpet.BreaksStub(e) || g.ByLimpet() != e.ByLimpet() {
			t.Errorf("%s: breaks stub %v, by limpet %v", name, limpet.BreaksStub(g), g.ByLimpet())
		}
		if d := cmp.Diff(e, g, cmp.Comparer(func(a, b *limpet.Error) bool {
			x, y := *a, *b
			x.Fields, y.Fields = nil, nil
			return len(a.Fields) == len(b.Fields) && x.Error() == y.Error() && x.Code == y.Code && x.Name == y.Name &&
				x.Delivery == y.Delivery && x.Retryable == y.Retryable && x.Overloaded == y.Overloaded && x.Remote == y.Remote &&
				x.Reset == y.Reset && x.ObjectID == y.ObjectID && x.Attempts == y.Attempts && x.Identity == y.Identity && x.RequestID == y.RequestID
		})); d != "" {
			t.Errorf("%s differs (-want +got):\n%s", name, d)
		}
	}
	// SPEC F17: without the mark, a code is no refusal of a claim.
	enc, err := cborWrite.Marshal(failure{Code: string(limpet.CodeAlreadyReceived), Message: "the object has received it already"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := readFailure(enc)
	if err != nil || errors.Is(got, limpet.CodeAlreadyReceived) {
		t.Errorf("a failure without the mark is %v, %v", got, err)
	}
	// An outcome was received: a peer that says "uncertain" is not believed.
	if limpet.DeliveryOf(got) != limpet.DeliveryReceived {
		t.Errorf("its delivery is %v", limpet.DeliveryOf(got))
	}
	// Nor one that says of what has run that it was not delivered.
	for name, f := range map[string]failure{
		"a method's error":   {Code: "X", Delivery: uint8(limpet.DeliveryNone), Bits: bitRemote},
		"a refused claim":    {Code: string(limpet.CodeAlreadyReceived), Delivery: uint8(limpet.DeliveryNone), Bits: bitRejected},
		"a lost connection":  {Code: string(limpet.CodeDisconnected), Delivery: uint8(limpet.DeliveryNone)},
		"an unknown outcome": {Code: "X", Delivery: 77},
	} {
		enc, err := cborWrite.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readFailure(enc); err != nil || limpet.DeliveryOf(got) != limpet.DeliveryReceived { // SPEC C52
			t.Errorf("%s that was not delivered, as a peer says: %v, %v", name, limpet.DeliveryOf(got), err)
		}
	}
	long := limpet.Errorf("X", "%s", strings.Repeat("ü", maxBlock))
	if b := appendFailure(nil, long); len(b) > maxBlock {
		t.Errorf("a failure of %d bytes", len(b))
	}
}

func TestAnswered(t *testing.T) {
	// SPEC C52: a lost connection after acceptance is received, a draining refusal
	// is not (SPEC C24).
	for _, c := range []struct {
		in   *limpet.Error
		want limpet.Delivery
	}{
		{&limpet.Error{Code: limpet.CodeDisconnected, Delivery: limpet.DeliveryNone}, limpet.DeliveryReceived},
		{&limpet.Error{Code: limpet.CodeDisconnected}, limpet.DeliveryReceived},
		{&limpet.Error{Code: limpet.CodeInternal}, limpet.DeliveryReceived},
		{&limpet.Error{Code: "X", Remote: true, Delivery: limpet.DeliveryNone}, limpet.DeliveryReceived},
		{&limpet.Error{Code: limpet.CodeDraining, Delivery: limpet.DeliveryNone}, limpet.DeliveryNone},
		{&limpet.Error{Code: limpet.CodeOverloaded, Delivery: limpet.DeliveryNone}, limpet.DeliveryNone},
	} {
		if got := answered(c.in).Delivery; got != c.want {
			t.Errorf("%v, %v travels back as %v, want %v", c.in.Code, c.in.Delivery, got, c.want)
		}
	}
}

func TestHello(t *testing.T) {
	h := NewHello([16]byte{1}, [16]byte{2}, [16]byte{}, "test")
	f, err := newFrameReader(bytes.NewReader(appendHello(nil, h))).next()
	if err != nil {
		t.Fatal(err)
	}
	got, err := readHello(f.payload)
	if err != nil || got != h || h.Boot == [16]byte{} {
		t.Errorf("hello comes back as %+v, %v, want %+v", got, err, h)
	}
	for _, c := range []struct {
		min, max uint16
		ok       bool
	}{{1, 1, true}, {1, 9, true}, {2, 9, false}} {
		peer := h
		peer.MinVersion, peer.MaxVersion = c.min, c.max
		v, err := agree(h, peer)
		if (err == nil) != c.ok || c.ok && v != 1 {
			t.Errorf("with a peer of versions %d to %d: version %d, %v", c.min, c.max, v, err)
		}
	}
}

// FuzzFrame reads anything as frames of calls, and checks that what is accepted
// is written back as it was.
func FuzzFrame(f *testing.F) {
	f.Add(appendBlock(nil, frameCall, flagEnd, 1, appendCall(nil, fullCall())))
	f.Add(appendBlock(nil, frameCall, 0, 1, appendCall(nil, &Call{Binding: "B", Method: "m"})))
	f.Add(appendBlock(nil, frameResponse, 0, 1, appendResponse(nil, &responseHead{status: 200, length: -1, header: http.Header{"A": {"b"}}})))
	f.Add(appendFrame(nil, frameResult, 0, 1, appendResult(nil, limpet.Encoded("x"), nil)))
	f.Add(appendFrame(nil, frameFailure, 0, 1, appendFailure(nil, limpet.Errorf("X", "y"))))
	for _, k := range []Kind{KindTarget, KindTargetFetch, KindStream} {
		f.Add(appendBlock(nil, frameCall, 0, 1, appendCall(nil, capabilityCall(k, 7, 0))))
	}
	f.Add(appendBlock(nil, frameCall, 0, 1, appendCall(nil, capabilityCall(KindTarget, 0, 7))))
	f.Add(appendBlock(nil, frameCall, 0, 1, appendCall(nil, &Call{Method: "m", Ext: extended()})))
	f.Add(appendFrame(nil, frameResult, 0, 1, appendResult(nil, limpet.Encoded("x"), extended().caps)))
	f.Add(appendFrame(nil, frameRelease, 0, 0, []byte{1, 2, 0x80, 1}))
	f.Add(appendFrame(nil, frameForget, 0, 3, nil))
	f.Add(appendAcks(nil, []ack{{}}))
	f.Add(appendGoAway(nil, 7, "why"))
	f.Add(appendWindow(nil, 1, 7))
	f.Add(appendFrame(nil, frameTrailer, 0, 1, appendHeader(nil, http.Header{"A": {"b"}})))
	f.Add(appendBlock(nil, frameCall, 0, 1, make([]byte, 2*MaxFrame)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newFrameReader(bytes.NewReader(b))
		for {
			fr, err := r.next()
			if err != nil {
				return
			}
			if len(fr.payload) > maxBlock {
				t.Fatalf("a payload of %d bytes", len(fr.payload))
			}
			switch fr.typ {
			case frameCall:
				c, err := readCall(fr.payload)
				if err != nil {
					continue
				}
				again, err := readCall(appendCall(nil, c))
				if d := cmp.Diff(c, again, unexported); err != nil || d != "" {
					t.Fatalf("a call read back differs: %v\n%s", err, d)
				}
			case frameResponse:
				if h, err := readResponse(fr.payload); err == nil {
					if _, err := readResponse(appendResponse(nil, h)); err != nil {
						t.Fatal(err)
					}
				}
			case frameResult:
				h, err := readResult(fr.payload)
				if err != nil {
					continue
				}
				if h.length > maxBody || len(h.caps) > maxExports {
					t.Fatalf("a result of %d bytes and %d capabilities", h.length, len(h.caps))
				}
				var v limpet.Encoded
				if h.has {
					v = make(limpet.Encoded, h.length)
				}
				again, err := readResult(appendResult(nil, v, h.caps))
				if d := cmp.Diff(h, again, unexported); err != nil || d != "" {
					t.Fatalf("a result read back differs: %v\n%s", err, d)
				}
			case frameRelease:
				_ = readReleases(fr.payload, func(uint64) error { return nil }) // must not panic
			case frameFailure, frameAbort:
				if e, err := readFailure(fr.payload); err == nil {
					if limpet.DeliveryOf(e) == limpet.DeliveryUncertain && !errors.Is(e, io.ErrUnexpectedEOF) {
						t.Fatal("an outcome is uncertain")
					}
					if again, err := readFailure(appendFailure(nil, e)); err != nil || limpet.CodeOf(again) != limpet.CodeOf(e) {
						t.Fatalf("a failure read back is %v, %v, want %v", again, err, e)
					}
				}
			case frameTrailer:
				_, _ = readTrailer(fr.payload) // must not panic
			case frameAck:
				_ = readAcks(fr.payload, func(ack) {}) // as above
			case frameGoAway:
				_, _, _ = readGoAway(fr.payload) // as above
			case frameWindow:
				_, _ = readWindow(fr.payload) // as above
			case frameCancel:
				_, _ = readCancel(fr.payload) // as above
			case framePing, framePong:
				_, _ = readPing(fr.payload) // as above
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, NewHello([16]byte{1}, [16]byte{2}, [16]byte{3}, "x")))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := peerHello(newFrameReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		if v, err := agree(NewHello([16]byte{}, [16]byte{}, [16]byte{}, ""), h); err == nil && (v < h.MinVersion || v > h.MaxVersion) {
			t.Fatalf("version %d of %+v", v, h)
		}
	})
}

func FuzzBinding(f *testing.F) {
	f.Add(appendBinding(nil, BindingInfo{"Cart", limpet.DefaultRetryPolicy()}))
	f.Fuzz(func(t *testing.T, b []byte) {
		info, err := readBinding(b)
		if err != nil {
			return
		}
		if info.Policy.Validate() != nil {
			t.Fatalf("%+v", info)
		}
		if again, err := readBinding(appendBinding(nil, info)); err != nil || again != info {
			t.Fatalf("%+v read back is %+v, %v", info, again, err)
		}
	})
}
