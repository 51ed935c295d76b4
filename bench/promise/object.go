package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limpet-dev/limpet"
)

// This file is the objects whose methods are called: the code under the promise.
//
// Every method begins a run, which has a token of its own that no other run ever
// has, and leaves it wherever it has an effect: in the object's data, at the
// witness, in what others publish, in its result. An operation with two tokens
// ran twice.

// Object is what clients know of both classes.
type Object interface {
	Write(ctx context.Context, op string) (string, error)
	CallFirst(ctx context.Context, op string) (string, error)
	CallOnly(ctx context.Context, op string) (string, error)
	WriteCallWrite(ctx context.Context, op string) (string, error)
	Field(ctx context.Context, op string) (string, error)
	Publish(ctx context.Context, op string) (string, error)
	Abort(ctx context.Context, op string) error
	Read(ctx context.Context, op string) (int64, error)
	Set(ctx context.Context, op, value string) error
	Add(ctx context.Context, op string) (int64, error)
	Put(ctx context.Context, op string, v int64) error
	Get(ctx context.Context, op, key string) (int64, error)
	Dump(ctx context.Context, after string) ([]string, error)
}

// ears is how objects tell the witness, and where their tokens come from.
type ears struct {
	life    int
	runs    atomic.Int64
	web     *http.Client
	url     string // of an outside fetch
	witness limpet.Namespace[Witness]
	plain   chan *plainConn
}

// plainConn is a socket to the witness that limpet knows nothing of.
type plainConn struct {
	net.Conn
	r *bufio.Reader
}

// tell says it and waits until the witness has it, so that no run goes on that
// the witness does not know.
func (e *ears) tell(op, run string) error {
	c := <-e.plain
	defer func() { e.plain <- c }()
	if _, err := fmt.Fprintf(c, "%s %s\n", op, run); err != nil {
		return err
	}
	_, err := c.r.ReadByte()
	return err
}

// fetch tells the witness by an outside request.
func (e *ears) fetch(ctx context.Context, op, run string) error {
	q := url.Values{"op": {op}, "run": {run}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/hear?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := e.web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the witness answered %s", resp.Status)
	}
	return nil
}

// object is an object of either class.
type object struct {
	st    *limpet.State
	ears  *ears
	gated bool

	mu        sync.Mutex
	field     map[string]string // operation to run: changed before an Await
	published chan struct{}     // closed when somebody has published the field
}

// classes are those of the node. Gated tells the witness through what limpet
// gates, and of Free limpet knows nothing: it tells by a socket of its own.
func classes(e *ears) []*limpet.Class {
	of := func(name string, gated bool, opts ...limpet.ClassOption) *limpet.Class {
		return limpet.NewClass(name, func(st *limpet.State) (*object, error) {
			return &object{st: st, ears: e, gated: gated, field: map[string]string{}, published: make(chan struct{})}, nil
		}, append(opts, limpet.Retryable((*object).Set, (*object).Dump))...)
	}
	return []*limpet.Class{of("Gated", true, limpet.GatedEffects()), of("Free", false)}
}

// begin is the start of a run.
func (o *object) begin(op string) (run string, err error) {
	run = fmt.Sprintf("L%d.%d", o.ears.life, o.ears.runs.Add(1))
	if !o.gated {
		err = o.ears.tell(op, run)
	}
	return run, err
}

// tellOut tells the witness by a call out of the object: one half of the
// operations by a fetch, the other by a call to an object of another node.
func (o *object) tellOut(ctx context.Context, op, run string) error {
	if op[len(op)-1]%2 == 0 {
		return o.st.Await(ctx, func(ctx context.Context) error { return o.ears.fetch(ctx, op, run) })
	}
	ear := o.ears.witness.Named("ear-"+op[len(op)-1:], limpet.RetryTimeout(earTimeout))
	return limpet.Do2(ctx, ear, Witness.Hear, op, run)
}

// earTimeout bounds the retries of a call out of an object, which goes over a bad
// network too.
const earTimeout = 2 * time.Second

// note writes that a run has come to a stage; the first one of an operation
// counts it.
func (o *object) note(op, run, stage string) error {
	kv := o.st.KV()
	var was string
	found, err := kv.Get("e/"+op, &was)
	if err != nil {
		return err
	}
	if !found {
		var n int64
		if _, err := kv.Get("n", &n); err != nil {
			return err
		}
		if err := kv.Put("n", n+1); err != nil {
			return err
		}
	}
	return kv.Put("e/"+op, strings.TrimSpace(was+" "+run+"/"+stage))
}

// Write only writes.
func (o *object) Write(_ context.Context, op string) (string, error) {
	run, err := o.begin(op)
	if err != nil {
		return "", err
	}
	return run, o.note(op, run, "w")
}

// CallFirst calls out before it writes.
func (o *object) CallFirst(ctx context.Context, op string) (string, error) {
	run, err := o.begin(op)
	if err != nil {
		return "", err
	}
	if err := o.tellOut(ctx, op, run); err != nil {
		return "", err
	}
	return run, o.note(op, run, "w")
}

// CallOnly calls out and never writes.
func (o *object) CallOnly(ctx context.Context, op string) (string, error) {
	run, err := o.begin(op)
	if err != nil {
		return "", err
	}
	return run, o.tellOut(ctx, op, run)
}

// WriteCallWrite writes, calls out and writes.
func (o *object) WriteCallWrite(ctx context.Context, op string) (string, error) {
	run, err := o.begin(op)
	if err != nil {
		return "", err
	}
	if err := o.note(op, run, "a"); err != nil {
		return "", err
	}
	if err := o.tellOut(ctx, op, run); err != nil {
		return "", err
	}
	return run, o.note(op, run, "b")
}

// fieldWait is how long Field waits for somebody who publishes.
const fieldWait = 25 * time.Millisecond

// Field changes memory that others can see, gives the object away, and writes.
func (o *object) Field(ctx context.Context, op string) (string, error) {
	run, err := o.begin(op)
	if err != nil {
		return "", err
	}
	o.mu.Lock()
	o.field[op] = run
	published := o.published
	o.mu.Unlock()
	err = o.st.Await(ctx, func(ctx context.Context) error {
		limit := time.NewTimer(fieldWait)
		defer limit.Stop()
		select {
		case <-published:
		case <-limit.C:
		case <-ctx.Done():
		}
		return nil
	})
	o.mu.Lock()
	delete(o.field, op)
	o.mu.Unlock()
	if err != nil {
		return "", err
	}
	return run, o.note(op, run, "w")
}

// Publish tells its caller what runs of Field have changed.
func (o *object) Publish(_ context.Context, op string) (string, error) {
	run, err := o.begin(op)
	if err != nil {
		return "", err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for op, run2 := range o.field {
		run += " " + op + "=" + run2
	}
	close(o.published)
	o.published = make(chan struct{})
	return run, nil
}

// Abort writes, makes that durable, writes again and aborts: the first write
// stays, the second must never be seen.
func (o *object) Abort(ctx context.Context, op string) error {
	run, err := o.begin(op)
	if err != nil {
		return err
	}
	if err := o.note(op, run, "kept"); err != nil {
		return err
	}
	if err := o.st.Sync(ctx); err != nil {
		return err
	}
	if err := o.note(op, run, "gone"); err != nil {
		return err
	}
	o.st.Abort(errors.New(abortText(op)))
	return nil
}

func abortText(op string) string { return "aborted by " + op }

// Read only reads: how many operations have written.
func (o *object) Read(_ context.Context, op string) (n int64, err error) {
	if _, err = o.begin(op); err != nil {
		return 0, err
	}
	_, err = o.st.KV().Get("n", &n)
	return n, err
}

// Set is marked: it may run twice, and then nothing is different.
func (o *object) Set(ctx context.Context, op, value string) error {
	run, err := o.begin(op)
	if err != nil {
		return err
	}
	if o.gated {
		if err := o.tellOut(ctx, op, run); err != nil {
			return err
		}
	}
	return o.st.KV().Put("s/"+op, value)
}

// Add is the counter of a history.
func (o *object) Add(_ context.Context, op string) (n int64, err error) {
	if _, err = o.begin(op); err != nil {
		return 0, err
	}
	if _, err = o.st.KV().Get("c", &n); err != nil {
		return 0, err
	}
	return n + 1, o.st.KV().Put("c", n+1)
}

// Put is the register of a history. It is not marked: a second run could come
// after another value.
func (o *object) Put(_ context.Context, op string, v int64) error {
	if _, err := o.begin(op); err != nil {
		return err
	}
	return o.st.KV().Put("r", v)
}

// Get reads a counter or register.
func (o *object) Get(_ context.Context, op, key string) (n int64, err error) {
	if _, err = o.begin(op); err != nil {
		return 0, err
	}
	_, err = o.st.KV().Get(key, &n)
	return n, err
}

// dumpPage is how many entries Dump gives at once.
const dumpPage = 2000

// Dump reads everything, in pages, for the judge.
func (o *object) Dump(_ context.Context, after string) (out []string, err error) {
	for e, err := range o.st.KV().List(limpet.ListOptions{StartAfter: after, Limit: dumpPage}) {
		if err != nil {
			return nil, err
		}
		var v any
		if err := e.Decode(&v); err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprint(e.Key, "\t", v))
	}
	return out, nil
}

// streamBytes is the length of a streamed body before its last word.
const streamBytes = 6 << 10

// ServeHTTP streams: the headers leave, with the run in them, before the body is
// written; and what the object writes after them belongs to the same run.
func (o *object) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := r.URL.Query().Get("op")
	run, err := o.begin(op)
	if err == nil {
		err = o.note(op, run, "a")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Run", run)
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	piece := strings.Repeat(".", streamBytes/3)
	for range 3 {
		if _, err = io.WriteString(w, piece); err == nil {
			err = rc.Flush()
		}
		if err != nil {
			return // nobody reads
		}
	}
	if err := o.note(op, run, "b"); err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, run) // as above
}
