package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// TestNumberOfAttempts calls a node that hangs up on everybody, and counts the
// connections.
func TestNumberOfAttempts(t *testing.T) {
	w := open(t, nil)
	for _, test := range []struct {
		opts  []limpet.StubOption
		most  int
		exact bool
		why   string
	}{
		// SPEC D2, D3, E26: 1 + 4 by default, within 10 s
		{nil, 5, false, ""},
		{[]limpet.StubOption{limpet.RetryTimeout(time.Minute)}, 5, true, "all 5 attempts failed"},
		{[]limpet.StubOption{limpet.NoRetries()}, 1, true, ""},
		{[]limpet.StubOption{limpet.MaxRetries(1)}, 2, true, "all 2 attempts failed"},
		{[]limpet.StubOption{limpet.MaxRetries(10), limpet.RetryTimeout(time.Minute)}, 11, true, "all 11 attempts failed"},
		// SPEC E12, E27: no attempt begins after the timeout, and none is waited for
		{[]limpet.StubOption{limpet.MaxRetries(10), limpet.RetryTimeout(1500 * time.Millisecond)}, 10, false, "no time for another attempt within the retry timeout of 1.5s"},
	} {
		t.Run(fmt.Sprint(test.most, " ", test.why), func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, w.addr)
			c := dial(t, p.addr())
			s := shops(t, c).Named("x", test.opts...)
			p.hangUp.Store(true)
			p.cut()
			_, _ = limpet.Call1(t.Context(), shops(t, c).Named("x", limpet.NoRetries()), Shop.Add, 1) // it may not have noticed yet
			before := len(p.calls())
			begun := time.Now()
			_, err := limpet.Call1(t.Context(), s, Shop.Add, 1)
			took := time.Since(begun)
			e := errorOf(t, err)
			if e.Code != limpet.CodeDisconnected || e.Delivery != limpet.DeliveryNone || !e.Retryable || e.Identity != "" {
				t.Errorf("the caller gets %+v", e)
			}
			calls := p.calls()[before:]
			if len(calls) != e.Attempts || e.Attempts > test.most || test.exact && e.Attempts != test.most {
				t.Errorf("%d attempts, %d connections, want %d", e.Attempts, len(calls), test.most)
			}
			if limit := s.Policy().Timeout; took > limit+5*time.Second || len(calls) > 1 && calls[len(calls)-1].Sub(begun) > limit {
				t.Errorf("the call took %v and its last attempt was at %v; the timeout is %v", took, calls[len(calls)-1].Sub(begun), limit)
			}
			if test.why != e.NoRetry && test.why != "" {
				t.Errorf("the reason is %q, want %q", e.NoRetry, test.why)
			}
		})
	}
}

// TestRetryFindsAnotherWay loses one of two ways to a node while a call runs there,
// for good.
func TestRetryFindsAnotherWay(t *testing.T) {
	for _, marked := range []bool{true, false} {
		t.Run(fmt.Sprint("marked ", marked), func(t *testing.T) {
			w := openFailing(t, false)
			addr := w.n.WireAddr().String()
			first, second := newProxy(t, addr), newProxy(t, addr)
			w.f.cut = func() {
				first.hangUp.Store(true)
				first.cut()
			}
			c, err := client.Dial(t.Context(), []string{first.addr(), second.addr()})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ns, err := limpet.NamespaceOf[Failing](c, "FAILING")
			if err != nil {
				t.Fatal(err)
			}
			if second.up.Load() != 0 {
				t.Error("the second way was taken at once")
			}
			call, runs := Failing.Do, 1
			if marked {
				call, runs = Failing.Marked, 2
			}
			// SPEC E29: the next attempt looks for the object afresh.
			err = limpet.Do1(t.Context(), ns.Named("x"), call, "cut")
			if n := w.f.runs("x"); n != runs || len(first.calls()) == 0 || second.up.Load() == 0 {
				t.Errorf("it ran %d times, want %d; %d bytes went the other way", n, runs, second.up.Load())
			}
			if marked {
				if err != nil {
					t.Errorf("a marked call gives %v", err)
				}
				return
			}
			e := errorOf(t, err)
			if e.Delivery != limpet.DeliveryUncertain || e.Attempts != 2 {
				t.Errorf("an unmarked call gives %+v", e)
			}
			wantIn(t, "the reason", e.NoRetry, "the object refused a retry")
		})
	}
}

// TestFirstAttemptMayLast lets a first attempt take longer than the retry timeout.
func TestFirstAttemptMayLast(t *testing.T) {
	w := open(t, nil)
	s := shops(t, dial(t, w.addr)).Named("x", limpet.RetryTimeout(500*time.Millisecond))
	go func() {
		<-w.g.entered
		time.Sleep(700 * time.Millisecond) // beyond the timeout
		close(w.g.open)
	}()
	// SPEC E32, D10
	if err := limpet.Do(t.Context(), s, Shop.Wait); err != nil {
		t.Errorf("a first attempt that lasts gives %v", err)
	}
}

// TestCancelWhileRetrying has the caller leave while a retry runs: its handler's
// context ends.
func TestCancelWhileRetrying(t *testing.T) {
	w := open(t, nil)
	p := newProxy(t, w.addr)
	c := dial(t, p.addr())
	s := shops(t, c).Named("x")
	p.cutUp.Store(1) // the first attempt never arrives
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	wait := later(func() error { return limpet.Do(ctx, s, Shop.Wait) })
	<-w.g.entered
	cancel(reason)
	// SPEC E34
	e := errorOf(t, wait())
	if e.Code != limpet.CodeCanceled || !errors.Is(e, reason) || e.Attempts != 2 || e.Delivery != limpet.DeliveryUncertain || e.Identity == "" {
		t.Errorf("the caller gets %+v", e)
	}
	if err := <-w.g.ended; err == nil {
		t.Error("the handler's context did not end")
	}
	// SPEC I3, I4
	n := 0.0
	for _, m := range c.Metrics() {
		if m.Name == "limpet_call_retry_outcomes_total" && m.Labels["outcome"] == "canceled" {
			n += m.Value
		}
	}
	if n != 1 {
		t.Errorf("%v canceled calls counted", n)
	}
}

// TestRedirectsOverTheWire follows redirects of every kind.
func TestRedirectsOverTheWire(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	_, _, ns := openFetches(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		line := strings.TrimSpace(r.Method + " " + r.Host + r.RequestURI + " " + string(b))
		if err != nil {
			line += err.Error()
		}
		if a := r.Header.Get("Authorization"); a != "" {
			line += " (" + a + ")"
		}
		if ct := r.Header.Get("Content-Type"); ct != "" {
			line += " " + ct
		}
		mu.Lock()
		asked = append(asked, line)
		mu.Unlock()
		var status int
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &status); err == nil {
			if to := r.URL.Query()["to"]; len(to) > 0 {
				w.Header()["Location"] = to
			}
			w.WriteHeader(status)
		}
	})
	stub := ns.Named("x")
	for _, test := range []struct {
		name, method, url, body string
		stream                  bool
		asked                   []string
		status                  int
		final                   string // URL of the answer
		redirected              bool
		err                     string
	}{
		// SPEC B11: on the same stub; who gets which method and body
		{"301 POST", "POST", "http://o/301?to=/b", "hi", false, []string{"POST o/301?to=/b hi text/x", "GET o/b"}, 200, "http://o/b", true, ""},
		{"302 PUT", "PUT", "http://o/302?to=/b", "hi", false, []string{"PUT o/302?to=/b hi text/x", "PUT o/b hi text/x"}, 200, "http://o/b", true, ""},
		{"303 PUT", "PUT", "http://o/303?to=/b", "hi", false, []string{"PUT o/303?to=/b hi text/x", "GET o/b"}, 200, "http://o/b", true, ""},
		{"303 HEAD", "HEAD", "http://o/303?to=/b", "", false, []string{"HEAD o/303?to=/b text/x", "HEAD o/b text/x"}, 200, "http://o/b", true, ""},
		{"307 POST", "POST", "http://o/307?to=b%3Fc", "hi", false, []string{"POST o/307?to=b%3Fc hi text/x", "POST o/b?c hi text/x"}, 200, "http://o/b?c", true, ""},
		{"308 POST", "POST", "http://o/308?to=http://p/b", "hi", false, []string{"POST o/308?to=http://p/b hi text/x", "POST p/b hi text/x"}, 200, "http://p/b", true, ""},
		// SPEC B12: needs a body that is gone, but for 303
		{"307 stream", "POST", "http://o/307?to=/b", "hi", true, []string{"POST o/307?to=/b hi text/x"}, 0, "", false, "can be read only once"},
		{"301 stream", "POST", "http://o/301?to=/b", "hi", true, []string{"POST o/301?to=/b hi text/x"}, 0, "", false, "can be read only once"},
		{"303 stream", "POST", "http://o/303?to=/b", "hi", true, []string{"POST o/303?to=/b hi text/x", "GET o/b"}, 200, "http://o/b", true, ""},
		// SPEC B14
		{"another origin", "GET", "http://u:p@o/302?to=http://o:81/b", "", false, []string{"GET o/302?to=http://o:81/b (secret) text/x", "GET o:81/b text/x"}, 200, "http://o:81/b", true, ""},
		{"the same origin", "GET", "http://o/302?to=http://o:80/b", "", false, []string{"GET o/302?to=http://o:80/b (secret) text/x", "GET o:80/b (secret) text/x"}, 200, "http://o:80/b", true, ""},
		// SPEC B15
		{"no Location", "GET", "http://o/302", "", false, []string{"GET o/302 text/x"}, 302, "http://o/302", false, ""},
		{"bad Location", "GET", "http://o/302?to=http://[", "", false, []string{"GET o/302?to=http://[ text/x"}, 0, "", false, "Invalid Location header; unable to follow redirect."},
		{"304", "GET", "http://o/304?to=/b", "", false, []string{"GET o/304?to=/b text/x"}, 304, "http://o/304?to=/b", false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked = nil
			var body io.Reader
			if test.stream {
				body = plainReader([]byte(test.body))
			} else if test.body != "" {
				body = bytes.NewReader([]byte(test.body))
			}
			req := newRequest(t, test.method, test.url, body)
			req.Header.Set("Content-Type", "text/x")
			if strings.Contains(test.name, "origin") {
				req.Header.Set("Authorization", "secret")
			}
			resp, err := stub.Fetch(req)
			if test.err != "" {
				if e := errorOf(t, err); e.Name != "TypeError" || e.Delivery != limpet.DeliveryReceived || e.Attempts != 1 {
					t.Errorf("the caller gets %+v", e)
				}
				wantIn(t, "the error", err.Error(), test.err)
			} else if err != nil {
				t.Fatal(err)
			} else {
				resp.Body.Close()
				if resp.StatusCode != test.status || resp.Request.URL.String() != test.final || (resp.Request.Response != nil) != test.redirected {
					t.Errorf("the answer is %d from %v, redirected: %v", resp.StatusCode, resp.Request.URL, resp.Request.Response != nil)
				}
			}
			if diff := cmp.Diff(test.asked, asked); diff != "" {
				t.Errorf("the object was asked (- want, + got)\n%s", diff)
			}
		})
	}
	// SPEC B13: twenty are followed, so that the handler has run 21 times.
	asked = nil
	_, err := stub.Fetch(newRequest(t, "GET", "http://o/302?to=", nil))
	if e := errorOf(t, err); e.Name != "TypeError" || len(asked) != 21 {
		t.Errorf("after %d requests: %+v", len(asked), e)
	}
	wantIn(t, "the error", err.Error(), "Too many redirects. http://o/302?to=, ")
}

// TestRedirectsShareTheTimeout has a second hop that is lost after the timeout of
// the first.
func TestRedirectsShareTheTimeout(t *testing.T) {
	var p *proxy
	var hops atomic.Int64
	p, _, ns := openFetches(t, func(w http.ResponseWriter, r *http.Request) {
		hops.Add(1)
		if r.URL.Path == "/a" {
			time.Sleep(600 * time.Millisecond) // the timeout passes
			http.Redirect(w, r, "/b", http.StatusFound)
			return
		}
		p.cut()
	})
	_, err := ns.Named("x", limpet.RetryTimeout(500*time.Millisecond)).Fetch(newRequest(t, "GET", "http://o/a", nil))
	// SPEC E43: the later hop has a first attempt only.
	e := errorOf(t, err)
	if e.Code != limpet.CodeDisconnected || e.Attempts != 2 || hops.Load() != 2 {
		t.Errorf("after %d requests: %+v", hops.Load(), e)
	}
	wantIn(t, "the reason", e.NoRetry, "no time for another attempt")
}

// TestRetryDefaults sets defaults of a binding; they hold everywhere, and a stub's
// own options win, one by one.
func TestRetryDefaults(t *testing.T) {
	w := open(t, func(c *node.Config) {
		c.Namespaces = map[string]node.Namespace{
			"SHOP":  {Class: "Shop", Defaults: []limpet.StubOption{limpet.MaxRetries(1)}},
			"HASTY": {Class: "Shop", Defaults: []limpet.StubOption{limpet.NoRetries(), limpet.RetryTimeout(500 * time.Millisecond)}},
		}
	})
	p := newProxy(t, w.addr)
	c := dial(t, p.addr())
	hasty, err := limpet.NamespaceOf[Shop](c, "HASTY")
	if err != nil {
		t.Fatal(err)
	}
	shops := shops(t, c)
	p.hangUp.Store(true)
	p.cut()
	_, _ = limpet.Call1(t.Context(), hasty.Named("x"), Shop.Add, 1) // it may not have noticed yet
	for name, test := range map[string]struct {
		stub *limpet.Stub[Shop]
		want limpet.RetryPolicy
	}{
		// SPEC D1, D5
		"binding":                 {shops.Named("x"), limpet.RetryPolicy{MaxRetries: 1, Timeout: 10 * time.Second}},
		"another binding":         {hasty.Named("x"), limpet.RetryPolicy{MaxRetries: 0, Timeout: 500 * time.Millisecond}},
		"jurisdiction":            {shops.Jurisdiction("eu").Named("x"), limpet.RetryPolicy{MaxRetries: 1, Timeout: 10 * time.Second}},
		"by ID":                   {shops.Get(shops.NewUniqueID()), limpet.RetryPolicy{MaxRetries: 1, Timeout: 10 * time.Second}},
		"existing":                {shops.Existing(shops.NewUniqueID()), limpet.RetryPolicy{MaxRetries: 1, Timeout: 10 * time.Second}},
		"retries of a stub":       {hasty.Jurisdiction("us").Named("x", limpet.MaxRetries(2), limpet.RetryTimeout(time.Minute)), limpet.RetryPolicy{MaxRetries: 2, Timeout: time.Minute}},
		"only retries of a stub":  {shops.Named("x", limpet.MaxRetries(0)), limpet.RetryPolicy{MaxRetries: 0, Timeout: 10 * time.Second}},
		"only the time of a stub": {shops.Named("x", limpet.RetryTimeout(time.Minute)), limpet.RetryPolicy{MaxRetries: 1, Timeout: time.Minute}},
	} {
		if got := test.stub.Policy(); got.MaxRetries != test.want.MaxRetries || got.Timeout != test.want.Timeout {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
		_, err := limpet.Call1(t.Context(), test.stub, Shop.Add, 1)
		if e := errorOf(t, err); e.Attempts != 1+test.want.MaxRetries || e.Delivery != limpet.DeliveryNone {
			t.Errorf("%s: %+v, want %d attempts", name, e, 1+test.want.MaxRetries)
		}
	}
}

// TestRetryDefaultsAreChecked gives defaults that are out of bounds to a node.
func TestRetryDefaultsAreChecked(t *testing.T) {
	for _, test := range []struct {
		opts []limpet.StubOption
		want string
	}{
		// SPEC D2, D3, D9, D21: the bounds of D.1, retries first
		{[]limpet.StubOption{limpet.MaxRetries(-1)}, "MaxRetries(-1): must be from 0 to 10"},
		{[]limpet.StubOption{limpet.MaxRetries(11), limpet.RetryTimeout(1)}, "MaxRetries(11): must be from 0 to 10"},
		{[]limpet.StubOption{limpet.RetryTimeout(0)}, "RetryTimeout(0s): must be whole milliseconds from 500ms to 60s"},
		{[]limpet.StubOption{limpet.RetryTimeout(499 * time.Millisecond)}, "RetryTimeout(499ms)"},
		{[]limpet.StubOption{limpet.RetryTimeout(500*time.Millisecond + 1)}, "RetryTimeout(500.000001ms)"},
		{[]limpet.StubOption{limpet.RetryTimeout(60_001 * time.Millisecond)}, "RetryTimeout(1m0.001s)"},
		{[]limpet.StubOption{nil}, "a stub option is nil"},
	} {
		n, err := node.Open(t.Context(), node.Config{
			Dir: t.TempDir() + "/d", Classes: []*limpet.Class{gatedClass},
			Namespaces: map[string]node.Namespace{"BOUND": {Class: "Gated", Defaults: test.opts}},
		})
		if err == nil {
			t.Errorf("%s: opened", test.want)
			_ = n.Close()
			continue
		}
		wantIn(t, "the error", err.Error(), "namespace BOUND", test.want)
		if !errors.Is(err, limpet.CodeInvalidArgument) {
			t.Errorf("%v is %v", err, limpet.CodeOf(err))
		}
	}
}
