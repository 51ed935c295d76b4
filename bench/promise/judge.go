package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/limpet-dev/limpet"
)

// This file is the judge: a function of what callers were told, what the witness
// saw and what is in the objects. It knows nothing of limpet's insides.

// violation is a broken promise.
type violation struct {
	Op   string // or empty
	What string
}

// evidence is what was found when everything had come to rest.
type evidence struct {
	witness []sight
	objects []contents
}

// contents is what an object has.
type contents struct {
	entries map[string]string // of Dump
}

// runsOf is what is known of the runs of one operation.
type runsOf struct {
	how    map[string][]string // run to where it was seen
	stages []string            // "run/stage" in the object
	told   int                 // by calls out of the object
}

func (r *runsOf) seen(run, how string) {
	if r.how == nil {
		r.how = map[string][]string{}
	}
	r.how[run] = append(r.how[run], how)
}

// all tells of all runs, for people.
func (r *runsOf) all() string {
	var parts []string
	for _, run := range slices.Sorted(maps.Keys(r.how)) {
		parts = append(parts, fmt.Sprintf("run %s (%s)", run, strings.Join(r.how[run], ", ")))
	}
	if len(parts) == 0 {
		return "no run"
	}
	return strings.Join(parts, "; ")
}

// judge finds all violations.
func judge(ops []*op, e evidence) (out []violation) {
	bad := func(op, format string, args ...any) {
		out = append(out, violation{op, fmt.Sprintf(format, args...)})
	}
	byID := make(map[string]*op, len(ops))
	runs := make(map[string]*runsOf, len(ops))
	for _, o := range ops {
		byID[o.ID], runs[o.ID] = o, &runsOf{}
	}
	see := func(s sight) *runsOf {
		r := runs[s.Op]
		if r == nil {
			bad(s.Op, "a run %s of it was seen (%s), but nobody called it", s.Run, s.How)
			r = &runsOf{}
			runs[s.Op] = r
		}
		r.seen(s.Run, s.How)
		return r
	}
	for _, s := range e.witness {
		r := see(s)
		if s.How != "socket" {
			r.told++
		}
	}
	for i := range e.objects {
		judgeObject(i, &e.objects[i], byID, see, bad)
	}
	for _, o := range ops {
		for _, s := range o.Saw {
			see(s)
		}
		if o.Run != "" {
			see(sight{o.ID, o.Run, "result"})
		}
		if o.Told != nil && o.Told.Run != "" {
			see(sight{o.ID, o.Told.Run, "outcome"})
		}
	}
	for _, o := range ops {
		judgeOp(o, runs[o.ID], bad)
		if o.Method.marked && o.Err == nil && e.objects[o.Object].entries["s/"+o.ID] != valueOf(o.ID) {
			bad(o.ID, "it was acknowledged, but its object has %q", e.objects[o.Object].entries["s/"+o.ID])
		}
	}
	return out
}

// judgeObject looks at one object's data.
func judgeObject(i int, c *contents, byID map[string]*op, see func(sight) *runsOf, bad func(op, format string, args ...any)) {
	noted := int64(0)
	for key, value := range c.entries {
		kind, id, _ := strings.Cut(key, "/")
		if o := byID[id]; id != "" && (o == nil || o.Object != i) {
			bad(id, "object %d has an entry of it: %s", i, value)
			continue
		}
		switch kind {
		case "e":
			noted++
			for _, stage := range strings.Fields(value) {
				run, name, _ := strings.Cut(stage, "/")
				r := see(sight{id, run, "object, stage " + name})
				r.stages = append(r.stages, stage)
				if name == "gone" {
					bad(id, "the object has what was written in the turn that aborted: %s", value)
				}
			}
		case "s":
			if value != valueOf(id) {
				bad(id, "the object has %q under it, which nobody set", value)
			}
		}
	}
	if n, _ := strconv.ParseInt(c.entries["n"], 10, 64); n != noted {
		bad("", "object %d counted %d operations that wrote, and has %d", i, n, noted)
	}
}

// judgeOp looks at one operation.
func judgeOp(o *op, r *runsOf, bad func(op, format string, args ...any)) {
	never := true // no try of it may have run
	for _, t := range o.Tries {
		if t.Took > t.Bound {
			bad(o.ID, "%s ended after %v; it must within %v", o.Method.name, t.Took.Round(time.Millisecond), t.Bound)
		}
		never = never && t.Delivery == limpet.DeliveryNone
	}
	n := len(r.how)
	if n > 1 && !o.Method.marked {
		bad(o.ID, "%s is not marked and ran %d times: %s; its caller got %s", o.Method.name, n, r.all(), ending(o.Err))
	}
	if r.told > n {
		bad(o.ID, "its %d runs told the witness %d times: a call out of the object ran twice: %s", n, r.told, r.all())
	}
	if o.Told != nil {
		judgeTold(o, r, bad)
	}
	if o.Err == nil {
		judgeAnswered(o, r, bad)
		return
	}
	e, ok := errors.AsType[*limpet.Error](o.Err)
	if !ok {
		bad(o.ID, "%s failed with an error of another type (%T): %v", o.Method.name, o.Err, o.Err)
		return
	}
	switch e.Code {
	case limpet.CodeDisconnected, limpet.CodeReset, limpet.CodeDraining:
	case limpet.CodeAlreadyReceived:
		if !o.Keyed {
			bad(o.ID, "%s failed with %s, which nobody may see who chose no key: %v", o.Method.name, e.Code, e)
		}
	case limpet.CodeCanceled:
		if !errors.Is(e, context.DeadlineExceeded) && !e.Remote {
			bad(o.ID, "%s failed with %s, but nobody canceled it: %v", o.Method.name, e.Code, e)
		}
	default:
		if !e.Remote {
			bad(o.ID, "%s failed with %s, which must not happen: %v", o.Method.name, e.CodeOrDefault(), e)
		}
	}
	switch {
	case never:
		if n > 0 {
			bad(o.ID, "%s was said to be not delivered, and ran: %s", o.Method.name, r.all())
		}
	case e.Delivery == limpet.DeliveryReceived:
		// The object's own error comes out of a run, which left no trace perhaps if
		// its class is gated. A reset may come from another call.
		if e.Remote && !e.Reset && n == 0 && !o.gated() {
			bad(o.ID, "%s gave an error of its own without a run: %v", o.Method.name, e)
		}
	}
	if o.Method == abort && e.Reset && strings.Contains(e.Message, abortText(o.ID)) && (n != 1 || len(r.stages) != 1) {
		bad(o.ID, "it aborted after a write that is acknowledged by that, and its object has %q: %s", r.stages, r.all())
	}
}

// judgeTold looks at what limpet.Outcome answered.
func judgeTold(o *op, r *runsOf, bad func(op, format string, args ...any)) {
	t, n := o.Told, len(r.how)
	switch t.Kind {
	case 0:
		e, ok := errors.AsType[*limpet.Error](t.Err)
		switch {
		case !ok:
			bad(o.ID, "to ask for its outcome failed with an error of another type (%T): %v", t.Err, t.Err)
		case e.Code != limpet.CodeOutcomeUnknown && !isLost(e) && e.Code != limpet.CodeReset:
			bad(o.ID, "to ask for its outcome failed with %s, which must not happen: %v", e.CodeOrDefault(), e)
		}
	case limpet.OutcomeNotReceived:
		if n > 0 || o.Err == nil {
			bad(o.ID, "%s is said never to have been received, and ran: %s", o.Method.name, r.all())
		}
	case limpet.OutcomeResult:
		switch {
		case t.Err != nil:
			bad(o.ID, "its outcome can't be read: %v", t.Err)
		case n == 0 && (!o.gated() || o.Method.tells || len(o.Method.stages) > 0):
			bad(o.ID, "it is said to have given a result, and nobody saw a run of it")
		}
	case limpet.OutcomeError:
		if t.Err == nil {
			bad(o.ID, "it is said to have failed, and not how")
		}
	case limpet.OutcomeRunning, limpet.OutcomeNotKept:
	default:
		bad(o.ID, "its outcome is %v, which means nothing", t.Kind)
	}
}

// judgeAnswered looks at one that gave a result.
func judgeAnswered(o *op, r *runsOf, bad func(op, format string, args ...any)) {
	m := o.Method
	switch {
	case m == abort:
		bad(o.ID, "%s was answered", m.name)
	case m.name == "read":
		if o.Read < o.Low || o.Read > o.High {
			bad(o.ID, "read %d operations that wrote, when %d were acknowledged and %d begun", o.Read, o.Low, o.High)
		}
	}
	if len(r.how) == 0 && (!o.gated() || m.tells || len(m.stages) > 0) {
		bad(o.ID, "%s was acknowledged, and nobody saw a run of it", m.name)
		return
	}
	if m.tells && (o.gated() || !m.marked) && r.told == 0 {
		bad(o.ID, "%s was acknowledged, and its call out of the object was not heard: %s", m.name, r.all())
	}
	if m.marked {
		return
	}
	want := make([]string, len(m.stages))
	for i, s := range m.stages {
		want[i] = o.Run + "/" + s
	}
	if len(r.how) <= 1 && !slices.Equal(r.stages, want) { // else it was told above
		bad(o.ID, "%s was acknowledged with %q written by run %s; its object has %q", m.name, want, o.Run, r.stages)
	}
}

// ending tells how a call ended.
func ending(err error) string {
	if err == nil {
		return "its result"
	}
	e, ok := errors.AsType[*limpet.Error](err)
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("%s, %v, after %d attempts: %v", e.CodeOrDefault(), e.Delivery, e.Attempts, e)
}
