// Package measure is what the programs of bench share: closed loops bounded in
// time and count, latencies, medians of rounds, and tables.
//
// Each program compares sides (limpet, a limit, a rival) in one run:
//
//	round 1:  A  B  C        every side once per round, each round beginning
//	round 2:  A  C  B        with another one and every other one backwards, so
//	round 3:  C  A  B        that noise of the machine and warm caches favour none
//
// A figure is the median of the rounds with its range, a ratio the median of the
// ratios within each round. Numbers of two runs are not to be compared, ratios
// may be, with care.
package measure
