// Package sim holds stand-ins for the world that tests can rule: a clock that
// works in testing/synctest bubbles, and a disk whose power can be cut. Only
// tests, limpettest and bench import it.
package sim
