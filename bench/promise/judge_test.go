package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
)

// methodNamed finds one of the mix.
func methodNamed(t *testing.T, name string) *method {
	t.Helper()
	for _, m := range methods {
		if m.name == name {
			return m
		}
	}
	t.Fatalf("there is no method %q", name)
	return nil
}

// failed is how a call failed.
func failed(code limpet.Code, d limpet.Delivery, change ...func(*limpet.Error)) error {
	e := limpet.Errorf(code, "it failed")
	e.Delivery = d
	for _, c := range change {
		c(e)
	}
	return e
}

// TestJudge gives the judge worlds in which one promise is broken, and those next
// to them in which none is.
func TestJudge(t *testing.T) {
	const id = "op_001-00000001"
	uncertain := failed(limpet.CodeDisconnected, limpet.DeliveryUncertain)
	none := failed(limpet.CodeDisconnected, limpet.DeliveryNone)
	for _, x := range []struct {
		name    string
		method  string
		free    bool
		err     error
		run     string
		took    time.Duration
		witness []sight
		saw     []sight
		entries map[string]string
		read    [3]int64 // value, low, high
		keyed   bool
		before  []try
		told    *told
		want    string
	}{
		{name: "answered", method: "write", run: "L1.1", entries: map[string]string{"n": "1", "e/" + id: "L1.1/w"}},
		{name: "answered and lost", method: "write", run: "L1.1", want: "its object has []"},
		{name: "another run", method: "write", run: "L1.1", entries: map[string]string{"n": "1", "e/" + id: "L1.2/w"}, want: "is not marked and ran 2 times"},
		{name: "two runs", method: "write", err: uncertain, entries: map[string]string{"n": "1", "e/" + id: "L1.1/w L2.1/w"}, want: "ran 2 times"},
		{name: "half of a run", method: "write, call, write", run: "L1.1", witness: []sight{{id, "L1.1", "call"}}, entries: map[string]string{"n": "1", "e/" + id: "L1.1/a"}, want: "its object has"},
		{name: "half of a failed run", method: "write, call, write", err: uncertain, witness: []sight{{id, "L1.1", "call"}}, entries: map[string]string{"n": "1", "e/" + id: "L1.1/a"}},
		{name: "not heard", method: "call only", run: "L1.1", want: "was not heard"},
		{name: "heard", method: "call only", run: "L1.1", witness: []sight{{id, "L1.1", "fetch"}}},
		{name: "heard twice", method: "call only", run: "L1.1", witness: []sight{{id, "L1.1", "call"}, {id, "L1.1", "call"}}, want: "a call out of the object ran twice"},
		{name: "two runs heard", method: "call only", err: uncertain, witness: []sight{{id, "L1.1", "call"}, {id, "L2.1", "call"}}, want: "ran 2 times"},
		{name: "not delivered, and ran", method: "call only", err: none, witness: []sight{{id, "L1.1", "fetch"}}, want: "was said to be not delivered, and ran"},
		{name: "not delivered", method: "call only", err: none},
		{name: "published and run again", method: "field, Await", run: "L2.1", entries: map[string]string{"n": "1", "e/" + id: "L2.1/w"}, saw: []sight{{id, "L1.1", "published"}}, want: "ran 2 times"},
		{name: "rolled back and seen", method: "abort after write", err: uncertain, entries: map[string]string{"n": "1", "e/" + id: "L1.1/kept L1.1/gone"}, want: "the turn that aborted"},
		{name: "aborted", method: "abort after write", err: failed(limpet.CodeReset, limpet.DeliveryReceived, func(e *limpet.Error) { e.Reset, e.Message = true, abortText(id) }), entries: map[string]string{"n": "1", "e/" + id: "L1.1/kept"}},
		{name: "aborted and lost", method: "abort after write", err: failed(limpet.CodeReset, limpet.DeliveryReceived, func(e *limpet.Error) { e.Reset, e.Message = true, abortText(id) }), want: "it aborted after a write"},
		{name: "abort answered", method: "abort after write", entries: map[string]string{"n": "1", "e/" + id: "L1.1/kept"}, want: "was answered"},
		{name: "marked, twice", method: "set (marked)", witness: []sight{{id, "L1.1", "call"}, {id, "L2.1", "call"}}, entries: map[string]string{"s/" + id: valueOf(id)}},
		{name: "marked and lost", method: "set (marked)", witness: []sight{{id, "L1.1", "call"}}, want: "it was acknowledged, but its object has"},
		{name: "marked, another value", method: "set (marked)", err: uncertain, entries: map[string]string{"s/" + id: "x"}, want: "which nobody set"},
		{name: "marked, not delivered, and ran", method: "set (marked)", err: none, witness: []sight{{id, "L1.1", "call"}}, want: "was said to be not delivered"},
		{name: "a read without a trace", method: "read"},
		{name: "an ungated read nobody saw", method: "read", free: true, want: "nobody saw a run"},
		{name: "read too little", method: "read", read: [3]int64{3, 4, 9}, want: "4 were acknowledged"},
		{name: "read too much", method: "read", read: [3]int64{10, 4, 9}, want: "9 begun"},
		{name: "an ungated method's error without a run", method: "write", free: true, err: failed(limpet.CodeApplication, limpet.DeliveryReceived, func(e *limpet.Error) { e.Remote = true }), want: "without a run"},
		{name: "reset by another", method: "stream", free: true, err: failed(limpet.CodeReset, limpet.DeliveryReceived, func(e *limpet.Error) { e.Remote, e.Reset = true, true })},
		{name: "too slow", method: "write", err: none, took: time.Hour, want: "ended after 1h0m0s"},
		{name: "a claim's refusal", method: "write", err: failed(limpet.CodeAlreadyReceived, limpet.DeliveryReceived), want: "which nobody may see"},
		{name: "not delivered at last, under a key", method: "call only", err: none, keyed: true, before: []try{{Delivery: limpet.DeliveryUncertain}}, witness: []sight{{id, "L1.1", "fetch"}}},
		{name: "never delivered, under a key", method: "call only", err: none, keyed: true, before: []try{{Delivery: limpet.DeliveryNone}}, witness: []sight{{id, "L1.1", "fetch"}}, want: "was said to be not delivered, and ran"},
		{name: "a slow first try", method: "call only", err: none, keyed: true, before: []try{{Delivery: limpet.DeliveryNone, Took: time.Second}}, want: "ended after 1s"},
		{name: "received before, under a key", method: "call only", err: failed(limpet.CodeAlreadyReceived, limpet.DeliveryReceived), keyed: true},
		{name: "the key of another", method: "call only", err: failed(limpet.CodeIdentityReused, limpet.DeliveryNone), keyed: true, want: "which must not happen"},
		{name: "told not received", method: "call only", err: uncertain, told: &told{Kind: limpet.OutcomeNotReceived}},
		{name: "told not received, and ran", method: "call only", err: uncertain, told: &told{Kind: limpet.OutcomeNotReceived}, witness: []sight{{id, "L1.1", "fetch"}}, want: "never to have been received, and ran"},
		{name: "told a result", method: "call only", err: uncertain, told: &told{Kind: limpet.OutcomeResult, Run: "L1.1"}, witness: []sight{{id, "L1.1", "fetch"}}},
		{name: "told the result of another run", method: "call only", err: uncertain, told: &told{Kind: limpet.OutcomeResult, Run: "L1.2"}, witness: []sight{{id, "L1.1", "fetch"}}, want: "ran 2 times"},
		{name: "told a result nobody saw", method: "write, call, write", err: uncertain, told: &told{Kind: limpet.OutcomeResult}, want: "nobody saw a run"},
		{name: "told nothing, for a wrong reason", method: "write", err: uncertain, told: &told{Err: failed(limpet.CodeInternal, limpet.DeliveryNone)}, want: "to ask for its outcome failed"},
		{name: "told that nobody knows", method: "write", err: uncertain, told: &told{Err: failed(limpet.CodeOutcomeUnknown, limpet.DeliveryNone)}},
		{name: "told an error without one", method: "write", err: uncertain, told: &told{Kind: limpet.OutcomeError}, want: "and not how"},
		{name: "told nonsense", method: "write", err: uncertain, told: &told{Kind: 77}, want: "means nothing"},
		{name: "canceled by nobody", method: "write", err: failed(limpet.CodeCanceled, limpet.DeliveryNone), want: "nobody canceled it"},
		{name: "canceled", method: "write", err: failed(limpet.CodeCanceled, limpet.DeliveryNone, func(e *limpet.Error) { e.Cause = context.DeadlineExceeded })},
		{name: "another type of error", method: "write", err: errors.New("plain"), want: "another type"},
		{name: "a wrong count", method: "write", run: "L1.1", entries: map[string]string{"n": "2", "e/" + id: "L1.1/w"}, want: "counted 2 operations"},
		{name: "a foreign entry", method: "write", err: none, entries: map[string]string{"n": "1", "e/op_001-00000009": "L1.1/w"}, want: "has an entry of it"},
		{name: "a foreign run", method: "write", err: none, witness: []sight{{"op_001-00000009", "L1.1", "call"}}, want: "nobody called it"},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := &op{
				ID: id, Method: methodNamed(t, x.method), Err: x.err, Run: x.run, Saw: x.saw, Keyed: x.keyed, Told: x.told,
				Read: x.read[0], Low: x.read[1], High: x.read[2],
			}
			last := try{Took: max(x.took, 1), Bound: time.Second, Delivery: limpet.DeliveryReceived}
			if x.err != nil {
				last.Delivery = limpet.DeliveryOf(x.err)
			}
			o.Tries = append(x.before, last)
			e := evidence{witness: x.witness, objects: []contents{{}, {}}}
			if x.free {
				o.Object = 1
			}
			e.objects[o.Object].entries = x.entries
			got := judge([]*op{o}, e)
			switch {
			case x.want == "" && len(got) > 0:
				t.Errorf("a world without a violation gives %v", got)
			case x.want != "" && len(got) == 0:
				t.Errorf("no violation is found")
			case x.want != "":
				found := false
				for _, v := range got {
					found = found || strings.Contains(v.What, x.want)
				}
				if !found {
					t.Errorf("%v lacks %q", got, x.want)
				}
			}
		})
	}
}

// TestHistories shows what histories are possible.
func TestHistories(t *testing.T) {
	at := func(m *method, from, to time.Duration, value int64, err error) *op {
		return &op{ID: "x", Method: m, Start: from, End: to, Read: value, Value: value, Err: err}
	}
	uncertain := failed(limpet.CodeDisconnected, limpet.DeliveryUncertain)
	none := failed(limpet.CodeDisconnected, limpet.DeliveryNone)
	for _, x := range []struct {
		name string
		ops  []*op
		bad  bool
	}{
		{"counter", []*op{at(add, 1, 2, 1, nil), at(add, 3, 4, 2, nil), at(getCounter, 5, 6, 2, nil)}, false},
		{"counted twice", []*op{at(add, 1, 2, 1, nil), at(add, 3, 4, 3, nil)}, true},
		{"uncertain and counted later", []*op{at(add, 1, 2, 0, uncertain), at(add, 3, 4, 1, nil), at(getCounter, 5, 6, 2, nil)}, false},
		{"uncertain and counted twice", []*op{at(add, 1, 2, 0, uncertain), at(getCounter, 5, 6, 2, nil)}, true},
		{"not delivered and counted", []*op{at(add, 1, 2, 0, none), at(getCounter, 5, 6, 1, nil)}, true},
		{"acknowledged and lost", []*op{at(add, 1, 2, 1, nil), at(getCounter, 5, 6, 0, nil)}, true},
		{"register", []*op{at(put, 1, 4, 7, nil), at(put, 2, 5, 8, nil), at(getRegister, 6, 7, 7, nil)}, false},
		{"back in time", []*op{at(put, 1, 2, 7, nil), at(put, 3, 4, 8, nil), at(getRegister, 6, 7, 7, nil)}, true},
		{"a put that comes late", []*op{at(put, 1, 2, 7, uncertain), at(put, 3, 4, 8, nil), at(getRegister, 6, 7, 7, nil)}, false},
		{"and again", []*op{at(put, 1, 2, 7, uncertain), at(getRegister, 3, 4, 7, nil), at(put, 5, 6, 8, nil), at(getRegister, 7, 8, 7, nil)}, true},
	} {
		h := &history{counter: x.ops[0].Method == add, ops: x.ops}
		v, unknown := h.check()
		if unknown || (len(v) > 0) != x.bad {
			t.Errorf("%s: %v, undecided %v", x.name, v, unknown)
		}
	}
}

// TestHistoryEnds shows the bounds of a history.
func TestHistoryEnds(t *testing.T) {
	h := &history{}
	for i := range historyOps {
		if goes := h.add(&op{Method: add}); goes != (i < historyOps-1) {
			t.Fatalf("after %d operations it goes on: %v", i+1, goes)
		}
	}
	h = &history{}
	for i := range historyUncertain {
		h.add(&op{Method: getCounter, Err: failed(limpet.CodeDisconnected, limpet.DeliveryUncertain)}) // does not matter
		h.add(&op{Method: add, Err: failed(limpet.CodeDisconnected, limpet.DeliveryNone)})             // did not happen
		if goes := h.add(&op{Method: add, Err: failed(limpet.CodeDisconnected, limpet.DeliveryUncertain)}); goes != (i < historyUncertain-1) {
			t.Fatalf("after %d uncertain ones it goes on: %v", i+1, goes)
		}
	}
}

// TestStrikes shows that faults are the same for the same seed, and all of them.
func TestStrikes(t *testing.T) {
	a, b, other := newStrikes(1, 2, 10), newStrikes(1, 2, 10), newStrikes(2, 2, 10)
	seen := map[fault]int{}
	differ := false
	for i := range 10000 {
		body := i%5 == 0
		f := a.next(body)
		if g := b.next(body); f != g {
			t.Fatalf("call %d: %v and %v with one seed", i, f, g)
		}
		differ = differ || f != other.next(body)
		seen[f]++
		if f == bodyCut && !body {
			t.Fatal("the body of a call without one is cut")
		}
	}
	if !differ {
		t.Error("another seed gives the same")
	}
	for f := requestLost; f <= longFreeze; f++ {
		if seen[f] == 0 {
			t.Errorf("%v never happens", f)
		}
	}
	if n := seen[none]; n < 5000 || n > 9500 {
		t.Errorf("%d of 10000 calls are left alone", n)
	}
}
