package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/limpet-dev/limpet"
)

// TestTap shows that a tap passes every byte on and reads what it names.
func TestTap(t *testing.T) {
	call := &Call{Kind: KindMethod, Binding: "SHOP", Method: "add", Length: 3, Attempt: 2, Retry: true, Identity: limpet.Identity{Nonce: [16]byte{1}}}
	refusal := limpet.Errorf(limpet.CodeAlreadyReceived, "no")
	refusal.Delivery = limpet.DeliveryReceived
	var b []byte
	b = appendHello(b, NewHello([16]byte{1}, [16]byte{2}, [16]byte{3}, "x"))
	b = appendFrame(b, frameCall, 0, 1, appendCall(nil, call))
	b = appendFrame(b, frameData, flagEnd, 1, []byte("abc"))
	b = appendBlock(b, frameFailure, flagEnd, 3, make([]byte, maxPayload+1)) // two frames, which are not read
	b = appendFrame(b, frameFailure, flagEnd, 1, appendFailure(nil, refusal))
	tap := NewTap(bytes.NewReader(b))
	var got []Tapped
	var passed []byte
	for {
		f, err := tap.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		passed = append(passed, f.Raw...)
		f.Payload = bytes.Clone(f.Payload)
		got = append(got, f)
	}
	if !bytes.Equal(passed, b) {
		t.Error("the bytes that passed are not those that came")
	}
	if len(got) != 6 {
		t.Fatalf("%d frames, want 6", len(got))
	}
	if h := got[0].Hello; h == nil || h.Boot != [16]byte{3} {
		t.Errorf("hello is %+v", h)
	}
	if h := got[1].Head; h == nil || !h.Retry || h.Method != "add" || got[1].Ends {
		t.Errorf("call is %+v", got[1])
	}
	if d := got[2]; d.Type != "DATA" || string(d.Payload) != "abc" || !d.Ends || d.Call != 1 {
		t.Errorf("data is %+v", d)
	}
	if f := got[5]; !f.Rejected || f.Failure == nil || f.Failure.Code != limpet.CodeAlreadyReceived {
		t.Errorf("refusal is %+v", f)
	}
	if _, err := NewTap(bytes.NewReader(make([]byte, 100))).Next(); !errors.Is(err, errProtocol) {
		t.Errorf("nonsense gives %v", err)
	}
}
