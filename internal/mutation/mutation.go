package mutation

import (
	"fmt"
	"strings"
)

// Set is the mutations that are on. The zero Set is none.
type Set struct {
	// ClaimRefusalOff lets every attempt run, whatever its identity.
	ClaimRefusalOff bool
	// ClaimsPerIncarnation forgets an object's claims when its incarnation ends.
	ClaimsPerIncarnation bool
	// NoRecord appends no record for identities alone before an output.
	NoRecord bool
	// WriterOnly puts into a record the identity of the call that wrote, and of
	// no other.
	WriterOnly bool
	// UnflaggedAccepted lets an attempt without the retry flag run although its
	// identity is claimed.
	UnflaggedAccepted bool
	// LostNotDelivered takes calls whose reply was lost as not delivered.
	LostNotDelivered bool
	// EarlyAcknowledgement lets outputs leave when their record is appended.
	EarlyAcknowledgement bool
}

// table names them; the order is that of Set.
var table = []struct {
	name string
	of   func(*Set) *bool
}{
	{"claim-refusal-off", func(s *Set) *bool { return &s.ClaimRefusalOff }},
	{"claims-per-incarnation", func(s *Set) *bool { return &s.ClaimsPerIncarnation }},
	{"no-record", func(s *Set) *bool { return &s.NoRecord }},
	{"writer-only", func(s *Set) *bool { return &s.WriterOnly }},
	{"unflagged-accepted", func(s *Set) *bool { return &s.UnflaggedAccepted }},
	{"lost-not-delivered", func(s *Set) *bool { return &s.LostNotDelivered }},
	{"early-acknowledgement", func(s *Set) *bool { return &s.EarlyAcknowledgement }},
}

// Names are those of all mutations.
func Names() []string {
	names := make([]string, len(table))
	for i, m := range table {
		names[i] = m.name
	}
	return names
}

// Named is the Set with the one mutation of that name; the empty name is none.
func Named(name string) (Set, error) {
	var s Set
	if name == "" {
		return s, nil
	}
	for _, m := range table {
		if m.name == name {
			*m.of(&s) = true
			return s, nil
		}
	}
	return s, fmt.Errorf("there is no mutation %q; there are %s", name, strings.Join(Names(), ", "))
}

// String names what is on, separated by commas; it is empty for none.
func (s Set) String() string {
	var on []string
	for _, m := range table {
		if *m.of(&s) {
			on = append(on, m.name)
		}
	}
	return strings.Join(on, ", ")
}
