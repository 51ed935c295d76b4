package limpettest_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// A tail is an object whose log can be followed.
type tail struct {
	st *limpet.State
	w  *io.PipeWriter
}

var tailClass = limpet.NewClass("Tail", func(st *limpet.State) (*tail, error) { return &tail{st: st}, nil })

func (x *tail) Follow(context.Context) (io.ReadCloser, error) {
	r, w := io.Pipe()
	x.w = w
	return r, nil
}

// Append stores a line and tells whoever follows, so many times.
func (x *tail) Append(_ context.Context, line string, times int) error {
	if err := x.st.KV().Put("line", line); err != nil {
		return err
	}
	for range times {
		if _, err := io.WriteString(x.w, line); err != nil {
			return err
		}
	}
	if line == "panic" {
		time.Sleep(time.Second)
		panic(line)
	}
	return nil
}

// Take stores something and reads r then.
func (x *tail) Take(_ context.Context, r io.Reader) (int, error) {
	if err := x.st.KV().Put("line", time.Now().String()); err != nil {
		return 0, err
	}
	b, err := io.ReadAll(r)
	return len(b), err
}

// Inside reads r in a transaction.
func (x *tail) Inside(_ context.Context, r io.Reader) error {
	return x.st.Transaction(func() error {
		_, err := io.ReadAll(r)
		return err
	})
}

func tails(t *testing.T) (*limpettest.Node, *limpet.Stub[*tail]) {
	t.Helper()
	n := limpettest.Start(t, tailClass)
	ns, err := limpet.NamespaceOf[*tail](n, "TAIL")
	if err != nil {
		t.Fatal(err)
	}
	return n, ns.Named("a")
}

// TestStreamOfARunningTurn reads what a handler writes to a stream after it has
// written to its object: it leaves when that is kept, and never if it is not.
func TestStreamOfARunningTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		_, a := tails(t)
		follow := func() io.ReadCloser { return must[io.ReadCloser](t)(limpet.Call(ctx, a, (*tail).Follow)) }
		b := make([]byte, 100)
		type part struct {
			text string
			err  error
		}
		parts := make(chan part, 1)
		read := func(r io.Reader) {
			n, err := r.Read(b)
			parts <- part{string(b[:n]), err}
		}

		r := follow()
		go read(r)
		if err := limpet.Do2(ctx, a, (*tail).Append, "hello", 1); err != nil {
			t.Fatal(err)
		}
		if p := <-parts; p.text != "hello" || p.err != nil {
			t.Fatalf("got %+v", p)
		}

		// SPEC H2: a write that is rolled back was seen by nobody.
		go read(r)
		err := limpet.Do2(ctx, a, (*tail).Append, "panic", 1)
		if limpet.CodeOf(err) != limpet.CodeReset {
			t.Fatal(err)
		}
		if p := <-parts; p.text != "" || limpet.CodeOf(p.err) != limpet.CodeReset {
			t.Fatalf("what was not kept has left: %+v", p)
		}
		_ = r.Close()
		_, a = tails(t) // the stub is broken

		// The handler waits for the reader, which waits for the handler's writes.
		r = follow()
		go func() {
			for {
				n, err := r.Read(b[:3])
				if err != nil {
					parts <- part{string(b[:n]), err}
					return
				}
			}
		}()
		begun := time.Now()
		if err := limpet.Do2(ctx, a, (*tail).Append, "hello", 2); err == nil || !strings.Contains(err.Error(), io.ErrClosedPipe.Error()) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(begun); took != 30*time.Second {
			t.Errorf("it took %v", took)
		}
		if p := <-parts; p.text != "" || !strings.Contains(p.err.Error(), "inside State.Await") {
			t.Fatalf("got %+v", p)
		}
		_ = r.Close()
	})
}

// noted tells when it is read.
type noted struct {
	read atomic.Bool
	r    io.Reader
}

func (n *noted) Read(b []byte) (int, error) {
	n.read.Store(true)
	return n.r.Read(b)
}

// TestReadingIsAnOutput begins to read a stream only when what the handler wrote
// before is durable.
func TestReadingIsAnOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		n, a := tails(t)
		if _, err := limpet.Call1(ctx, a, (*tail).Take, io.Reader(strings.NewReader("warm"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // what Take stores is another time then
		release := n.HoldSyncs()
		r := &noted{r: strings.NewReader("text")}
		done := make(chan error, 1)
		go func() {
			n, err := limpet.Call1(ctx, a, (*tail).Take, io.Reader(r))
			if err == nil && n != 4 {
				err = errors.New("not all was read")
			}
			done <- err
		}()
		synctest.Wait()
		if r.read.Load() {
			t.Error("SPEC H2: the reader was read before the write was durable") // SPEC H2
		}
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		err := limpet.Do1(ctx, a, (*tail).Inside, io.Reader(strings.NewReader("x")))
		if limpet.CodeOf(err) != limpet.CodeInvalidArgument || !strings.Contains(err.Error(), "inside State.Transaction") {
			t.Fatalf("got %v", err)
		}
	})
}
