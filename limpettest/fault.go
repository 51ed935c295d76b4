package limpettest

import (
	"fmt"
	"time"

	"github.com/limpet-dev/limpet"
)

// FaultKind is a way in which a network fails.
type FaultKind uint8

// The kinds of faults; Network.Count counts each.
const (
	FaultDropRequest FaultKind = iota
	FaultDropReply
	FaultRefuse
	FaultCutAfter
	FaultFreeze
	FaultDelay
	FaultReorder
	FaultDrain
	FaultCutConnection
	faultKinds
)

var faultNames = [faultKinds]string{"DropRequest", "DropReply", "Refuse", "CutAfter", "Freeze", "Delay", "Reorder", "Drain", "CutConnection"}

// String is the name of the function that makes such a fault.
func (k FaultKind) String() string {
	if k < faultKinds {
		return faultNames[k]
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// Fault is what befalls the attempts that its options choose: all, if there are
// none. Network.Inject sets it to work.
type Fault struct {
	kind  FaultKind
	bytes int64
	d     time.Duration

	on      bool // the reply, not the request
	times   int  // -1: always
	binding string
	method  string
	object  limpet.ID
	number  int     // of the attempt; 0: any
	chance  float64 // 0: always

	given []string // the options, as in their functions' names
	wrong []string
}

// FaultOption chooses which attempts a fault strikes. Of several, all must fit.
type FaultOption interface{ applyFault(*Fault) }

type faultOption struct {
	name  string
	apply func(*Fault)
}

func (o faultOption) applyFault(f *Fault) {
	for _, name := range f.given {
		if name == o.name {
			f.bad("%s is given twice", o.name)
		}
	}
	f.given = append(f.given, o.name)
	o.apply(f)
}

func (f *Fault) bad(format string, args ...any) {
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

// Times makes the fault strike n times, 1 or more, and then no more. Without it
// the fault strikes every attempt that fits.
func Times(n int) FaultOption {
	return faultOption{"Times", func(f *Fault) {
		if n < 1 {
			f.bad("Times(%d): must be 1 or more", n)
		}
		f.times = n
	}}
}

// Binding chooses calls through one binding, such as "CART".
func Binding(name string) FaultOption {
	return faultOption{"Binding", func(f *Fault) { f.binding = name }}
}

// Method chooses calls of one method by its JavaScript name, such as "addOne";
// "fetch" chooses fetches.
func Method(name string) FaultOption {
	return faultOption{"Method", func(f *Fault) { f.method = name }}
}

// Object chooses calls to one object.
func Object(id limpet.ID) FaultOption {
	return faultOption{"Object", func(f *Fault) {
		if id.IsZero() {
			f.bad("Object: the ID is zero")
		}
		f.object = id
	}}
}

// Attempt chooses attempts by their number: 1 is the first of a call, 2 its
// first retry. Each redirect hop counts from 1 (SPEC E42).
func Attempt(n int) FaultOption {
	return faultOption{"Attempt", func(f *Fault) {
		if n < 1 || n > limpet.MaxMaxRetries+1 {
			f.bad("Attempt(%d): a call makes attempts 1 to %d", n, limpet.MaxMaxRetries+1)
		}
		f.number = n
	}}
}

// Probability makes the fault strike with probability p, above 0 and up to 1,
// drawn from the network's seed for each attempt that fits.
func Probability(p float64) FaultOption {
	return faultOption{"Probability", func(f *Fault) {
		if !(p > 0 && p <= 1) {
			f.bad("Probability(%v): must be above 0 and at most 1", p)
		}
		f.chance = p
	}}
}

// OnReply makes a Delay, Freeze or CutConnection strike the answer, after the
// object has run, instead of the request.
func OnReply() FaultOption {
	return faultOption{"OnReply", func(f *Fault) {
		if f.kind != FaultDelay && f.kind != FaultFreeze && f.kind != FaultCutConnection {
			f.bad("OnReply is for Delay, Freeze and CutConnection")
		}
		f.on = true
	}}
}

func newFault(f Fault, opts []FaultOption) Fault {
	f.times = -1
	for _, o := range opts {
		if o == nil {
			f.bad("an option is nil")
			continue
		}
		o.applyFault(&f)
	}
	return f
}

// DropRequest loses the connection after the request was handed over and before
// the object got it: uncertain to the caller, and the object never runs it.
func DropRequest(opts ...FaultOption) Fault {
	return newFault(Fault{kind: FaultDropRequest}, opts)
}

// DropReply loses the connection after the object ran the attempt (a fetch: up
// to its response's head) and before the answer arrived: uncertain.
func DropReply(opts ...FaultOption) Fault {
	return newFault(Fault{kind: FaultDropReply}, opts)
}

// Refuse fails the attempt before anything was sent, as a refused connection
// does: not delivered.
func Refuse(opts ...FaultOption) Fault {
	return newFault(Fault{kind: FaultRefuse}, opts)
}

// CutAfter breaks the connection after so many bytes, 0 or more: first of the
// arguments or the request's body, then of the result or the response's body.
// Heads are not counted. A call is uncertain then, and its handler's context
// ends; a response whose head has arrived has a body that breaks, which is not
// retried (SPEC E40). An attempt with no more bytes than that is not struck.
func CutAfter(bytes int64, opts ...FaultOption) Fault {
	f := newFault(Fault{kind: FaultCutAfter, bytes: bytes}, opts)
	if bytes < 0 {
		f.bad("CutAfter(%d): must be 0 or more", bytes)
	}
	return f
}

// PingDeadline is how long a connection may be silent before it counts as lost.
const PingDeadline = 10 * time.Second

// Freeze lets nothing of the attempt pass for d, and then everything. If d is
// PingDeadline or more, the connection is lost after PingDeadline: uncertain,
// and what was frozen never arrives.
func Freeze(d time.Duration, opts ...FaultOption) Fault {
	f := newFault(Fault{kind: FaultFreeze, d: d}, opts)
	if d <= 0 {
		f.bad("Freeze(%v): must be above 0", d)
	}
	return f
}

// Delay holds the request back for d, however long, on a connection that is
// well.
func Delay(d time.Duration, opts ...FaultOption) Fault {
	f := newFault(Fault{kind: FaultDelay, d: d}, opts)
	if d <= 0 {
		f.bad("Delay(%v): must be above 0", d)
	}
	return f
}

// Reorder loses the connection of a first attempt, uncertain to the caller,
// while the request is still under way: it arrives after a retry of the same
// call, before that one's answer leaves, and the object must refuse it
// (SPEC F16). If no retry reaches the object, or the node went down in
// between, it never arrives.
func Reorder(opts ...FaultOption) Fault {
	f := newFault(Fault{kind: FaultReorder}, opts)
	if f.number > 1 {
		f.bad("Reorder strikes first attempts: it can't be combined with Attempt(%d)", f.number)
	}
	f.number = 1
	return f
}

// Drain refuses the attempt as a node that stops refuses what it has not begun: not
// delivered, with CodeDraining, and retried with an identity of its own (SPEC C24,
// F22). The node itself goes on; a retry that is not struck finds it, as one would
// find the node that has taken over.
func Drain(opts ...FaultOption) Fault {
	return newFault(Fault{kind: FaultDrain}, opts)
}

// CutConnection loses the one connection that all calls have in common: the attempt
// that is struck, before the object gets it or, with OnReply, after it ran, and with
// it every other attempt that is under way. All of them are uncertain to their
// callers; the contexts of their handlers end, and responses whose heads have
// arrived break. Count counts connections, not attempts.
func CutConnection(opts ...FaultOption) Fault {
	return newFault(Fault{kind: FaultCutConnection}, opts)
}
