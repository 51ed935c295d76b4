package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/limpet-dev/limpet"
)

// Codes that only the door uses.
const (
	codeNotFound             limpet.Code = "NotFound"
	codeMethodNotAllowed     limpet.Code = "MethodNotAllowed"
	codeUnsupportedMediaType limpet.Code = "UnsupportedMediaType"
	codeForbidden            limpet.Code = "Forbidden"
	codeBodyTimeout          limpet.Code = "BodyTimeout"
)

// refusal is an error of the door itself: nothing was sent to an object.
func refusal(code limpet.Code, format string, args ...any) *limpet.Error {
	return limpet.Errorf(code, format, args...).With(func(e *limpet.Error) {
		e.Delivery = limpet.DeliveryNone
		e.Overloaded = code == limpet.CodeOverloaded
	})
}

// statusOf is the table of the package comment.
func statusOf(e *limpet.Error) int {
	if !e.ByLimpet() {
		return http.StatusInternalServerError // the method's own, whatever code it chose
	}
	if e.Remote && e.Code != limpet.CodeUnknownMethod {
		return http.StatusInternalServerError // a result that can't be carried (SPEC B27)
	}
	switch e.CodeOrDefault() {
	case limpet.CodeInvalidArgument:
		return http.StatusBadRequest
	case codeForbidden:
		return http.StatusForbidden
	case limpet.CodeUnknownNamespace, limpet.CodeUnknownMethod, limpet.CodeNoSuchObject, codeNotFound:
		return http.StatusNotFound
	case codeMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case codeBodyTimeout:
		return http.StatusRequestTimeout
	case limpet.CodeAlreadyReceived, limpet.CodeIdentityReused:
		return http.StatusConflict
	case limpet.CodeOutcomeUnknown:
		return http.StatusGone
	case limpet.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case codeUnsupportedMediaType:
		return http.StatusUnsupportedMediaType
	case limpet.CodeOverloaded:
		return http.StatusTooManyRequests
	case limpet.CodeNotSupported:
		return http.StatusNotImplemented
	case limpet.CodeStorageFull:
		return http.StatusInsufficientStorage
	case limpet.CodeDraining:
		return http.StatusServiceUnavailable
	case limpet.CodeCanceled:
		if errors.Is(e, context.DeadlineExceeded) {
			return http.StatusGatewayTimeout
		}
		return byDelivery(e.Delivery)
	case limpet.CodeDisconnected, limpet.CodeStorageLost:
		return byDelivery(e.Delivery)
	}
	return http.StatusInternalServerError
}

func byDelivery(d limpet.Delivery) int {
	if d == limpet.DeliveryNone {
		return http.StatusServiceUnavailable
	}
	return http.StatusBadGateway
}

// errorBody is an error as JSON.
type errorBody struct {
	Name       string          `json:"name"`
	Message    string          `json:"message"`
	Code       limpet.Code     `json:"code"`
	Delivery   limpet.Delivery `json:"delivery"`
	Retryable  bool            `json:"retryable"`
	Overloaded bool            `json:"overloaded"`
	Remote     bool            `json:"remote"`
	Reset      bool            `json:"reset"`
	Attempts   int             `json:"attempts"`
	NoRetry    string          `json:"noRetry,omitempty"`
	Identity   string          `json:"identity"`
	RequestID  string          `json:"requestId"`
	ObjectID   string          `json:"objectId,omitempty"`
	Fields     json.RawMessage `json:"fields,omitempty"`
}

// bodyOf tells e to the client. fields is e.Fields as JSON, or nil.
func bodyOf(e *limpet.Error, requestID string, fields []byte) errorBody {
	b := errorBody{
		Name: e.Name, Message: e.Error(), Code: e.CodeOrDefault(), Delivery: e.Delivery,
		Retryable: e.Retryable, Overloaded: e.Overloaded, Remote: e.Remote, Reset: e.Reset,
		Attempts: e.Attempts, NoRetry: e.NoRetry, Identity: e.Identity, RequestID: e.RequestID, ObjectID: e.ObjectID, Fields: fields,
	}
	if b.Name == "" {
		b.Name = "Error"
	}
	if b.RequestID == "" {
		b.RequestID = requestID
	}
	if b.Code == limpet.CodeInternal && e.ByLimpet() {
		b.Message = "internal error; reference = " + b.RequestID // SPEC C6: the rest is in the log
	}
	return b
}
