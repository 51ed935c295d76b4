package wire

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

func outcomes() map[string]*limpet.CallOutcome {
	failed := limpet.ReceivedError(&limpet.Error{
		Code: "Empty", Name: "RangeError", Message: "nothing there", Delivery: limpet.DeliveryReceived, Remote: true,
		ObjectID: "ab", Fields: map[string]any{"left": 3.0},
	}, true, false)
	return map[string]*limpet.CallOutcome{
		"nothing": {Kind: limpet.OutcomeResult},
		"value":   {Kind: limpet.OutcomeResult, Value: limpet.Encoded("\x01value")},
		"error":   {Kind: limpet.OutcomeError, Err: failed},
		"response": {Kind: limpet.OutcomeResult, Response: &http.Response{
			StatusCode: 201, ContentLength: 4, Header: http.Header{"A": {"1", "2"}}, Trailer: http.Header{"T": {"x"}},
			Body: io.NopCloser(strings.NewReader("body")),
		}},
	}
}

func TestOutcomeBytes(t *testing.T) {
	for name, want := range outcomes() {
		b, err := AppendOutcome(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadOutcome(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r := got.Response; r != nil {
			body, _ := io.ReadAll(r.Body) // of memory
			if r.StatusCode != 201 || r.ContentLength != 4 || string(body) != "body" || r.Header.Get("A") != "1" || r.Trailer.Get("T") != "x" || r.Status != "201 Created" {
				t.Errorf("%s: %+v with body %q", name, r, body)
			}
			continue
		}
		if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(limpet.CallOutcome{}, limpet.Error{})); d != "" {
			t.Errorf("%s differs (-want +got):\n%s", name, d)
		}
		if want.Err != nil && !limpet.BreaksStub(got.Err) {
			t.Errorf("%s: that it breaks the stub is lost", name)
		}
		if name == "nothing" {
			continue
		}
		for _, bad := range [][]byte{nil, {0}, {99, 1}, append([]byte{keptNothing}, b...), {keptValue}, {keptFailure, 1, 2}, {keptResponse, 9, 9}} {
			if _, err := ReadOutcome(bad); !errors.Is(err, errProtocol) {
				t.Errorf("ReadOutcome(%x) says %v", bad, err)
			}
		}
	}
}

func TestAskForOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer *limpet.CallOutcome
		var failure error
		var asked string
		var asker time.Duration
		k := &callee{tell: func(q string, age time.Duration) (*limpet.CallOutcome, error) {
			asked, asker = q, age
			return answer, failure
		}}
		w := serve(t, k, sim.Clock{})
		s := w.session(t)
		ask := func() (*limpet.CallOutcome, error) {
			return s.Outcome(t.Context(), &Call{Binding: "B", Method: "key:order-17"}, -3*time.Second)
		}
		for _, answer = range []*limpet.CallOutcome{
			{Kind: limpet.OutcomeNotReceived}, {Kind: limpet.OutcomeRunning}, {Kind: limpet.OutcomeNotKept},
			{Kind: limpet.OutcomeResult, Value: limpet.Encoded("x")}, outcomes()["error"],
		} {
			got, err := ask()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(answer, got, cmpopts.IgnoreUnexported(limpet.CallOutcome{}, limpet.Error{})); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
			if asked != "key:order-17" || asker != -3*time.Second {
				t.Errorf("asked was %q, %v", asked, asker)
			}
		}
		failure = limpet.Errorf(limpet.CodeOutcomeUnknown, "nobody can tell").With(func(e *limpet.Error) { e.Delivery = limpet.DeliveryReceived })
		if _, err := ask(); !errors.Is(err, limpet.CodeOutcomeUnknown) || err.Error() != "nobody can tell" {
			t.Errorf("the refusal came as %v", err)
		}
		s.Close()
		w.close(t)
	})
}

func FuzzReadOutcome(f *testing.F) {
	for _, o := range outcomes() {
		b, err := AppendOutcome(nil, o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append([]byte{byte(o.Kind)}, b...))
	}
	f.Add([]byte{byte(limpet.OutcomeRunning)})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, read := range []func([]byte) (*limpet.CallOutcome, error){ReadOutcome, readAnswer} {
			o, err := read(b)
			if err != nil {
				if !errors.Is(err, errProtocol) {
					t.Fatalf("%v is no protocol error", err)
				}
				continue
			}
			if o.Kind == limpet.OutcomeResult || o.Kind == limpet.OutcomeError {
				if _, err := AppendOutcome(nil, o); err != nil {
					t.Fatalf("what was read can't be written: %v", err)
				}
			}
		}
	})
}
