package dispatch

import (
	"context"
	"errors"

	"github.com/limpet-dev/limpet"
)

// errClosed is the cause of cancelled attempts when the engine is closed.
var errClosed = errors.New("the node is closing")

// errCutoff is the cause of a retry's cancelled context when the retry timeout
// is over (SPEC E31).
var errCutoff = errors.New("the retry timeout has passed")

// asError is err as the *limpet.Error it is, wraps, or becomes. The result may
// be shared and must not be changed.
func asError(err error) *limpet.Error {
	if e, ok := errors.AsType[*limpet.Error](err); ok {
		if error(e) == err { //nolint:errorlint // is it the chain's head?
			return e
		}
		e = e.Clone()
		e.Message, e.Cause = err.Error(), err
		return e
	}
	return limpet.Errorf(limpet.CodeInternal, "%w", err) // uncertain, the zero Delivery
}

// isLost reports whether e is a lost connection or a draining node's refusal
// (SPEC C2, C24). What came out of the object's own code never is, whatever it
// claims (SPEC C7).
func isLost(e *limpet.Error) bool {
	return !e.Remote && (e.Code == limpet.CodeDisconnected || e.Code == limpet.CodeDraining)
}

// classify is what the machine may know of a failure. identified says whether
// the attempt carried the call's identity: without one the object could not tell
// a second attempt from a first, so an uncertain one must not be followed by
// another.
func classify(e *limpet.Error, identified bool) failure {
	switch {
	case !e.Remote && e.Code == limpet.CodeAlreadyReceived:
		return failClaimed
	case !isLost(e):
		return failOther
	case e.Delivery == limpet.DeliveryNone:
		return failNotDelivered
	case e.Delivery == limpet.DeliveryUncertain && identified:
		return failUncertain
	default:
		return failReceived
	}
}

// isCancel reports whether a transport failed because its context ended.
func isCancel(err error) bool {
	if e, ok := errors.AsType[*limpet.Error](err); ok {
		return !e.Remote && e.Code == limpet.CodeCanceled
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// canceled is the failure of a call whose caller's context ended (SPEC E34).
func canceled(ctx context.Context, d limpet.Delivery) *limpet.Error {
	text := "the call was canceled"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		text = "the caller's deadline passed"
	}
	return &limpet.Error{Code: limpet.CodeCanceled, Message: text, Delivery: d, Cause: context.Cause(ctx)}
}

// closed is the failure of a call that the end of the engine ended (SPEC E35).
func closed(d limpet.Delivery) *limpet.Error {
	if d == limpet.DeliveryNone {
		return &limpet.Error{
			Code: limpet.CodeDraining, Message: "the node is closing and did not take the call",
			Delivery: d, Retryable: true, Cause: errClosed,
		}
	}
	return &limpet.Error{
		Code: limpet.CodeCanceled, Message: "the node is closing: the call was ended while it ran", Delivery: d, Cause: errClosed,
	}
}

// unsent is the failure of a call of which nothing was sent. A new error and not
// a copy, so that a reset of the calling object does not break the stub.
func unsent(err error) *limpet.Error { return notOfTarget(err, limpet.DeliveryNone) }

// notOfTarget is err, which did not come from the called object.
func notOfTarget(err error, d limpet.Delivery) *limpet.Error {
	e := asError(err)
	return &limpet.Error{
		Code: e.Code, Name: e.Name, Message: e.Error(), Delivery: d, Retryable: e.Retryable,
		Overloaded: e.Overloaded, Reset: e.Reset, ObjectID: e.ObjectID, RequestID: e.RequestID,
		Fields: e.Fields, Cause: err,
	}
}
