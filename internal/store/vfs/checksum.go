package vfs

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pageSum is the part of one page in the checksum of a database:
//
//	c = CRC-32C(page)<<32 | CRC-32(page), both without initial and final inversion
//	sum = 0 if c = 0, else mix(c ^ pgno * 0x9E3779B97F4A7C15)
//
// mix is the finalizer of SplitMix64, a bijection. The two polynomials are
// computed by machine instructions on amd64 and arm64. Without the inversions
// a page of zeroes has c = 0, so that a page never written and one written with
// zeroes are the same: SQLite may leave holes, images on disk cannot.
func pageSum(pgno uint32, page []byte) uint64 {
	// Update inverts on entry and on return.
	c := uint64(^crc32.Update(^uint32(0), castagnoli, page))<<32 |
		uint64(^crc32.Update(^uint32(0), crc32.IEEETable, page))
	if c == 0 {
		return 0
	}
	return mix(c ^ uint64(pgno)*0x9E3779B97F4A7C15)
}

// countSum is the part of the page count in the checksum.
func countSum(pageCount uint32) uint64 {
	if pageCount == 0 {
		return 0
	}
	return mix(uint64(pageCount) * 0xD6E8FEB86659FD93)
}

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xBF58476D1CE4E5B9
	x ^= x >> 27
	x *= 0x94D049BB133111EB
	return x ^ x>>31
}

// PageSum is the part of page pgno in the checksum of its database: 0 for a page
// of zeroes.
func PageSum(pgno uint32, page []byte) uint64 { return pageSum(pgno, page) }

// WithCount is the checksum of a database of which sum is the XOR of PageSum of
// all pages.
func WithCount(sum uint64, pageCount uint32) uint64 { return sum ^ countSum(pageCount) }
