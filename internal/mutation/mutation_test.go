package mutation

import (
	"reflect"
	"testing"
)

// TestNames shows that each mutation has a name of its own, which finds it and
// nothing else.
func TestNames(t *testing.T) {
	if n := reflect.TypeFor[Set]().NumField(); n != len(Names()) {
		t.Errorf("Set has %d mutations, %d of them with a name", n, len(Names()))
	}
	seen := map[Set]string{}
	for _, name := range Names() {
		s, err := Named(name)
		if err != nil || s.String() != name || seen[s] != "" {
			t.Errorf("%s gives %v, %v; it is the same as %q", name, s, err, seen[s])
		}
		seen[s] = name
	}
	if s, err := Named(""); s != (Set{}) || err != nil || s.String() != "" {
		t.Errorf("no name gives %v, %v", s, err)
	}
	if _, err := Named("nonsense"); err == nil {
		t.Error("an unknown name is taken")
	}
}
