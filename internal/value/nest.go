package value

// A nest keeps where in a value a reader or writer is, and which tokens may come
// next. It is the one grammar of the format, for both directions:
//
//	value   = scalar | ref | box | array | object | map | set | error
//	array   = Array(n)  n * (value | hole)
//	object  = Object(n) n * (key value)
//	map     = Map(n)    n * (value value)
//	set     = Set(n)    n * value
//	box     = Boxed     (bool | int | float | bigint | string)
//	error   = Error(n)  n * (key value)  (value | hole)  (array | ref | hole)
//
// A container ends by itself with its last token.
type nest struct {
	stack []frame
	open  int // containers that are open
	begun bool
	limit int
}

type frame struct {
	kind frameKind
	key  bool // an object's next token is a key
	free bool // is no level of its own: an error's fields
	left int  // tokens to come (an object's and a map's pairs count two)
}

type frameKind uint8

const (
	inArray frameKind = iota + 1
	inObject
	inValues // map and set: plain values
	inBox
	inErrorTail // cause, errors
	inAgain     // one value read once more
)

func (n *nest) reset(limit int) {
	n.stack, n.open, n.begun, n.limit = n.stack[:0], 0, false, limit
}

// done says that the value is complete.
func (n *nest) done() bool { return n.begun && len(n.stack) == 0 }

// take admits the token k, with count items or pairs if it is a container.
func (n *nest) take(k Kind, count int) error {
	if len(n.stack) == 0 {
		if n.begun {
			return fail(ErrSyntax, "%s after the end of the value", k)
		}
		if k == KindKey || k == KindHole {
			return fail(ErrSyntax, "%s outside of an object or array", k)
		}
		n.begun = true
	} else {
		f := &n.stack[len(n.stack)-1]
		switch f.kind {
		case inObject:
			if (k == KindKey) != f.key || k == KindHole {
				return n.misplaced(k, f)
			}
			f.key = !f.key
		case inArray:
			if k == KindKey {
				return n.misplaced(k, f)
			}
		case inBox:
			if k > KindString || k < KindBool {
				return n.misplaced(k, f)
			}
		case inErrorTail:
			if k == KindKey || (f.left == 1 && k != KindArray && k != KindRef && k != KindHole) {
				return n.misplaced(k, f)
			}
		default:
			if k == KindKey || k == KindHole {
				return n.misplaced(k, f)
			}
		}
		f.left--
	}
	switch k {
	case KindArray:
		return n.push(frame{kind: inArray, left: count})
	case KindObject:
		return n.push(frame{kind: inObject, key: true, left: 2 * count})
	case KindMap:
		return n.push(frame{kind: inValues, left: 2 * count})
	case KindSet:
		return n.push(frame{kind: inValues, left: count})
	case KindBoxed:
		return n.push(frame{kind: inBox, left: 1})
	case KindError:
		// One level of nesting, two frames: the fields, and around them the rest.
		if err := n.push(frame{kind: inErrorTail, left: 2}); err != nil {
			return err
		}
		return n.push(frame{kind: inObject, key: true, free: true, left: 2 * count})
	}
	n.pop()
	return nil
}

func (n *nest) push(f frame) error {
	if !f.free {
		if n.open >= n.limit {
			return tooDeep(n.limit)
		}
		n.open++
	}
	n.stack = append(n.stack, f)
	n.pop()
	return nil
}

func (n *nest) pop() {
	for i := len(n.stack) - 1; i >= 0 && n.stack[i].left == 0; i-- {
		if !n.stack[i].free {
			n.open--
		}
		n.stack = n.stack[:i]
	}
}

func (n *nest) misplaced(k Kind, f *frame) error {
	where := "where a value must stand"
	switch {
	case f.kind == inObject && f.key:
		where = "where a key must stand"
	case f.kind == inBox:
		where = "in a boxed primitive"
	case f.kind == inErrorTail:
		where = "in the end of an error"
	}
	return fail(ErrSyntax, "%s %s", k, where)
}
