package limpet

// EncodedCall is the KindMethod call c as it arrives from elsewhere: the method
// is found by name in the class of c.Binding, and runs with args and a result in
// limpet's format, so that caller and object share nothing. c is not changed.
// Transports of limpet use it; programs use stubs.
func EncodedCall(c *CallSpec, args Encoded) *CallSpec {
	d := &dynamicCall{CallSpec: *c, args: args}
	d.Runner = d
	return &d.CallSpec
}
