package limpet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

func TestRetryPolicyTable(t *testing.T) {
	node := nodeOf(nil, nil)
	ns := namespace[any](t, node)
	const r1, r2 = "must be from 0 to 10", "must be whole milliseconds from 500ms to 60s"
	ms := time.Millisecond
	id := ns.NewUniqueID()
	for _, c := range []struct {
		opts    []limpet.StubOption
		retries int
		timeout time.Duration
		refused string
	}{
		// SPEC D2, D3, D5: defaults, independently.
		{nil, 4, 10 * time.Second, ""},
		{[]limpet.StubOption{limpet.MaxRetries(1)}, 1, 10 * time.Second, ""},
		{[]limpet.StubOption{limpet.RetryTimeout(2 * time.Second)}, 4, 2 * time.Second, ""},
		{[]limpet.StubOption{limpet.MaxRetries(0)}, 0, 10 * time.Second, ""},
		{[]limpet.StubOption{limpet.NoRetries()}, 0, 10 * time.Second, ""},
		{[]limpet.StubOption{limpet.NoRetries(), limpet.MaxRetries(2)}, 2, 10 * time.Second, ""},
		// The bounds of the table in SPEC D.1. SPEC D4: 500 ms is the least.
		{[]limpet.StubOption{limpet.MaxRetries(10)}, 10, 10 * time.Second, ""},
		{[]limpet.StubOption{limpet.MaxRetries(11)}, 0, 0, r1},
		{[]limpet.StubOption{limpet.MaxRetries(-1)}, 0, 0, r1},
		{[]limpet.StubOption{limpet.MaxRetries(499)}, 0, 0, r1},
		{[]limpet.StubOption{limpet.MaxRetries(1 << 53)}, 0, 0, r1},
		{[]limpet.StubOption{limpet.RetryTimeout(500 * ms)}, 4, 500 * ms, ""},
		{[]limpet.StubOption{limpet.RetryTimeout(60_000 * ms)}, 4, time.Minute, ""},
		{[]limpet.StubOption{limpet.RetryTimeout(499 * ms)}, 0, 0, r2},
		{[]limpet.StubOption{limpet.RetryTimeout(60_001 * ms)}, 0, 0, r2},
		{[]limpet.StubOption{limpet.RetryTimeout(0)}, 0, 0, r2},
		{[]limpet.StubOption{limpet.RetryTimeout(-time.Second)}, 0, 0, r2},
		{[]limpet.StubOption{limpet.RetryTimeout(1<<63 - 1)}, 0, 0, r2},
		// SPEC D8: nothing is rounded.
		{[]limpet.StubOption{limpet.RetryTimeout(500*ms + 500*time.Microsecond)}, 0, 0, r2},
		{[]limpet.StubOption{limpet.RetryTimeout(time.Second + 1)}, 0, 0, r2},
		// SPEC D21: the number of retries first.
		{[]limpet.StubOption{limpet.RetryTimeout(ms), limpet.MaxRetries(11)}, 0, 0, r1},
		{[]limpet.StubOption{limpet.MaxRetries(11), limpet.RetryTimeout(ms)}, 0, 0, r1},
		// The last of two counts.
		{[]limpet.StubOption{limpet.MaxRetries(11), limpet.MaxRetries(1)}, 1, 10 * time.Second, ""},
		{[]limpet.StubOption{nil}, 0, 0, "option is nil"},
		{[]limpet.StubOption{limpet.MaxRetries(1), nil}, 0, 0, "option is nil"},
	} {
		// SPEC D1: by each way to a stub.
		for way, stub := range map[string]*limpet.Stub[any]{
			"Named": ns.Named("n", c.opts...), "Get": ns.Get(id, c.opts...), "Existing": ns.Existing(id, c.opts...),
			"Jurisdiction": ns.Jurisdiction("eu").Named("n", c.opts...),
		} {
			if c.refused == "" {
				if got, want := stub.Policy(), (limpet.RetryPolicy{MaxRetries: c.retries, Timeout: c.timeout}); got != want || stub.Err() != nil {
					t.Errorf("%s: got %+v, %v, want %+v", way, got, stub.Err(), want)
				}
				continue
			}
			// SPEC D9: at once, and always.
			refused(t, stub.Err(), limpet.CodeInvalidArgument, c.refused)
			before := node.attempts()
			_, err := stub.Invoke(t.Context(), "m")
			refused(t, err, limpet.CodeInvalidArgument, c.refused)
			if e := asError(t, err); e.Attempts != 0 || node.attempts() != before {
				t.Errorf("%s: %d attempts were made", way, node.attempts()-before)
			}
		}
	}
	for want, option := range map[string]limpet.StubOption{
		"MaxRetries(11): must be from 0 to 10":                                                 limpet.MaxRetries(11),
		"RetryTimeout(0s): must be whole milliseconds from 500ms to 60s":                       limpet.RetryTimeout(0),
		"RetryTimeout(1.000000001s): must be whole milliseconds from 500ms to 60s":             limpet.RetryTimeout(time.Second + 1),
		"RetryTimeout(2562047h47m16.854775807s): must be whole milliseconds from 500ms to 60s": limpet.RetryTimeout(1<<63 - 1),
	} {
		if e := asError(t, ns.Named("n", option).Err()); e.Name != "RangeError" || e.Error() != want {
			t.Errorf("got %s %v", e.Name, e)
		}
	}
}

func TestRetryPolicyOfBinding(t *testing.T) {
	node := nodeOf(nil, nil)
	node.binding.Policy = limpet.RetryPolicy{MaxRetries: 2, Timeout: 3 * time.Second}
	var seen []limpet.RetryPolicy
	node.intercept = func(c *limpet.CallSpec) (any, error, bool) {
		seen = append(seen, c.Policy)
		return nil, nil, true
	}
	ns := namespace[any](t, node)
	for _, c := range []struct {
		opts []limpet.StubOption
		want limpet.RetryPolicy
	}{
		{nil, limpet.RetryPolicy{MaxRetries: 2, Timeout: 3 * time.Second}},
		{[]limpet.StubOption{limpet.MaxRetries(7)}, limpet.RetryPolicy{MaxRetries: 7, Timeout: 3 * time.Second}},
		{[]limpet.StubOption{limpet.NoRetries()}, limpet.RetryPolicy{Timeout: 3 * time.Second}},
		{[]limpet.StubOption{limpet.RetryTimeout(time.Second)}, limpet.RetryPolicy{MaxRetries: 2, Timeout: time.Second}},
	} {
		// SPEC D5: field by field; sub-namespaces carry the binding's.
		for _, stub := range []*limpet.Stub[any]{ns.Named("n", c.opts...), ns.Jurisdiction("us").Named("n", c.opts...)} {
			seen = nil
			if _, err := stub.Invoke(t.Context(), "m"); err != nil {
				t.Fatal(err)
			}
			resp, err := stub.Fetch(request(t, "http://object/"))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp
			// SPEC D1: every method call and fetch of the stub carries it.
			if len(seen) != 2 || seen[0] != c.want || seen[1] != c.want || stub.Policy() != c.want {
				t.Errorf("calls carry %+v, the stub %+v, want %+v", seen, stub.Policy(), c.want)
			}
		}
	}
	node.binding.Policy = limpet.RetryPolicy{} // what a Resolver forgot is not taken for "no retries"
	refused(t, namespace[any](t, node).Named("n").Err(), limpet.CodeInvalidArgument, "RetryTimeout(0s)")
}

func TestDefaultRetryPolicy(t *testing.T) {
	// SPEC D2, D3
	if got := limpet.DefaultRetryPolicy(); got != (limpet.RetryPolicy{MaxRetries: 4, Timeout: 10 * time.Second}) || got.Validate() != nil {
		t.Errorf("got %+v", got)
	}
	p, err := limpet.DefaultRetryPolicy().With(limpet.MaxRetries(3))
	if err != nil || p.MaxRetries != 3 {
		t.Errorf("got %+v, %v", p, err)
	}
	_, err = limpet.DefaultRetryPolicy().With(limpet.MaxRetries(99))
	refused(t, err, limpet.CodeInvalidArgument, "99")
}

func request(t testing.TB, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestResetBreaksTheStub(t *testing.T) {
	ways := map[string]func(*limpet.Stub[*Cart]) error{
		"Do": func(s *limpet.Stub[*Cart]) error { return limpet.Do2(t.Context(), s, (*Cart).SetQuantity, "item", 1) },
		"Call": func(s *limpet.Stub[*Cart]) error {
			_, err := limpet.Call1(t.Context(), s, (*Cart).AddOne, "i")
			return err
		},
		"Invoke": func(s *limpet.Stub[*Cart]) error { _, err := s.Invoke(t.Context(), "addOne", "i"); return err },
		"Fetch": func(s *limpet.Stub[*Cart]) error {
			_, err := s.Fetch(request(t, "http://object/")) //nolint:bodyclose // it fails, or has none
			return err
		},
		"RoundTrip": func(s *limpet.Stub[*Cart]) error {
			_, err := s.RoundTrip(request(t, "http://object/")) //nolint:bodyclose // as above
			return err
		},
	}
	for first, breaking := range ways {
		t.Run(first, func(t *testing.T) {
			node := nodeOf(limpet.NewClass("Cart", newCart), &Cart{items: map[string]int{}})
			ns := namespace[*Cart](t, node)
			stub, other := ns.Named("c"), ns.Named("c")
			cause := errors.New("why")
			node.intercept = func(c *limpet.CallSpec) (any, error, bool) {
				return nil, limpet.ResetError(c.Object, "aborted", cause).With(func(e *limpet.Error) {
					e.Attempts, e.Identity, e.RequestID = 1, "0a-1", "ref-7"
				}), true
			}
			e := asError(t, breaking(stub))
			if e.Code != limpet.CodeReset || !e.Reset || e.Delivery != limpet.DeliveryReceived || e.ObjectID != stub.ID().String() || !limpet.BreaksStub(e) {
				t.Errorf("got %+v", e)
			}
			node.intercept = nil
			made := node.attempts()
			for way, call := range ways {
				// SPEC B5: every later call fails at once with the same error,
				// without a delivery; and so it says, also in its text.
				got := asError(t, call(stub))
				if got.Code != limpet.CodeReset || !got.Reset || got.Error() != e.Error()+" (this call was not made: the object was reset under an earlier one; make a fresh stub)" || got.ObjectID != e.ObjectID || got.RequestID != e.RequestID || !errors.Is(got, cause) {
					t.Errorf("%s: got %+v, want what broke the stub", way, got)
				}
				if got.Delivery != limpet.DeliveryNone || got.Attempts != 0 || got.Identity != "" {
					t.Errorf("%s: says %s, %d attempts, %q", way, got.Delivery, got.Attempts, got.Identity)
				}
			}
			if n := node.attempts() - made; n != 0 {
				t.Errorf("%d calls of a broken stub were made", n)
			}
			if !errors.Is(stub.Err(), limpet.CodeReset) || stub.Err().Error() != e.Error() {
				t.Errorf("Err gives %v", stub.Err())
			}
			// SPEC B5: fresh stubs work, and so does one that saw nothing of it.
			for _, s := range []*limpet.Stub[*Cart]{ns.Named("c"), other} {
				if err := breaking(s); err != nil || s.Err() != nil {
					t.Errorf("another stub: %v, %v", err, s.Err())
				}
			}
			// What a caller does to the error it got is not seen by others.
			e.Message = "changed"
			if strings.Contains(stub.Err().Error(), "changed") {
				t.Error("the stub shares its error with the first caller")
			}
		})
	}
}

func TestOthersDoNotBreakTheStub(t *testing.T) {
	node := nodeOf(limpet.NewClass("Cart", newCart), &Cart{items: map[string]int{}})
	ns := namespace[*Cart](t, node)
	inner := limpet.ResetError(ns.NewUniqueID(), "another object was reset", nil)
	for what, failure := range map[string]func(*limpet.CallSpec) error{
		// SPEC B6
		"disconnect": func(*limpet.CallSpec) error {
			return limpet.Errorf(limpet.CodeDisconnected, "Network connection lost.").With(func(e *limpet.Error) { e.Retryable = true })
		},
		"overloaded": func(*limpet.CallSpec) error {
			return limpet.Errorf(limpet.CodeOverloaded, "too much").With(func(e *limpet.Error) { e.Overloaded = true })
		},
		"method error": func(c *limpet.CallSpec) error { return limpet.MethodError(c.Object, errors.New("no")) },
		"code Reset of a method": func(c *limpet.CallSpec) error {
			return limpet.MethodError(c.Object, limpet.Errorf(limpet.CodeReset, "x"))
		},
		"reset of another object":   func(c *limpet.CallSpec) error { return limpet.MethodError(c.Object, inner) },
		"reset of another, wrapped": func(c *limpet.CallSpec) error { return limpet.MethodError(c.Object, fmt.Errorf("calling: %w", inner)) },
		"reset as a cause":          func(*limpet.CallSpec) error { return limpet.Errorf(limpet.CodeInternal, "x: %w", inner) },
		"unknown method":            func(c *limpet.CallSpec) error { return limpet.UnknownMethodError(c.Object, "m") },
	} {
		t.Run(what, func(t *testing.T) {
			stub := ns.Named("c")
			node.intercept = func(c *limpet.CallSpec) (any, error, bool) { return nil, failure(c), true }
			err := limpet.Do2(t.Context(), stub, (*Cart).SetQuantity, "item", 1)
			_ = asError(t, err)
			if limpet.BreaksStub(err) || stub.Err() != nil {
				t.Errorf("the stub is broken: %v", stub.Err())
			}
			node.intercept = nil
			if err := limpet.Do2(t.Context(), stub, (*Cart).SetQuantity, "item", 1); err != nil {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

func TestNilsAndZeros(t *testing.T) {
	node := nodeOf(limpet.NewClass("Cart", newCart), &Cart{items: map[string]int{}})
	good := namespace[*Cart](t, node).Named("c")
	var zero limpet.Namespace[*Cart]
	_, err := zero.IDFromName("n")
	refused(t, err, limpet.CodeInvalidArgument, "Namespace is zero", "NamespaceOf")
	_, err = zero.IDFromString(strings.Repeat("0", 64))
	refused(t, err, limpet.CodeInvalidArgument, "Namespace is zero")
	if !zero.NewUniqueID().IsZero() {
		t.Error("a zero namespace makes IDs")
	}
	for what, stub := range map[string]*limpet.Stub[*Cart]{
		"nil": nil, "zero": {}, "zero namespace's Named": zero.Named("n"), "zero namespace's Get": zero.Get(good.ID()),
		"zero namespace's Existing": zero.Existing(good.ID()), "zero namespace's Jurisdiction": zero.Jurisdiction("eu").Named("n"),
	} {
		t.Run(what, func(t *testing.T) {
			refused(t, stub.Err(), limpet.CodeInvalidArgument, "zero")
			_, invoked := stub.Invoke(t.Context(), "m")
			_, encoded := stub.InvokeParcel(t.Context(), "m", limpet.Parcel{})
			_, called := limpet.Call1(t.Context(), stub, (*Cart).AddOne, "i")
			_, fetched := stub.Fetch(request(t, "http://object/"))     //nolint:bodyclose // it fails
			_, tripped := stub.RoundTrip(request(t, "http://object/")) //nolint:bodyclose // it fails
			for _, err := range []error{invoked, encoded, called, fetched, tripped, limpet.Do2(t.Context(), stub, (*Cart).SetQuantity, "i", 1)} {
				refused(t, err, limpet.CodeInvalidArgument, "zero")
				_ = asError(t, err)
			}
		})
	}
	var noContext context.Context
	_, invoked := good.Invoke(noContext, "m")
	_, encoded := good.InvokeParcel(noContext, "m", limpet.Parcel{})
	for _, err := range []error{invoked, encoded, limpet.Do2(noContext, good, (*Cart).SetQuantity, "i", 1)} {
		refused(t, err, limpet.CodeInvalidArgument, "context", "nil")
	}
	_, err = good.Fetch(nil) //nolint:bodyclose // it fails
	refused(t, err, limpet.CodeInvalidArgument, "request", "nil")
	if node.attempts() != 0 {
		t.Errorf("%d calls were made", node.attempts())
	}
}

type closeCounter struct {
	io.Reader
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func TestFetch(t *testing.T) {
	node := nodeOf(limpet.NewClass("Cart", newCart), &Cart{})
	ns := namespace[*Cart](t, node)
	stub := ns.Existing(ns.NewUniqueID())
	var seen *limpet.CallSpec
	node.intercept = func(c *limpet.CallSpec) (any, error, bool) { seen = c; return nil, nil, false }
	for _, follow := range []bool{true, false} {
		do := stub.RoundTrip
		if follow {
			do = stub.Fetch
		}
		req := request(t, "http://object/path?q=1")
		resp, err := do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent || node.fetches[len(node.fetches)-1] != req || node.follow[len(node.follow)-1] != follow {
			t.Errorf("follow %v: got %+v", follow, resp)
		}
		if seen.Kind != limpet.KindFetch || seen.Kind.String() != "fetch" || seen.Method != "" || seen.Runner != nil || !seen.Existing || !seen.Object.Equal(stub.ID()) || seen.Binding.Name != "CART" {
			t.Errorf("follow %v: the call is %+v", follow, seen)
		}
	}
	made := node.attempts()
	for what, c := range map[string]struct {
		stub *limpet.Stub[*Cart]
		url  string
	}{
		// SPEC B8, B9: every fault is in the result
		"relative URL":   {stub, "/path"},
		"no host":        {stub, "http:///path"},
		"opaque":         {stub, "mailto:a@b"},
		"stub has error": {ns.Named("\xff"), "http://object/"},
	} {
		body := &closeCounter{Reader: strings.NewReader("x")}
		req := request(t, c.url)
		req.Body = body
		_, err := c.stub.Fetch(req) //nolint:bodyclose // it fails
		refused(t, err, limpet.CodeInvalidArgument)
		// As http.RoundTripper says: closed, also on errors.
		if body.closed != 1 {
			t.Errorf("%s: the body was closed %d times", what, body.closed)
		}
	}
	if node.attempts() != made {
		t.Error("a refused fetch was made")
	}
	var _ http.RoundTripper = stub
}

// A server's handler passes on what it received.
func TestFetchOfReceivedRequest(t *testing.T) {
	node := nodeOf(limpet.NewClass("Cart", newCart), &Cart{})
	stub := namespace[*Cart](t, node).Named("c")
	// SPEC B8: such a request is sent as it is; its URL is made absolute.
	req := httptest.NewRequest(http.MethodPost, "/path?q", strings.NewReader("x"))
	req.URL.Scheme, req.URL.Host = "", "" // as net/http's server leaves them
	resp, err := stub.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if len(node.fetches) != 1 || node.fetches[0] != req {
		t.Errorf("got %d requests", len(node.fetches))
	}
	req.Host = ""
	_, err = stub.Fetch(req) //nolint:bodyclose // it fails
	refused(t, err, limpet.CodeInvalidArgument, "Invalid URL")
}

func TestInvoke(t *testing.T) {
	cart := &Cart{items: map[string]int{}}
	node := nodeOf(limpet.NewClass("Cart", newCart), cart)
	stub := namespace[any](t, node).Named("c")
	ctx := t.Context()
	v, err := stub.Invoke(ctx, "setQuantity", "item", 3)
	if v != nil || err != nil || cart.items["item"] != 3 {
		t.Errorf("got %v, %v, %v", v, err, cart.items)
	}
	if v, err = stub.Invoke(ctx, "addOne", "item"); err != nil || v != 4.0 { // the codec of this test is JSON
		t.Errorf("got %v, %v", v, err)
	}
	e, err := stub.InvokeParcel(ctx, "quantity", limpet.Parcel{Bytes: limpet.Encoded(`["item"]`)})
	if err != nil || string(e.Bytes) != "4" {
		t.Errorf("got %s, %v", e.Bytes, err)
	}
	if name, ok := stub.Name(); name != "c" || !ok {
		t.Errorf("the stub's name is %q, %v", name, ok)
	}

	for _, c := range []struct {
		method string
		args   []any
		code   limpet.Code
		words  []string
	}{
		// SPEC C30
		{"nope", nil, limpet.CodeUnknownMethod, []string{`The RPC receiver does not implement the method "nope".`}},
		{"SetQuantity", nil, limpet.CodeUnknownMethod, []string{`does not implement the method "SetQuantity". Did you mean "setQuantity"?`}},
		{"addone", nil, limpet.CodeUnknownMethod, []string{`does not implement the method "addone". Did you mean "addOne"?`}},
		{"AddOne", []any{"i"}, limpet.CodeUnknownMethod, []string{`"AddOne"`}},
		{"", nil, limpet.CodeUnknownMethod, []string{`""`}},
		{"toString", nil, limpet.CodeUnknownMethod, []string{`"toString"`}},
		{"serveHTTP", nil, limpet.CodeUnknownMethod, []string{`"serveHTTP"`}},
		// SPEC B20, C31
		{"alarm", nil, limpet.CodeUnknownMethod, []string{"'alarm' is a reserved method and cannot be called over RPC."}},
		{"fetch", nil, limpet.CodeUnknownMethod, []string{"'fetch' is a reserved method"}},
		{"constructor", nil, limpet.CodeUnknownMethod, []string{"'constructor' is a reserved method"}},
		{"addOne", nil, limpet.CodeInvalidArgument, []string{"addOne(string)", "0", "1"}},
		{"addOne", []any{"i", 2}, limpet.CodeInvalidArgument, []string{"addOne(string)", "2", "1"}},
		{"setQuantity", []any{"i", "two"}, limpet.CodeInvalidArgument, []string{"setQuantity(string, int)", "argument 2"}},
	} {
		_, err := stub.Invoke(ctx, c.method, c.args...)
		e := asError(t, err)
		if e.Code != c.code || e.Delivery != limpet.DeliveryReceived || !e.ByLimpet() || e.ObjectID != stub.ID().String() {
			t.Errorf("%s: got %+v", c.method, e)
		}
		contains(t, err, c.words...)
		if c.code == limpet.CodeUnknownMethod && (e.Name != "TypeError" || !e.Remote) {
			t.Errorf("%s: got name %q, remote %v", c.method, e.Name, e.Remote)
		}
	}
	_, err = stub.Invoke(ctx, strings.Repeat("m", 1<<20))
	if e := asError(t, err); len(e.Error()) > 400 {
		t.Errorf("the error has %d bytes", len(e.Error()))
	}

	made := node.attempts()
	_, err = stub.Invoke(ctx, "addOne", func() {})
	// SPEC C32: an argument that can't be carried is refused without an attempt.
	refused(t, err, limpet.CodeInvalidArgument, "addOne", "func")
	if node.attempts() != made {
		t.Error("a call was made")
	}

	node.binding.Class = nil
	_, err = namespace[any](t, node).Named("c").Invoke(ctx, "addOne", "i")
	if e := asError(t, err); e.Code != limpet.CodeInternal || !e.ByLimpet() {
		t.Errorf("a class that is not here: %+v", e)
	}
	node.intercept = func(*limpet.CallSpec) (any, error, bool) { return 5, nil, true }
	_, err = stub.Invoke(ctx, "addOne", "i")
	if e := asError(t, err); e.Code != limpet.CodeInternal || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("a result of no format: %+v", e)
	}
	node.intercept = func(*limpet.CallSpec) (any, error, bool) { return limpet.Encoded("{"), nil, true }
	_, err = stub.Invoke(ctx, "addOne", "i")
	if e := asError(t, err); e.Code != limpet.CodeInvalidArgument || e.Delivery != limpet.DeliveryReceived {
		t.Errorf("a result that can't be read: %+v", e)
	}
}

func TestOriginOf(t *testing.T) {
	ctx := t.Context()
	var fromContext, fromBinding fakeOrigin
	if o := limpet.OriginOf(ctx, nil); o != nil {
		t.Errorf("got %v", o)
	}
	with := limpet.WithOrigin(ctx, &fromContext)
	if o := limpet.OriginOf(with, &limpet.Binding{}); o != &fromContext {
		t.Errorf("got %v, want the context's", o)
	}
	if o := limpet.OriginOf(with, &limpet.Binding{Origin: &fromBinding}); o != &fromBinding {
		t.Errorf("got %v, want the binding's", o)
	}
	if with.Value(limpet.OriginKey()) != &fromContext {
		t.Error("the key does not find it")
	}
}

type texts struct{}

func (*texts) Echo(_ context.Context, s string) (string, error) { return s, nil }

func (*texts) Repeat(_ context.Context, s string, n int) (string, error) {
	return strings.Repeat(s, n), nil
}

func TestLargeTexts(t *testing.T) {
	// SPEC B30: also where nothing is encoded, since another process may run the
	// object tomorrow.
	ctx := context.Background()
	class := limpet.NewClass("Texts", func(*limpet.State) (*texts, error) { return &texts{}, nil })
	n := nodeOf(class, &texts{})
	s := namespace[*texts](t, n).Named("x")
	half := strings.Repeat("x", limpet.MaxValueBytes/2)
	if got, err := limpet.Call1(ctx, s, (*texts).Echo, half); err != nil || got != half {
		t.Errorf("16 MiB: got %d bytes, %v", len(got), err)
	}
	before := n.attempts()
	_, err := limpet.Call1(ctx, s, (*texts).Echo, half+half)
	if e := asError(t, err); e.Code != limpet.CodeTooLarge || e.Delivery != limpet.DeliveryNone || !strings.Contains(e.Error(), "32MiB") {
		t.Errorf("an argument over 32 MiB: got %v (%v)", e.Code, e.Delivery)
	}
	if n.attempts() != before {
		t.Error("it was sent")
	}
	_, err = limpet.Call2(ctx, s, (*texts).Repeat, half, 3)
	if e := asError(t, err); e.Code != limpet.CodeTooLarge || !strings.Contains(e.Error(), "32MiB") {
		t.Errorf("a result over 32 MiB: got %v", e.Code)
	}
}
