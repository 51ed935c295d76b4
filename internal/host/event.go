package host

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/dispatch"
)

// eventKind is what an object runs.
type eventKind uint8

const (
	eventMethod eventKind = iota
	eventFetch
	eventConstruct
	eventWaitUntil
	eventInquiry // somebody asks for the outcome of a call
	eventCallback
)

var eventNames = [...]string{"method", "fetch", "constructor", "WaitUntil", "question for an outcome", "callback"}

func (k eventKind) String() string { return eventNames[k] }

// event is one thing that an object runs: a call, its constructor, a function
// given to WaitUntil. It is made per attempt, is its handler's context
// (context.go) and the Origin of the calls that come out of it.
type event struct {
	entry entry // under inc.mu, except its parent and size
	inc   *incarnation
	kind  eventKind
	here  bool // the handler may run on the caller's goroutine (unstoppable)

	attempt dispatch.Attempt            // eventMethod, eventFetch
	fn      func(context.Context) error // eventWaitUntil
	writer  *responseWriter             // eventFetch
	back    *callback                   // eventCallback

	// Under inc.mu.
	started bool            // was granted the turn for the first time
	settled bool            // result, err and pos are final
	result  any             // value of Runner.Run, or *http.Response
	err     *limpet.Error   // instead of result
	pos     Pos             // the outcome leaves when this is durable
	wake    chan struct{}   // closed when settled; nil if nobody can be waiting
	resume  []chan struct{} // goroutines that wait for the turn; closed when it is there or the incarnation has ended
	after   []*event        // WaitUntil: to queue when this event has ended

	claim     *claim       // under inc.storage
	ask       *asked       // of a call that wants its first outcome, or has an idempotency key, and of eventInquiry; else nil
	limit     limpet.Timer // eventWaitUntil
	waits     bool         // it counts in inc.waits; under inc.mu
	returned  bool         // the handler returned, that is did not panic or exit
	concluded bool         // conclude has settled it
	rejected  bool         // the claim was refused: no gate may replace that (SPEC C53)

	parent      context.Context
	deadline    time.Time
	ctxMu       sync.Mutex
	inner       context.Context
	cancelInner context.CancelCauseFunc
	stopParent  func() bool
	cause       error
	over        context.Context // untilOver
	cancelOver  context.CancelCauseFunc
	overCause   error
}

// settle fixes the outcome, once; inc.mu is held.
func (ev *event) settle(result any, err *limpet.Error, pos Pos) bool {
	if ev.settled {
		return false
	}
	ev.settled, ev.result, ev.err, ev.pos = true, result, err, pos
	if ev.wake != nil {
		close(ev.wake)
	}
	return true
}

// seen is how the event's caller sees a reset: by a fetch also as remote
// (SPEC C33-C35).
func (ev *event) seen(err *limpet.Error) *limpet.Error {
	if ev.kind != eventFetch || !err.Reset {
		return err
	}
	e := err.Clone()
	e.Remote = true
	return e
}

// wakeAll lets the goroutines go on that wait for the turn; inc.mu is held.
func (ev *event) wakeAll() {
	for _, c := range ev.resume {
		close(c)
	}
	ev.resume = nil
}

// Leave makes an event an Origin; see limpet.Origin.
func (ev *event) Leave(ctx context.Context) (context.Context, error) {
	return ev.inc.leave(ctx, ev, "a call through a stub")
}

// Return takes the object again.
func (ev *event) Return(context.Context) error { return ev.inc.retake(ev) }

// chain names the objects of a call chain, the newest last.
func chain(e *entry) string {
	s := ""
	for n := 0; e != nil; e, n = e.parent, n+1 {
		if n == 16 {
			return "… → " + s
		}
		step := e.ev.inc.label() + "." + e.ev.name()
		if s == "" {
			s = step
		} else {
			s = step + " → " + s
		}
	}
	return s
}

// name is the method, or what else the event is.
func (ev *event) name() string {
	if ev.kind == eventMethod {
		return ev.attempt.Call.Method
	}
	if ev.kind == eventCallback && len(ev.back.call.Path) > 0 {
		return ev.kind.String() + "." + strings.Join(ev.back.call.Path, ".")
	}
	return ev.kind.String()
}
