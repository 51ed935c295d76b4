package dispatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/value"
)

// piped makes a call whose result can be decoded.
func piped(c *limpet.CallSpec) {
	c.Binding = &limpet.Binding{Name: "CART", Codec: value.Codec{}}
}

// answerWith is a handler whose result is v.
func answerWith(v any) func(Attempt) (any, error) {
	return func(Attempt) (any, error) {
		b, err := value.Marshal(v)
		return limpet.Encoded(b), err
	}
}

// child reads the property n of the result.
func child(ctx context.Context, p limpet.PendingCall) (any, error) {
	out, err := p.Child(ctx, limpet.TargetCall{Path: []string{"n"}, Property: true})
	if err != nil {
		return nil, err
	}
	return value.Decode(out.Bytes)
}

// startCall starts a call and closes it with the test.
func startCall(t *testing.T, e *Engine, change ...func(*limpet.CallSpec)) limpet.PendingCall {
	t.Helper()
	p, err := e.Start(t.Context(), newCall(append(change, piped)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// outcome waits for a call's.
func outcome(p limpet.PendingCall) (any, error) {
	<-p.Done()
	return p.Outcome()
}

// TestPipelining plays SPEC E53 to E56: when a child comes decides what becomes
// of its parent.
func TestPipelining(t *testing.T) {
	for _, test := range []struct {
		name     string
		script   []fault
		childAt  time.Duration // 0: none
		want     string        // of the parent and the child: the error, or the result
		retries  int
		outcomes string
	}{
		{
			// SPEC E53: before a failure, both reject with it and nothing is retried.
			name: "before the failure", script: []fault{{after: 100 * ms, kind: lostRequest}}, childAt: 50 * ms,
			want: "Network connection lost. uncertain", outcomes: "[]",
		},
		{
			// SPEC E53: during a backoff, with the stored first failure.
			name: "in a backoff", script: []fault{{after: 100 * ms, kind: lostRequest}}, childAt: 250 * ms,
			want: "Network connection lost. uncertain", outcomes: "[]",
		},
		{
			// SPEC E53: during a retry, that decides.
			name: "in a retry that succeeds", script: []fault{{after: 100 * ms, kind: lostRequest}, {after: 300 * ms}}, childAt: 500 * ms,
			want: "7", retries: 1, outcomes: "[jsrpc recovered 600ms]",
		},
		{
			// SPEC E54: and when it fails, it was the last one.
			name: "in a retry that fails", script: []fault{{after: 100 * ms, kind: lostRequest}, {after: 300 * ms, kind: refused}}, childAt: 500 * ms,
			want: "Network connection lost. uncertain", retries: 1, outcomes: "[jsrpc unable_to_retry 600ms]",
		},
		{
			// SPEC E53: the cutoff still cancels a committed retry.
			name: "in a retry that hangs", script: []fault{{after: 100 * ms, kind: lostRequest}, {kind: hang}}, childAt: 500 * ms,
			want: "Network connection lost. uncertain", retries: 1, outcomes: "[jsrpc retry_budget_exhausted 9.9s]",
		},
		{
			// SPEC E54: a claim rejection after the commitment yields the original.
			name: "in a retry that is rejected", script: []fault{{after: 100 * ms, kind: lostReply}, {after: 300 * ms}}, childAt: 500 * ms,
			want: "Network connection lost. uncertain", retries: 1, outcomes: "[jsrpc claim_rejected 600ms]",
		},
		{
			// SPEC E56: waiting is not pipelining.
			name: "never", script: []fault{{after: 100 * ms, kind: lostRequest}, {after: 100 * ms, kind: refused}, {after: 100 * ms}},
			want: "7", retries: 2, outcomes: "[jsrpc recovered 800ms]",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, test.script...)
				w.handler = answerWith(map[string]any{"n": 7})
				e := w.engine(300*ms, 300*ms)
				defer e.Close()
				p := startCall(t, e)
				var got any
				var err error
				if test.childAt > 0 {
					time.Sleep(test.childAt)
					got, err = child(t.Context(), p)
					if s := told(got, err); s != test.want {
						t.Errorf("child: got %s, want %s", s, test.want)
					}
				}
				v, perr := outcome(p)
				if b, ok := v.(limpet.Encoded); ok {
					m, _ := value.Decode(b)
					v = m.(map[string]any)["n"]
				}
				if s := told(v, perr); s != test.want {
					t.Errorf("parent: got %s, want %s", s, test.want)
				}
				if err != nil && err.Error() != perr.Error() {
					t.Errorf("the child failed with %v, its parent with %v", err, perr)
				}
				if w.retries != test.retries || fmt.Sprint(w.outcomes) != test.outcomes {
					t.Errorf("%d retries, outcomes %v, want %d and %s", w.retries, w.outcomes, test.retries, test.outcomes)
				}
				if e.ReplayMemory().Used != 0 {
					t.Error("replay memory is kept")
				}
			})
		})
	}
}

func told(v any, err error) string {
	if err != nil {
		text, _, _ := strings.Cut(err.Error(), " (no further attempt: ")
		return fmt.Sprintf("%s %v", text, limpet.DeliveryOf(err))
	}
	return fmt.Sprint(v)
}

// fakePipe is a way for children to one attempt.
type fakePipe struct {
	mu     sync.Mutex
	calls  int
	closed int
	answer func(ctx context.Context) (limpet.Parcel, error)
}

func (p *fakePipe) Child(ctx context.Context, c limpet.TargetCall) (limpet.Parcel, error) {
	c.Args.Release()
	p.mu.Lock()
	p.calls++
	p.mu.Unlock()
	return p.answer(ctx)
}

func (p *fakePipe) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed++
}

// TestChildrenSentAtOnce uses a transport that takes them.
func TestChildrenSentAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, fault{after: 100 * ms, kind: lostRequest}, fault{after: time.Second})
		w.handler = answerWith(1)
		var pipes []*fakePipe
		w.pipe = func(Attempt) Pipeliner {
			p := &fakePipe{answer: func(context.Context) (limpet.Parcel, error) {
				b, err := value.Marshal("from the other side")
				return limpet.Parcel{Bytes: b}, err
			}}
			pipes = append(pipes, p)
			return p
		}
		e := w.engine(100 * ms)
		defer e.Close()
		p := startCall(t, e)
		time.Sleep(300 * ms) // in the retry
		// SPEC B33: it is sent and answered while the parent is under way.
		if got, err := child(t.Context(), p); got != "from the other side" || err != nil {
			t.Fatalf("got %v, %v", got, err)
		}
		select {
		case <-p.Done():
			t.Fatal("it waited for its parent")
		default:
		}
		// SPEC E52: nothing goes to an attempt that is over.
		if len(pipes) != 2 || pipes[0].calls != 0 || pipes[0].closed != 1 || pipes[1].calls != 1 {
			t.Fatalf("got %+v", pipes)
		}
		if _, err := outcome(p); err != nil {
			t.Fatal(err)
		}
		// The result is there: it goes on there, where the capabilities are.
		if got, err := child(t.Context(), p); got != "from the other side" && err == nil {
			t.Fatalf("got %v, %v", got, err)
		}
		p.Close()
		p.Close()
		if pipes[1].closed != 1 {
			t.Fatalf("closed %d times", pipes[1].closed)
		}
		if _, err := child(t.Context(), p); !errors.Is(err, limpet.CodeDisposed) {
			t.Fatalf("after Close: %v", err)
		}
	})
}

// TestChildOfRejectedCall has children that fail as their parent does.
func TestChildOfRejectedCall(t *testing.T) {
	for what, childErr := range map[string]error{
		// SPEC E55: the rejection's mark comes to the child too; it explains nothing.
		"rejection": &limpet.Error{Code: limpet.CodeAlreadyReceived, Message: "claimed", Delivery: limpet.DeliveryReceived},
		"lost":      lost(limpet.DeliveryUncertain),
	} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, fault{after: 100 * ms, kind: lostReply}, fault{after: time.Second})
			w.pipe = func(Attempt) Pipeliner {
				return &fakePipe{answer: func(context.Context) (limpet.Parcel, error) { return limpet.Parcel{}, childErr }}
			}
			e := w.engine(100 * ms)
			defer e.Close()
			p := startCall(t, e)
			time.Sleep(300 * ms)
			_, err := child(t.Context(), p)
			_, perr := outcome(p)
			if err == nil || perr == nil || err.Error() != perr.Error() || limpet.CodeOf(err) != limpet.CodeDisconnected {
				t.Errorf("%s: child %v, parent %v", what, err, perr)
			}
		})
	}
}

// TestPendingEnds ends calls in every other way.
func TestPendingEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.faults = func(int) fault { return fault{kind: hang} }
		e := w.engine()
		// Close cancels.
		p := startCall(t, e)
		synctest.Wait()
		p.Close()
		if _, err := outcome(p); limpet.CodeOf(err) != limpet.CodeCanceled {
			t.Errorf("closed: %v", err)
		}
		// So does the context, of children too.
		ctx, cancel := context.WithCancel(t.Context())
		p, err := e.Start(ctx, newCall(piped))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		cctx, ccancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, ccancel)
		if _, err := child(cctx, p); limpet.CodeOf(err) != limpet.CodeCanceled || limpet.DeliveryOf(err) != limpet.DeliveryNone {
			t.Errorf("child: %v", err)
		}
		cancel()
		if _, err := outcome(p); limpet.CodeOf(err) != limpet.CodeCanceled {
			t.Errorf("canceled: %v", err)
		}
		if _, err := e.Start(ctx, newCall(piped)); limpet.CodeOf(err) != limpet.CodeCanceled {
			t.Errorf("started with a context that has ended: %v", err)
		}
		// And the engine.
		p = startCall(t, e)
		synctest.Wait()
		e.Close()
		if _, err := outcome(p); err == nil {
			t.Error("a result")
		}
		if _, err := child(t.Context(), p); err == nil {
			t.Error("a result")
		}
		if _, err := e.Start(t.Context(), newCall(piped)); limpet.CodeOf(err) != limpet.CodeDraining {
			t.Errorf("after Close: %v", err)
		}
	})
}
