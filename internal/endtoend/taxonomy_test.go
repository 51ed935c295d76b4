package endtoend

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limpet-dev/limpet"
)

// failure is a row of SPEC C.2: a failure, and what the caller sees.
type failure struct {
	name string
	make func(w *way) error
	want limpet.Error    // Message: how it begins; ObjectID: "here" is the object's
	near limpet.Delivery // if not zero: what is known within a process, instead
	runs int
	wire bool // of the network: there is no such thing within a process
}

// TestFailures goes through SPEC C.2, in the process of the node and over TCP. Each
// row has a node of its own: many of them end it.
func TestFailures(t *testing.T) {
	const (
		none      = limpet.DeliveryNone
		uncertain = limpet.DeliveryUncertain
		received  = limpet.DeliveryReceived
	)
	enough := errors.New("enough")
	rows := []failure{
		// SPEC C20: nothing was sent. Retried, with a fresh identity.
		{name: "refused", wire: true, make: func(w *way) error {
			_ = w.n.Close()
			return w.do("nothing", limpet.MaxRetries(1))
		}, want: limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost", Delivery: none, Retryable: true, Attempts: 2}},
		// SPEC C21, C25, F13: nobody knows. Retried with the same identity, which
		// the object refuses; the caller gets the first disconnect.
		{name: "cut", wire: true, make: func(w *way) error { return w.do("cut") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost", Delivery: uncertain, Retryable: true, Attempts: 2}},
		{name: "cut without retries", wire: true, make: func(w *way) error { return w.do("cut", limpet.NoRetries()) }, runs: 1,
			want: limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost", Delivery: uncertain, Retryable: true, Attempts: 1}},
		{name: "cut, marked", wire: true, make: func(w *way) error { return limpet.Do1(w.t.Context(), w.stub(), Failing.Marked, "cut") }, runs: 2},
		// SPEC C22, C52, C50: the object had it. Not retried, marked or not.
		{name: "ended while it ran", wire: true, make: func(w *way) error {
			wait := later(func() error { return limpet.Do1(w.t.Context(), w.stub(), Failing.Marked, "hog") })
			<-w.f.entered
			_ = w.n.Close()
			return wait()
		}, runs: 1, want: limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost", Delivery: received, Retryable: true, Attempts: 1, ObjectID: "here"}},
		{name: "cut after the head of a response", wire: true, make: func(w *way) error {
			resp, err := w.stub().Fetch(newRequest(w.t, "GET", "http://x/cut-later", nil))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			<-w.f.entered
			w.f.cut()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}, runs: 1, want: limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost", Delivery: received, Retryable: true}},
		// SPEC C23: the object's own connection was lost, and it was reset for that.
		{name: "abort for a dependency", make: func(w *way) error { return w.do("abort with that") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeReset, Message: "Network connection lost", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C24, F22: the node stops, and had not begun with it.
		{name: "draining", make: func(w *way) error {
			hog := later(func() error { return w.do("hog") })
			<-w.f.entered
			wait := later(func() error { return w.do("nothing", limpet.NoRetries()) })
			w.until("the call is queued", func() bool { return w.metric("limpet_queued_bytes") > 0 })
			drained := later(func() error { return w.n.Drain(w.t.Context()) })
			err := wait()
			close(w.f.release)
			return errors.Join(err, hog(), drained())
		}, runs: 1, want: limpet.Error{Code: limpet.CodeDraining, Message: "Network connection lost: the node is stopping", Delivery: none, Retryable: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C26
		{name: "error", make: func(w *way) error { return w.do("error") }, runs: 1,
			want: limpet.Error{Code: "SoldOut", Name: "ShopError", Message: "none left", Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C7, C8, C50: what it says of itself arrives, and starts no retry.
		{name: "forged", make: func(w *way) error { return w.do("forged") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost.", Delivery: received, Retryable: true, Overloaded: true, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C27: a handler can't return an error, but break its response off.
		{name: "fetch breaks off", make: func(w *way) error { return w.fetch("break-off") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeApplication, Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C28: the object's own connection was lost, and it says so.
		{name: "passed on", make: func(w *way) error { return w.do("pass on") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeDisconnected, Message: "Network connection lost", Delivery: received, Retryable: true, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C29, B17
		{name: "status", make: func(w *way) error { return w.fetch("status") }, runs: 1},
		// SPEC C30
		{name: "unknown", make: func(w *way) error { _, err := w.stub().Invoke(w.t.Context(), "nope"); return err },
			want: limpet.Error{Code: limpet.CodeUnknownMethod, Name: "TypeError", Message: `The RPC receiver does not implement the method "nope".`, Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		{name: "private", make: func(w *way) error { _, err := w.stub().Invoke(w.t.Context(), "secret"); return err },
			want: limpet.Error{Code: limpet.CodeUnknownMethod, Name: "TypeError", Message: `The RPC receiver does not implement the method "secret".`, Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C31
		{name: "reserved", make: func(w *way) error { _, err := w.stub().Invoke(w.t.Context(), "alarm"); return err },
			want: limpet.Error{Code: limpet.CodeUnknownMethod, Name: "TypeError", Message: "'alarm' is a reserved method and cannot be called over RPC.", Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C32: local, and not sent.
		{name: "not serializable", make: func(w *way) error { _, err := w.stub().Invoke(w.t.Context(), "do", make(chan int)); return err },
			want: limpet.Error{Code: limpet.CodeInvalidArgument, Name: "DataCloneError", Message: "call of do: argument 1 (chan int): Could not serialize object of type", Delivery: none}},
		{name: "over 32 MiB", make: func(w *way) error {
			return limpet.Do1(w.t.Context(), w.stub(), Failing.Do, strings.Repeat("x", 32<<20))
		}, want: limpet.Error{Code: limpet.CodeTooLarge, Message: "call of do: Serialized RPC arguments or return values are limited to 32MiB, but the size of this value was: 335544", Delivery: none}},
		// SPEC B30: the result's is the object's.
		{name: "result over 32 MiB", make: func(w *way) error { _, err := w.stub().Invoke(w.t.Context(), "large"); return err }, runs: 1,
			want: limpet.Error{Code: limpet.CodeTooLarge, Message: "result of large: Serialized RPC arguments or return values are limited to 32MiB", Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C33: all calls that are in flight, not only the one.
		{name: "abort", make: func(w *way) error { return w.do("abort") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeReset, Message: "TypeError: x", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		{name: "abort of another call", make: func(w *way) error {
			wait := later(func() error { return w.do("hold") })
			<-w.f.entered
			if err := w.do("abort"); !errors.Is(err, limpet.CodeReset) {
				w.t.Errorf("the call that aborts gets %v", err)
			}
			return wait()
		}, runs: 2, want: limpet.Error{Code: limpet.CodeReset, Message: "TypeError: x", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		{name: "abort without a reason", make: func(w *way) error { return w.do("abort without a reason") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeReset, Message: "Application called abort() to reset Durable Object.", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		{name: "abort of a fetch", make: func(w *way) error { return w.fetch("abort") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeReset, Message: "TypeError: x", Delivery: received, Reset: true, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C34
		{name: "constructor", make: func(w *way) error { return w.do("nothing") },
			want: limpet.Error{Code: limpet.CodeReset, Name: "RangeError", Message: "no such object", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		{name: "constructor of a fetch", make: func(w *way) error { return w.fetch("nothing") },
			want: limpet.Error{Code: limpet.CodeReset, Name: "RangeError", Message: "no such object", Delivery: received, Reset: true, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C35: going on does not help.
		{name: "block", make: func(w *way) error { return w.do("block") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeReset, Name: "RangeError", Message: "blocked and failed", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		{name: "block of a fetch", make: func(w *way) error { return w.fetch("block") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeReset, Name: "RangeError", Message: "blocked and failed", Delivery: received, Reset: true, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C36: in 30 seconds.
		{name: "block for ever", make: func(w *way) error { return w.do("block for ever") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeReset, Message: "A call to blockConcurrencyWhile() in a Durable Object waited for too long. The call was canceled and the Durable Object was reset", Delivery: received, Overloaded: true, Reset: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C37, C51: one call more than may wait, marked, is refused, not retried.
		{name: "overload", make: func(w *way) error {
			hog := later(func() error { return w.do("hog") })
			<-w.f.entered
			ctx, cancel := context.WithCancelCause(w.t.Context())
			var queued sync.WaitGroup
			ends := make(chan error, 1001)
			for range 1001 {
				queued.Go(func() { ends <- limpet.Do1(ctx, w.stub(), Failing.Marked, "nothing") })
			}
			err := <-ends // the others wait
			cancel(enough)
			queued.Wait()
			w.until("the queue is empty", func() bool { return w.metric("limpet_queued_bytes") == 0 })
			close(w.f.release)
			return errors.Join(err, hog())
		}, runs: 1, want: limpet.Error{Code: limpet.CodeOverloaded, Message: "Durable Object is overloaded. Too many requests queued. (", Delivery: none, Overloaded: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C38
		{name: "power", make: func(w *way) error { return w.do("power") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeStorageLost, Message: "Internal error in Durable Object storage write caused object to be reset", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C54: rather than what the method said.
		{name: "power, and an error", make: func(w *way) error { return w.do("power, and an error") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeStorageLost, Message: "Internal error in Durable Object storage write caused object to be reset", Delivery: received, Reset: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C39
		{name: "key", make: func(w *way) error { return w.do("key") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeInvalidArgument, Name: "TypeError", Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		{name: "value", make: func(w *way) error { return w.do("large") }, runs: 1,
			want: limpet.Error{Code: limpet.CodeTooLarge, Delivery: received, Remote: true, Attempts: 1, ObjectID: "here"}},
		// SPEC C41, E34: the caller's own reason, also while backing off.
		{name: "canceled", make: func(w *way) error {
			ctx, cancel := context.WithCancelCause(w.t.Context())
			wait := later(func() error { return limpet.Do1(ctx, w.stub(), Failing.Do, "hold") })
			<-w.f.entered
			cancel(enough)
			err := wait()
			if !errors.Is(err, enough) {
				w.t.Errorf("the reason got lost: %v", err)
			}
			return err
		}, runs: 1, want: limpet.Error{Code: limpet.CodeCanceled, Attempts: 1, Delivery: uncertain}, near: received},
		{name: "canceled while backing off", wire: true, make: func(w *way) error {
			_ = w.n.Close()
			ctx, cancel := context.WithCancelCause(w.t.Context())
			wait := later(func() error { return limpet.Do1(ctx, w.stub(limpet.MaxRetries(10)), Failing.Do, "nothing") })
			w.until("an attempt was made", func() bool {
				for _, m := range w.c.Metrics() {
					if m.Name == "limpet_call_attempts_total" && m.Labels["result"] == "retried" {
						return true
					}
				}
				return false
			})
			cancel(enough)
			err := wait()
			if !errors.Is(err, enough) {
				w.t.Errorf("the reason got lost: %v", err)
			}
			e := errorOf(w.t, err)
			if e.Attempts > 1 { // a second one had begun, of which nobody knows yet
				e.Attempts, e.Delivery = 1, none
			}
			return e
		}, want: limpet.Error{Code: limpet.CodeCanceled, Delivery: none, Attempts: 1}},
		// SPEC C43: there is no way any more, and will be none.
		{name: "client closed", wire: true, make: func(w *way) error {
			_ = w.c.Close()
			return w.do("nothing")
		}, want: limpet.Error{Code: limpet.CodeDraining, Delivery: none, Retryable: true}},
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, way := range []string{"in process", "over the wire"} {
		for _, row := range rows {
			if row.wire && way == "in process" {
				continue
			}
			all.Go(func() { // some wait, most of the time
				t.Run(way+", "+row.name, func(t *testing.T) { row.check(t, way == "over the wire") })
			})
		}
	}
}

func (r failure) check(t *testing.T, overWire bool) {
	if r.name == "block for ever" && testing.Short() {
		t.Skip("takes 30 seconds")
	}
	w := openFailing(t, overWire)
	w.name = r.name
	err := r.make(w)
	if n := w.f.runs(r.name); n != r.runs {
		t.Errorf("it ran %d times, want %d", n, r.runs)
	}
	if r.want.Code == "" {
		if err != nil {
			t.Errorf("it failed: %v", err)
		}
		return
	}
	if r.near != 0 && !overWire {
		r.want.Delivery = r.near
	}
	e := errorOf(t, err)
	got := limpet.Error{
		Code: e.Code, Name: e.Name, Message: e.Message, Delivery: e.Delivery, Retryable: e.Retryable,
		Overloaded: e.Overloaded, Remote: e.Remote, Reset: e.Reset, Attempts: e.Attempts, ObjectID: e.ObjectID,
	}
	if strings.HasPrefix(got.Message, r.want.Message) {
		got.Message = r.want.Message
	}
	if got.ObjectID == w.stub().ID().String() {
		got.ObjectID = "here"
	}
	if diff := cmp.Diff(r.want, got, cmpopts.IgnoreUnexported(limpet.Error{})); diff != "" {
		t.Errorf("the caller sees (- want, + got):\n%s\n%v", diff, err)
	}
}
