package value

import "unicode/utf8"

// scanString looks at a string that should be UTF-8 or WTF-8: UTF-8 in which a
// lone surrogate U+D800..U+DFFF stands as the three bytes ED A0..BF 80..BF.
// Lone says that there is one; bad is the offset of the first byte that is
// neither, or of a surrogate pair (which must stand as one four-byte
// character), else -1.
func scanString(s string) (lone bool, bad int) {
	if utf8.ValidString(s) {
		return false, -1
	}
	high := false // the character before was a lone high surrogate
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r != utf8.RuneError || n > 1 {
			i += n
			high = false
			continue
		}
		u, ok := surrogateAt(s, i)
		if !ok || (high && u >= 0xdc00) {
			return lone, i
		}
		lone = true
		high = u < 0xdc00
		i += 3
	}
	return lone, -1
}

// surrogateAt gives the code unit of the three-byte surrogate at s[i:].
func surrogateAt(s string, i int) (uint16, bool) {
	if len(s)-i < 3 || s[i] != 0xed || s[i+1]&0xe0 != 0xa0 || s[i+2]&0xc0 != 0x80 {
		return 0, false
	}
	return 0xd000 | uint16(s[i+1]&0x3f)<<6 | uint16(s[i+2]&0x3f), true
}

func badString(s string, at int) error {
	if _, ok := surrogateAt(s, at); ok {
		return fail(ErrType, "string is no UTF-8: a surrogate pair at byte %d is written as two characters", at-3)
	}
	return fail(ErrType, "string is no UTF-8: byte 0x%02x at byte %d; carry binary data as []byte", s[at], at)
}
