package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/limpet-dev/limpet"
)

// This file is histories: some objects are used by few callers, and what these
// were told in which order must be possible for a counter, or a register, that
// does one thing after the other.

const (
	historyOps       = 500
	historyUncertain = 20 // that may have had an effect or not: each doubles what must be tried
	historyCallers   = 4
	historyTime      = 30 * time.Second // for a check
	historyLines     = 4                // objects used at one time: counters and registers of both classes
)

// history is what happened to one object.
type history struct {
	counter bool
	object  int
	mu      sync.Mutex
	ops     []*op
	unsure  int
}

// unsure reports whether a failed operation may have had an effect: then, or
// later.
func unsure(o *op) bool {
	return o.Err != nil && limpet.DeliveryOf(o.Err) != limpet.DeliveryNone
}

// add enters an operation, and says whether the history goes on.
func (h *history) add(o *op) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
	if unsure(o) && o.Method != getCounter && o.Method != getRegister {
		h.unsure++
	}
	return len(h.ops) < historyOps && h.unsure < historyUncertain
}

// input is what an operation asked for.
type input struct {
	read, add bool
	value     int64
}

// output is what it was told; unknown if it failed.
type output struct {
	known bool
	value int64
}

// model is a counter or a register that starts at 0.
var model = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, in, out any) (bool, any) {
		s, i, o := state.(int64), in.(input), out.(output)
		switch {
		case i.read:
			return o.value == s, s
		case i.add:
			return !o.known || o.value == s+1, s + 1
		}
		return true, i.value
	},
}

// operations is a history for the checker. What failed and was not delivered had
// no effect and is left out; what is uncertain may have it at any time.
func operations(ops []*op) (out []porcupine.Operation) {
	for _, o := range ops {
		in := input{read: o.Method == getCounter || o.Method == getRegister, add: o.Method == add, value: o.Value}
		p := porcupine.Operation{
			Input: in, Output: output{known: o.Err == nil, value: o.Read},
			Call: int64(o.Start), Return: int64(o.End),
		}
		switch {
		case o.Err == nil:
		case in.read || !unsure(o):
			continue
		default:
			p.Return = math.MaxInt64
		}
		out = append(out, p)
	}
	return out
}

// check says what is wrong with a history; unknown is true if nobody can tell in
// time.
func (h *history) check() (v []violation, unknown bool) {
	switch porcupine.CheckOperationsTimeout(model, operations(h.ops), historyTime) {
	case porcupine.Ok:
		return nil, false
	case porcupine.Unknown:
		return nil, true
	}
	kind := "register"
	if h.counter {
		kind = "counter"
	}
	var b strings.Builder
	slices.SortFunc(h.ops, func(a, b *op) int { return int(a.Start - b.Start) })
	for _, o := range h.ops {
		fmt.Fprintf(&b, "\n  %s %8.3f to %8.3f s: %s", o.ID, o.Start.Seconds(), o.End.Seconds(), o.Method.name)
		if o.Method == put {
			fmt.Fprintf(&b, " %d", o.Value)
		}
		if o.Err == nil {
			fmt.Fprintf(&b, " gives %d", o.Read)
		} else {
			fmt.Fprintf(&b, " fails: %s", ending(o.Err))
		}
	}
	return []violation{{"", fmt.Sprintf("no order explains what the callers of %s %s were told:%s", kind, objectName(h.object), b.String())}}, false
}

// histories are those of a round.
type histories struct {
	c    *callers
	mu   sync.Mutex
	done []*history
	made int
}

// fresh begins one.
func (hs *histories) fresh(line int) *history {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.made++
	h := &history{counter: line < historyLines/2, object: hs.c.objects + 2*hs.made + line%2}
	hs.done = append(hs.done, h)
	return h
}

// run makes one history after the other on a line, until ctx ends.
func (hs *histories) run(ctx context.Context, line int, seed uint64) {
	for n := uint64(0); ctx.Err() == nil; n++ {
		h := hs.fresh(line)
		inner, stop := context.WithCancelCause(ctx)
		var all sync.WaitGroup
		for i := range historyCallers {
			rng := rand.New(rand.NewPCG(seed, n<<32|uint64(line)<<16|uint64(i)))
			c := caller{hs.c, (line*historyCallers + i) % len(hs.c.clients), rng}
			all.Go(func() {
				for inner.Err() == nil {
					if !h.add(c.historic(h)) {
						stop(errEnough)
					}
				}
			})
		}
		all.Wait()
		stop(nil)
	}
}

var errEnough = errors.New("the history is long enough")

// historic makes one operation of a history.
func (c *caller) historic(h *history) *op {
	o := &op{ID: opName(c.round, c.next.Add(1)), Object: h.object}
	read := c.rng.IntN(2) == 0
	switch {
	case h.counter && read:
		o.Method = getCounter
	case h.counter:
		o.Method = add
	case read:
		o.Method = getRegister
	default:
		o.Method, o.Value = put, 1+c.rng.Int64N(1<<40)
	}
	c.make(o, c.spaces[c.client][o.Object%2], objectName(o.Object))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops = append(c.ops, o)
	c.sum.add(o)
	return o
}
