package limpet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
)

func TestErrorMatching(t *testing.T) {
	plain := &limpet.Error{Code: limpet.CodeOverloaded, Message: "full"}
	wrapped := fmt.Errorf("adding: %w", plain)
	caused := limpet.Errorf(limpet.CodeStorageFull, "commit of %s: %w", "x", io.ErrShortWrite)
	several := limpet.Errorf(limpet.CodeInternal, "both: %w and %w", io.ErrShortWrite, io.EOF)
	for _, c := range []struct {
		what     string
		err      error
		code     limpet.Code
		is       []error
		isNot    []error
		text     string
		delivery limpet.Delivery
	}{
		{"plain", plain, limpet.CodeOverloaded, []error{limpet.CodeOverloaded, plain}, []error{limpet.CodeReset, io.EOF}, "full", limpet.DeliveryUncertain},
		{"wrapped", wrapped, limpet.CodeOverloaded, []error{limpet.CodeOverloaded, plain}, []error{limpet.CodeReset}, "adding: full", limpet.DeliveryUncertain},
		{"with cause", caused, limpet.CodeStorageFull, []error{limpet.CodeStorageFull, io.ErrShortWrite}, []error{io.EOF}, "commit of x: short write", limpet.DeliveryUncertain},
		{"with two causes", several, limpet.CodeInternal, []error{limpet.CodeInternal, io.ErrShortWrite, io.EOF}, []error{limpet.CodeReset}, "both: short write and EOF", limpet.DeliveryUncertain},
		{"no code", &limpet.Error{Message: "m"}, limpet.CodeApplication, []error{limpet.CodeApplication}, []error{limpet.Code("")}, "m", limpet.DeliveryUncertain},
		{"no text", &limpet.Error{Code: limpet.CodeReset, Delivery: limpet.DeliveryNone}, limpet.CodeReset, []error{limpet.CodeReset}, nil, "Reset", limpet.DeliveryNone},
		{"nothing", &limpet.Error{}, limpet.CodeApplication, []error{limpet.CodeApplication}, nil, "Application", limpet.DeliveryUncertain},
		{"cause not in the text", &limpet.Error{Message: "m", Cause: io.EOF}, limpet.CodeApplication, []error{io.EOF}, nil, "m: EOF", limpet.DeliveryUncertain},
		{"an own code", &limpet.Error{Code: "OutOfStock", Message: "no shoes"}, "OutOfStock", []error{limpet.Code("OutOfStock")}, []error{limpet.CodeApplication}, "no shoes", limpet.DeliveryUncertain},
		{"joined", errors.Join(io.EOF, plain), limpet.CodeOverloaded, []error{limpet.CodeOverloaded, io.EOF}, nil, "EOF\nfull", limpet.DeliveryUncertain},
		{"another's error", io.EOF, limpet.CodeInternal, []error{io.EOF}, []error{limpet.CodeInternal}, "EOF", limpet.DeliveryUncertain},
	} {
		t.Run(c.what, func(t *testing.T) {
			if got := limpet.CodeOf(c.err); got != c.code {
				t.Errorf("code %q, want %q", got, c.code)
			}
			if got := limpet.DeliveryOf(c.err); got != c.delivery {
				t.Errorf("delivery %v, want %v", got, c.delivery)
			}
			for _, target := range c.is {
				if !errors.Is(c.err, target) {
					t.Errorf("is not %v", target)
				}
			}
			for _, target := range c.isNot {
				if errors.Is(c.err, target) {
					t.Errorf("is %v", target)
				}
			}
			if c.err.Error() != c.text {
				t.Errorf("text %q, want %q", c.err, c.text)
			}
		})
	}
	if limpet.CodeOf(nil) != "" || limpet.DeliveryOf(nil) != limpet.DeliveryUncertain {
		t.Error("nil has a code")
	}
	if e, ok := errors.AsType[*limpet.Error](wrapped); !ok || e != plain {
		t.Errorf("As gives %v", e)
	}
	if limpet.CodeReset.Error() != "limpet: Reset" {
		t.Errorf("a code reads %q", limpet.CodeReset.Error())
	}
}

func TestDeliveryText(t *testing.T) {
	// SPEC C3: the three states.
	for d, want := range map[limpet.Delivery]string{
		limpet.DeliveryUncertain: "uncertain", limpet.DeliveryNone: "not delivered", limpet.DeliveryReceived: "received",
	} {
		b, err := json.Marshal(map[string]limpet.Delivery{"d": d})
		if err != nil || string(b) != `{"d":"`+want+`"}` || d.String() != want {
			t.Errorf("got %s, %v", b, err)
		}
		var back map[string]limpet.Delivery
		if err := json.Unmarshal(b, &back); err != nil || back["d"] != d {
			t.Errorf("read back %v, %v", back, err)
		}
	}
	var zero limpet.Delivery
	if zero != limpet.DeliveryUncertain {
		t.Error("who knows nothing does not assume the worst")
	}
	d := limpet.DeliveryReceived
	for _, bad := range []string{"", "Received", "received ", strings.Repeat("r", 1<<20)} {
		if err := d.UnmarshalText([]byte(bad)); err == nil || len(err.Error()) > 200 {
			t.Errorf("%.20q: got %.300v", bad, err)
		}
	}
	if d != limpet.DeliveryReceived {
		t.Error("a word that is none changed the state")
	}
	if got := limpet.Delivery(9).String(); got != "Delivery(9)" {
		t.Errorf("got %q", got)
	}
}

func TestErrorClone(t *testing.T) {
	e := limpet.Errorf(limpet.CodeReset, "m").With(func(e *limpet.Error) { e.Fields = map[string]any{"k": 1} })
	c := e.Clone()
	c.Fields["k"], c.Message = 2, "other"
	if e.Fields["k"] != 1 || e.Message != "m" {
		t.Errorf("the clone is not its own: %+v", e)
	}
}

var object = func() limpet.ID {
	id, err := limpet.Namespace[any]{}.IDFromName("n")
	_ = err // the zero ID will do
	return id
}()

type panickingError struct{ text *string }

func (p *panickingError) Error() string { return *p.text }

type panickingUnwrap struct{ next *panickingUnwrap }

func (p *panickingUnwrap) Error() string { return "outer" }
func (p *panickingUnwrap) Unwrap() error { return p.next.next }

func TestMethodError(t *testing.T) {
	own := &limpet.Error{
		Code: "OutOfStock", Name: "RangeError", Message: "no shoes", Fields: map[string]any{"left": 0},
		// What a method must not be able to say:
		Delivery: limpet.DeliveryNone, Reset: true, ObjectID: "elsewhere", Attempts: 7, Identity: "id", RequestID: "ref", Cause: io.EOF,
	}
	ofLimpet := limpet.ResetError(object, "the other object was reset", io.EOF)
	for _, c := range []struct {
		what string
		err  error
		want limpet.Error
	}{
		{"plain", errors.New("no"), limpet.Error{Code: limpet.CodeApplication, Message: "no"}},
		{"empty text", errors.New(""), limpet.Error{Code: limpet.CodeApplication}},
		{"own", own, limpet.Error{Code: "OutOfStock", Name: "RangeError", Message: "no shoes: EOF", Fields: map[string]any{"left": 0}}},
		{"own, wrapped", fmt.Errorf("buying: %w", own), limpet.Error{Code: "OutOfStock", Name: "RangeError", Message: "buying: no shoes: EOF", Fields: map[string]any{"left": 0}}},
		{"joined", errors.Join(io.EOF, own), limpet.Error{Code: "OutOfStock", Name: "RangeError", Message: "EOF\nno shoes: EOF", Fields: map[string]any{"left": 0}}},
		// SPEC C7: look-alikes arrive, and the error stays the method's own.
		{"look-alike", &limpet.Error{Message: "m", Retryable: true, Overloaded: true}, limpet.Error{Code: limpet.CodeApplication, Message: "m", Retryable: true, Overloaded: true}},
		{"look-alike of a disconnect", &limpet.Error{Code: limpet.CodeDisconnected, Message: "m", Retryable: true}, limpet.Error{Code: limpet.CodeDisconnected, Message: "m", Retryable: true}},
		// SPEC C28: another call's failure passed on.
		{"another call's", ofLimpet, limpet.Error{Code: limpet.CodeReset, Message: "the other object was reset: EOF"}},
		{"a sentinel", limpet.CodeOverloaded, limpet.Error{Code: limpet.CodeApplication, Message: "limpet: Overloaded"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			// SPEC C26: received, remote, the object's.
			c.want.Delivery, c.want.Remote, c.want.ObjectID = limpet.DeliveryReceived, true, object.String()
			got := limpet.MethodError(object, c.err)
			if diff := cmp.Diff(fieldsOf(&c.want), fieldsOf(got)); diff != "" {
				t.Error(diff)
			}
			if got.ByLimpet() || limpet.BreaksStub(got) {
				t.Errorf("by limpet %v, breaks the stub %v", got.ByLimpet(), limpet.BreaksStub(got))
			}
		})
	}
	got := limpet.MethodError(object, own)
	got.Fields["left"] = 9
	if own.Fields["left"] != 0 {
		t.Error("caller and method share a map")
	}
	for what, err := range map[string]error{
		"nil pointer": (*panickingError)(nil), "nil *limpet.Error": (*limpet.Error)(nil), "Unwrap": &panickingUnwrap{},
	} {
		got := limpet.MethodError(object, err)
		if got.Code != limpet.CodeApplication || got.Delivery != limpet.DeliveryReceived || !got.Remote {
			t.Errorf("%s: got %+v", what, got)
		}
		contains(t, got, fmt.Sprintf("%T", err))
	}
}

// fieldsOf is what of an error a caller can see.
func fieldsOf(e *limpet.Error) map[string]any {
	return map[string]any{
		"Code": e.Code, "Name": e.Name, "Message": e.Message, "Delivery": e.Delivery, "Retryable": e.Retryable, "Overloaded": e.Overloaded,
		"Remote": e.Remote, "Reset": e.Reset, "ObjectID": e.ObjectID, "Attempts": e.Attempts, "Identity": e.Identity, "RequestID": e.RequestID,
		"Fields": e.Fields, "Cause": e.Cause,
	}
}

func TestNoFetchError(t *testing.T) {
	// SPEC B16
	e := limpet.NoFetchError(object)
	if e.Error() != "Handler does not export a fetch() function." || !e.Remote || !e.ByLimpet() || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("got %+v", e)
	}
}

func TestResetError(t *testing.T) {
	e := limpet.ResetError(object, "aborted", io.EOF)
	// SPEC C33: received, and marked as a reset.
	if e.Code != limpet.CodeReset || e.Delivery != limpet.DeliveryReceived || !e.Reset || e.Remote || !limpet.BreaksStub(e) || !e.ByLimpet() || !errors.Is(e, io.EOF) {
		t.Errorf("got %+v", e)
	}
	if !limpet.BreaksStub(fmt.Errorf("call: %w", e)) || limpet.BreaksStub(nil) || limpet.BreaksStub(io.EOF) || !limpet.BreaksStub(e.Clone()) {
		t.Error("BreaksStub is wrong")
	}
}

// unreadable is an error that can't be read, as a nil pointer in an error
// interface often can't.
type unreadable struct{}

func (unreadable) Error() string { panic("no text") }

func TestResetErrorOfUnreadable(t *testing.T) {
	e := limpet.ResetError(limpet.ID{}, "The object was reset.", unreadable{})
	if got := e.Error(); got != "The object was reset." || e.Cause != nil {
		t.Errorf("got %q, cause %T", got, e.Cause)
	}
	cause := errors.New("why")
	if e := limpet.ResetError(limpet.ID{}, "The object was reset.", cause); !errors.Is(e, cause) {
		t.Errorf("lost its cause: %v", e)
	}
}

func TestMethodErrorTextIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	e := limpet.MethodError(limpet.ID{}, errors.New(long))
	if len(e.Message) > 1<<20+100 || !utf8.ValidString(e.Message) || !strings.HasSuffix(e.Message, "… (cut: the text has 2097152 bytes, the limit is 1048576)") {
		t.Errorf("got %d bytes ending in %q", len(e.Message), e.Message[len(e.Message)-80:])
	}
	if e := limpet.MethodError(limpet.ID{}, errors.New(long[:1<<20])); e.Message != long[:1<<20] {
		t.Errorf("a text of 1 MiB was changed: %d bytes", len(e.Message))
	}
}
