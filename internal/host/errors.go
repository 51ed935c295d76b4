package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/limpet-dev/limpet"
)

// The texts that callers of the source's runtime know (SPEC C33, C36, C37).
const (
	textAbort   = "Application called abort() to reset Durable Object."
	textBlocked = "A call to blockConcurrencyWhile() in a Durable Object waited for too long. " +
		"The call was canceled and the Durable Object was reset."
	textOverloaded = "Durable Object is overloaded. "
)

// errBodyClosed ends the context of a handler whose response nobody reads.
var errBodyClosed = errors.New("the response's body was closed")

// reservedMethods can't be called by name (SPEC B20, C31).
var reservedMethods = map[string]bool{
	"dup": true, "alarm": true, "webSocketMessage": true, "webSocketClose": true, "webSocketError": true,
}

func (inc *incarnation) newError(code limpet.Code, d limpet.Delivery, format string, args ...any) *limpet.Error {
	e := limpet.Errorf(code, format, args...)
	e.Delivery, e.ObjectID = d, inc.id.String()
	return e
}

// resetError is the failure of everything in flight when the object is reset.
func (inc *incarnation) resetError(cause error, format string, args ...any) *limpet.Error {
	return limpet.ResetError(inc.id, fmt.Sprintf(format, args...), cause)
}

// errText is what JavaScript's String(error) gives: the class before the
// message, if the error says one.
func errText(err error) string {
	if e, ok := errors.AsType[*limpet.Error](err); ok && e.Name != "" && e.Name != "Error" {
		return e.Name + ": " + e.Error()
	}
	return err.Error()
}

// failureReset is the reset by a constructor or BlockConcurrencyWhile that
// failed: class, message and fields are the error's own (SPEC C34, C35); the
// code is CodeReset and the delivery received whatever the error says (C23).
// The cause says where it came from.
func (inc *incarnation) failureReset(err error, where string) *limpet.Error {
	e := limpet.ResetError(inc.id, err.Error(), &failedIn{where, err})
	if own, ok := errors.AsType[*limpet.Error](err); ok {
		e.Name, e.Fields = own.Name, own.Clone().Fields
	}
	return e
}

// failedIn says which code of an object failed, behind the error's own text.
type failedIn struct {
	where string
	err   error
}

func (f *failedIn) Error() string { return "in " + f.where }
func (f *failedIn) Unwrap() error { return f.err }

// storageReset is the reset by a commit that failed: what the object has in
// memory does not fit its data any more (SPEC C38, H2).
func (inc *incarnation) storageReset(err error) *limpet.Error {
	e := inc.resetError(err, "Internal error in Durable Object storage write caused object to be reset: %v", err)
	e.Code = storageCode(err)
	return e
}

// storageCode is the code of an error of the storage.
func storageCode(err error) limpet.Code {
	for _, c := range []limpet.Code{limpet.CodeStorageLost, limpet.CodeStorageFull, limpet.CodeTooLarge} {
		if errors.Is(err, c) {
			return c
		}
	}
	return limpet.CodeOf(err)
}

// overloaded is the refusal by a full inbox, with the figures (SPEC C37).
func (inc *incarnation) overloaded(v verdict, e *entry, now int64) *limpet.Error {
	g, l := &inc.gate, &inc.gate.limits
	var text string
	switch v {
	case refusedCount:
		text = fmt.Sprintf("Too many requests queued. (%d queued, %d replies waiting for the log; the limit is %d together)", g.queued, g.outputs, l.events)
	case refusedBytes:
		text = fmt.Sprintf("Too much data queued. (%d bytes queued and %d more to come; the limit is %d)", g.bytes+g.held, e.size, l.bytes)
	case refusedAge:
		text = fmt.Sprintf("Requests queued for too long. (the oldest of %d for %v; the limit is %v)",
			g.queued, time.Duration(now-g.oldest().arrived).Round(time.Millisecond), l.age)
	case refusedNode:
		text = fmt.Sprintf("Too much data queued on this node. (%d bytes queued; the limit is %d)", inc.host.queued.Load(), inc.host.limits.NodeBytes)
	}
	err := inc.newError(limpet.CodeOverloaded, limpet.DeliveryNone, "%s%s", textOverloaded, text)
	err.Overloaded = true
	return err
}

// lostError ends an incarnation because the log failed (SPEC C38).
func (inc *incarnation) lostError() *limpet.Error {
	e := inc.resetError(limpet.CodeStorageLost, "Internal error in Durable Object storage write caused object to be reset: the commit log failed")
	e.Code = limpet.CodeStorageLost
	return e
}

// drainError refuses a call that was not claimed (SPEC C24, F22).
func drainError(id limpet.ID) *limpet.Error {
	return &limpet.Error{
		Code: limpet.CodeDraining, Delivery: limpet.DeliveryNone, Retryable: true, ObjectID: id.String(),
		Message: "Network connection lost: the node is stopping and did not take the call.",
	}
}

// stopError ends a call that was running when the node closed (SPEC C22, C52).
func stopError(id limpet.ID) *limpet.Error {
	return &limpet.Error{
		Code: limpet.CodeDisconnected, Delivery: limpet.DeliveryReceived, Retryable: true, ObjectID: id.String(),
		Message: "Network connection lost: the node stopped while the call ran.",
	}
}

// canceled is what a caller gets whose context ended (SPEC C41).
func canceled(ctx context.Context, id limpet.ID, d limpet.Delivery) *limpet.Error {
	cause := context.Cause(ctx)
	return &limpet.Error{
		Code: limpet.CodeCanceled, Delivery: d, ObjectID: id.String(),
		Message: fmt.Sprintf("The operation was aborted: %v", cause), Cause: cause,
	}
}

// waitError turns the failure of a wait for the log into what the caller gets.
func waitError(ctx context.Context, id limpet.ID, err error, d limpet.Delivery) *limpet.Error {
	if ctx.Err() != nil && !errors.Is(err, limpet.CodeStorageLost) {
		return canceled(ctx, id, d)
	}
	if errors.Is(err, limpet.CodeStorageLost) { // what the object has in memory goes (SPEC C38)
		e := limpet.ResetError(id, "Internal error in Durable Object storage write caused object to be reset: the commit log failed", err)
		e.Code, e.Delivery = limpet.CodeStorageLost, d
		return e
	}
	e := limpet.Errorf(storageCode(err), "the object's data could not be made durable: %w", err)
	e.Delivery, e.ObjectID = d, id.String()
	return e
}
