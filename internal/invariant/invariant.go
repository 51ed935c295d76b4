package invariant

import "fmt"

// Broken is the value that Check and CheckFunc panic with.
type Broken struct {
	// Err says what does not hold. Never nil.
	Err error
}

// Error returns the text of b, which starts with "invariant broken: ".
func (b *Broken) Error() string { return "invariant broken: " + b.Err.Error() }

// Unwrap returns b.Err.
func (b *Broken) Unwrap() error { return b.Err }

// Check panics with a *Broken when checks run and ok is false. The text is made
// from format and args as by [fmt.Errorf]. Arguments are evaluated also when
// checks are off: put a costly condition under `if invariant.Enabled` or into
// CheckFunc. It is safe for concurrent use.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic(&Broken{Err: fmt.Errorf(format, args...)})
	}
}

// CheckFunc calls check when checks run and panics with a *Broken that wraps
// its error, if it returns one. State machines pass their check method here
// after every step. When checks are off, check is not called and may be nil.
func CheckFunc(check func() error) {
	if Enabled {
		if err := check(); err != nil {
			panic(&Broken{Err: err})
		}
	}
}
