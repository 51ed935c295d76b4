package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
)

// listener is an object that listens to bodies: of each attempt it reads so many
// bytes (-1: all), and then the connection is lost, or it answers.
type listener struct {
	reads   []int // of each attempt before the last one, which reads all
	answers map[int]*http.Response
	late    bool // the last attempt answers before it reads

	mu    sync.Mutex
	heard []string
	after sync.WaitGroup
	observed
}

// observed counts what an Observer hears.
type observed struct {
	noObserver
	refusals int
	outcomes []Outcome
}

func (o *observed) ReplayRefused(*limpet.CallSpec) { o.refusals++ }
func (o *observed) Outcome(_ *limpet.CallSpec, out Outcome, _ time.Duration) {
	o.outcomes = append(o.outcomes, out)
}

func (l *listener) Route(context.Context, *limpet.CallSpec) (Transport, error) { return l, nil }
func (l *listener) Lossless() bool                                             { return false }
func (l *listener) Boot() Boot                                                 { return Boot{} }
func (l *listener) Do(context.Context, Attempt) (any, error)                   { panic("no methods here") }

func (l *listener) Fetch(_ context.Context, a Attempt) (*http.Response, error) {
	body := a.Request.Body
	l.mu.Lock()
	n := len(l.heard)
	l.heard = append(l.heard, "")
	l.mu.Unlock()
	hear := func(r io.Reader) {
		b, err := io.ReadAll(r)
		text := string(b)
		if err != nil {
			text += " " + err.Error()
		}
		for k, v := range a.Request.Trailer {
			text += fmt.Sprint(" ", k, v)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.heard[n] = text
	}
	if n < len(l.reads) {
		defer body.Close()
		if k := l.reads[n]; k >= 0 {
			hear(io.LimitReader(body, int64(k)))
		} else {
			hear(body)
		}
		if resp := l.answers[n]; resp != nil {
			return resp, nil
		}
		return nil, lost(limpet.DeliveryUncertain)
	}
	if l.late {
		l.after.Go(func() {
			defer body.Close()
			hear(body)
		})
	} else {
		hear(body)
		body.Close()
	}
	return response(200, "done"), nil
}

func (l *listener) engine(t *testing.T, pool int64) *Engine {
	e := New(Config{Router: l, Clock: sim.Clock{}, Observer: &l.observed, ReplayMemory: pool})
	e.setDelays(t)
	return e
}

// one gives one byte at a time, as slow networks do.
type one struct{ io.Reader }

func (o one) Read(p []byte) (int, error) { return o.Reader.Read(p[:min(1, len(p))]) }

func TestBufferBody(t *testing.T) {
	long := strings.Repeat("0123456789", 1000) // 10,000 bytes
	tests := []struct {
		name     string
		body     string
		reads    []int
		limit    int64
		pool     int64
		length   int64 // Content-Length, 0: not known
		attempts int
		why      string // the call fails, and that is why it was not retried
		refusals int
		outcome  []Outcome
	}{
		// SPEC G1: a body is replayable if it is kept
		{name: "all of it, each time", body: long, reads: []int{-1, -1, -1, -1}, limit: 10_000, attempts: 5, outcome: []Outcome{OutcomeRecovered}},
		{name: "some more each time", body: long, reads: []int{0, 1, 5000, 9999}, limit: 1 << 20, attempts: 5, outcome: []Outcome{OutcomeRecovered}},
		{name: "less each time", body: long, reads: []int{-1, 9999, 1, 0}, limit: 1 << 40, attempts: 5, outcome: []Outcome{OutcomeRecovered}},
		{name: "empty", body: "", reads: []int{-1, 0}, limit: 1, attempts: 3, outcome: []Outcome{OutcomeRecovered}},
		{name: "length known", body: long, reads: []int{-1}, limit: 10_000, length: 10_000, attempts: 2, outcome: []Outcome{OutcomeRecovered}},
		// SPEC G21: without room the call goes on, and is not retried
		{name: "off", body: long, reads: []int{-1}, limit: 0, attempts: 1, why: onceOnly},
		{name: "too long", body: long, reads: []int{-1}, limit: 9999, attempts: 1, refusals: 1, why: "the request body is larger than the 9999 bytes of BufferBody"},
		{name: "too long, and well", body: long, reads: nil, limit: 9999, attempts: 1, refusals: 1},
		{name: "known to be too long", body: long, reads: []int{0}, limit: 9999, length: 10_000, attempts: 1, refusals: 1, why: "the request body is larger than the 9999 bytes of BufferBody"},
		{name: "too long, found in a retry", body: long, reads: []int{5000, -1}, limit: 9999, attempts: 2, refusals: 1,
			why: "the request body is larger than the 9999 bytes of BufferBody", outcome: []Outcome{OutcomeUnableToRetry}},
		{name: "too long, but only the last retry finds out", body: long, reads: []int{1, 2, 3, 4}, limit: 5000, attempts: 5, refusals: 1, outcome: []Outcome{OutcomeRecovered}},
		{name: "no memory", body: long, reads: []int{-1}, limit: 1 << 20, pool: 9000, attempts: 1, refusals: 1, why: "the replay memory is full: "},
		{name: "just enough memory", body: long, reads: []int{-1}, limit: 1 << 20, pool: 10_000, attempts: 2, outcome: []Outcome{OutcomeRecovered}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := &listener{reads: test.reads}
				e := l.engine(t, test.pool)
				defer e.Close()
				b := &body{Reader: one{strings.NewReader(test.body)}}
				req := stream("POST", "http://x/", b)
				req.ContentLength = test.length
				call := fetchCall(func(c *limpet.CallSpec) { c.Policy.BufferBody = test.limit })
				_, err := e.Fetch(t.Context(), call, req, true)
				if test.why == "" && err != nil || test.why != "" && !strings.HasPrefix(asLimpet(t, err).NoRetry, test.why) {
					t.Errorf("got %v, want the reason %q", err, test.why)
				}
				var want []string
				for _, n := range append(slices.Clone(test.reads), -1)[:test.attempts] {
					if n < 0 {
						n = len(test.body)
					}
					want = append(want, test.body[:n])
				}
				if diff := cmp.Diff(want, l.heard); diff != "" {
					t.Errorf("the object heard (- want, + got)\n%s", diff)
				}
				if b.closed.Load() != 1 {
					t.Errorf("the body was closed %d times", b.closed.Load())
				}
				// SPEC G22, I7
				if m := e.ReplayMemory(); m.Used != 0 || m.Refused != int64(test.refusals) || l.refusals != test.refusals {
					t.Errorf("replay memory %+v, %d refusals seen, want %d", m, l.refusals, test.refusals)
				}
				if !slices.Equal(l.outcomes, test.outcome) {
					t.Errorf("outcomes %v, want %v", l.outcomes, test.outcome)
				}
			})
		})
	}
}

func TestBufferBodyIdentity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC F2: a body that will not be kept makes the call one without identity.
		w := newWorld(t)
		e := w.engine()
		defer e.Close()
		for _, limit := range []int64{0, 4, 5} {
			req := stream("POST", "http://x/", newBody("01234"))
			req.ContentLength = 5
			if _, err := e.Fetch(t.Context(), fetchCall(func(c *limpet.CallSpec) { c.Policy.BufferBody = limit }), req, true); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range []bool{false, false, true} {
			if a := w.attempts[i]; a.Identity.IsZero() == want || a.WillRetry != want {
				t.Errorf("attempt %d has identity %v and says it will be retried: %v", i, a.Identity, a.WillRetry)
			}
		}
	})
}

// TestBufferBodyRedirect follows redirects that need the body again.
func TestBufferBodyRedirect(t *testing.T) {
	for _, test := range []struct {
		limit  int64
		status int
		heard  []string
		err    string
	}{
		// SPEC B12: what was kept is no one-time body
		{5, 307, []string{"hello", "hello"}, ""},
		{5, 303, []string{"hello", ""}, ""},
		{4, 303, []string{"hello", ""}, ""},
		{4, 307, []string{"hello"}, "needs the request body again: the request body is larger than the 4 bytes of BufferBody"},
		{0, 307, []string{"hello"}, "needs the request body again: " + onceOnly},
	} {
		bubble(t, func(t *testing.T) {
			l := &listener{reads: []int{-1}, answers: map[int]*http.Response{0: response(test.status, "", "Location", "/next")}}
			e := l.engine(t, 0)
			defer e.Close()
			b := newBody("hello")
			_, err := e.Fetch(t.Context(), fetchCall(func(c *limpet.CallSpec) { c.Policy.BufferBody = test.limit }), stream("POST", "http://x/", b), true)
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("%d with %d bytes: %v, want %q", test.status, test.limit, err, test.err)
			}
			if !slices.Equal(l.heard, test.heard) || b.closed.Load() != 1 || e.ReplayMemory().Used != 0 {
				t.Errorf("%d with %d bytes: heard %q, closed %d times, %d bytes kept", test.status, test.limit, l.heard, b.closed.Load(), e.ReplayMemory().Used)
			}
		})
	}
}

// TestBufferBodyWaits has an attempt that is lost while it waits for the caller's
// next bytes: they go to the next attempt.
func TestBufferBodyWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		b := newBodyBuffer(&replayPool{limit: 1 << 20, perCall: 1 << 20}, 1<<20, pr, func() { t.Error("refused") })
		first, second := must(b.open()), must(b.open())
		var got []byte
		go func() { // waits, and gets what comes first
			buf := make([]byte, 10)
			n, err := first.Read(buf)
			if string(buf[:n]) != "ab" || err != nil {
				t.Errorf("the attempt that waited got %q, %v", buf[:n], err)
			}
		}()
		synctest.Wait()
		go func() { got, _ = io.ReadAll(second) }()
		synctest.Wait()
		_ = first.Close()
		synctest.Wait()
		for _, s := range []string{"ab", "cd"} {
			if _, err := io.WriteString(pw, s); err != nil {
				t.Fatal(err)
			}
		}
		_ = pw.Close()
		synctest.Wait()
		if string(got) != "abcd" {
			t.Errorf("the second attempt read %q", got)
		}
		if _, err := first.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("a closed view reads with %v", err)
		}
		third := must(b.open())
		b.settle()
		if rest, err := io.ReadAll(third); string(rest) != "abcd" || err != nil {
			t.Errorf("after the end of retries: %q, %v", rest, err)
		}
		if b.kept != nil || b.held != 0 {
			t.Error("what was read by the last attempt is still kept")
		}
		_, _ = second.Close(), third.Close()
		if _, err := pr.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the source was not closed: %v", err)
		}
		if _, err := b.open(); !errors.Is(err, errSettled) {
			t.Errorf("another view: %v", err)
		}
	})
}

// TestBufferBodyAnsweredEarly answers a retry before the body has been read: it is
// read on, and nothing more of it is kept.
func TestBufferBodyAnsweredEarly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &listener{reads: []int{3}, late: true}
		e := l.engine(t, 0)
		pr, pw := io.Pipe()
		go func() {
			_, _ = io.WriteString(pw, "abc")
		}()
		_, err := e.Fetch(t.Context(), fetchCall(func(c *limpet.CallSpec) { c.Policy.BufferBody = 5 }), stream("POST", "http://x/", pr), true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(pw, "defghijkl"); err != nil {
			t.Error(err)
		}
		_ = pw.Close()
		l.after.Wait()
		if want := []string{"abc", "abcdefghijkl"}; !slices.Equal(l.heard, want) || l.refusals != 0 {
			t.Errorf("heard %q, want %q; %d refusals", l.heard, want, l.refusals)
		}
		if used := e.ReplayMemory().Used; used != 0 {
			t.Errorf("%d bytes are kept", used)
		}
		e.Close()
	})
}

// TestFetchTrailers sets trailers while the body is read, as net/http allows.
func TestFetchTrailers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E46: they are part of what every attempt sends
		l := &listener{reads: []int{-1, 2}}
		e := l.engine(t, 0)
		defer e.Close()
		req := stream("POST", "http://x/", nil)
		req.Trailer = http.Header{"X-Sum": nil}
		req.Body = io.NopCloser(io.MultiReader(strings.NewReader("body"), atEnd(func() { req.Trailer.Set("X-Sum", "4") })))
		if _, err := e.Fetch(t.Context(), fetchCall(func(c *limpet.CallSpec) { c.Policy.BufferBody = 100 }), req, true); err != nil {
			t.Fatal(err)
		}
		if want := []string{"body X-Sum[4]", "bo X-Sum[]", "body X-Sum[4]"}; !slices.Equal(l.heard, want) {
			t.Errorf("heard %q, want %q", l.heard, want)
		}
	})
}

type atEnd func()

func (f atEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

// TestBufferBodyConcurrently reads one source through many views at once.
func TestBufferBodyConcurrently(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	pool := &replayPool{limit: 1 << 20, perCall: 1 << 20}
	b := newBodyBuffer(pool, 1<<20, io.NopCloser(bytes.NewReader(long)), func() { t.Error("refused") })
	var all sync.WaitGroup
	for i := range 8 {
		view := must(b.open())
		all.Go(func() {
			defer view.Close()
			if i%2 == 0 { // gives up in the middle
				_, _ = io.CopyN(io.Discard, view, int64(len(long)/(i+2)))
				return
			}
			if got, err := io.ReadAll(view); err != nil || !bytes.Equal(got, long) {
				t.Errorf("view %d read %d bytes, %v", i, len(got), err)
			}
		})
	}
	all.Wait()
	if pool.used.Load() == 0 {
		t.Error("nothing was kept")
	}
	b.settle()
	if n := pool.used.Load(); n != 0 {
		t.Errorf("%d bytes stay reserved", n)
	}
}

// TestRefusedTooLate has a retry that fails when its time is over already, before
// the timer says so, and of which it is found out then that it can't be kept: the
// call ends all the same, with its first failure.
func TestRefusedTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// SPEC E31
		o := &observed{}
		e := New(Config{Router: &listener{}, Clock: sim.Clock{}, Observer: o, ReplayMemory: -1})
		defer e.Close()
		call := newCall()
		r := newRun(e, t.Context(), call, true)
		r.step(e.now(), event{kind: evStart})
		r.failure = lost(limpet.DeliveryNone)
		r.do(r.step(e.now(), event{kind: evFailed, failure: failNotDelivered}))
		time.Sleep(call.Policy.Timeout - time.Millisecond)
		r.step(e.now(), event{kind: evBackoffOver})
		time.Sleep(time.Millisecond)
		r.do(r.step(r.received(result{err: lost(limpet.DeliveryUncertain), identified: true})))
		if r.m.state != done || r.m.fault != "" || r.err == nil || !slices.Equal(o.outcomes, []Outcome{OutcomeRetryBudgetExhausted}) {
			t.Errorf("%v, fault %q, %v, outcomes %v", r.m.state, r.m.fault, r.err, o.outcomes)
		}
	})
}
