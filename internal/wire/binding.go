package wire

import (
	"time"

	"github.com/limpet-dev/limpet"
)

// bindingInfo is the result of a KindDescribe call, a CBOR map.
type bindingInfo struct {
	ClassIdentity string `cbor:"1,keyasint"`
	MaxRetries    int    `cbor:"2,keyasint"`
	TimeoutMS     int64  `cbor:"3,keyasint"`
	BufferBody    int64  `cbor:"4,keyasint,omitempty"`
	Replay        bool   `cbor:"5,keyasint,omitempty"`
}

func appendBinding(b []byte, info BindingInfo) []byte {
	enc, err := cborWrite.Marshal(bindingInfo{info.ClassIdentity, info.Policy.MaxRetries, info.Policy.Timeout.Milliseconds(), info.Policy.BufferBody, info.Policy.ReplayOutcome})
	if err != nil {
		panic(err) // a class's identity is checked when it is registered
	}
	return append(b, enc...)
}

func readBinding(p []byte) (BindingInfo, error) {
	var b bindingInfo
	if err := cborRead.Unmarshal(p, &b); err != nil {
		return BindingInfo{}, violation("the description of a binding is malformed: %v", err)
	}
	if b.TimeoutMS < 0 || b.TimeoutMS > limpet.MaxRetryTimeout.Milliseconds() {
		return BindingInfo{}, violation("the description of a binding has a retry timeout of %d ms", b.TimeoutMS)
	}
	info := BindingInfo{
		ClassIdentity: b.ClassIdentity,
		Policy: limpet.RetryPolicy{
			MaxRetries: b.MaxRetries, Timeout: time.Duration(b.TimeoutMS) * time.Millisecond, BufferBody: b.BufferBody,
			ReplayOutcome: b.Replay,
		},
	}
	if err := info.Policy.Validate(); err != nil || info.ClassIdentity == "" {
		return BindingInfo{}, violation("the description of a binding is not valid: %v", err)
	}
	return info, nil
}
