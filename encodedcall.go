package limpet

// EncodedCall is the KindMethod call c as it arrives from elsewhere: the method
// is found by name in the class of c.Binding, and runs with args and a result in
// limpet's format, so that caller and object share nothing. The result is nil,
// Encoded or a Parcel. c is not changed. args stays the caller's, to be released
// when the call has ended. Transports of limpet use it; programs use stubs.
func EncodedCall(c *CallSpec, args Parcel) *CallSpec {
	d := &dynamicCall{CallSpec: *c, args: args}
	d.Runner = d
	return &d.CallSpec
}
