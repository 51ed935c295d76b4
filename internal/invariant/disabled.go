//go:build !limpet_invariants && !race

package invariant

// Enabled tells whether checks run. It is a constant, so that the compiler
// drops what stands under `if invariant.Enabled` in production builds.
const Enabled = false
