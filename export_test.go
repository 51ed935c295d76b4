package limpet

// JSName is for tests of the package limpet_test.
var JSName = jsName
