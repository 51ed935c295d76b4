package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/node"
)

// Room is an object that tells its listeners of what is said.
type Room struct {
	st        *limpet.State
	listeners []*limpet.Stub[any]
	said      int
}

// Join keeps a stub: a Dup of it, since what an argument holds ends with the call.
func (r *Room) Join(_ context.Context, listener *limpet.Stub[any]) error {
	r.listeners = append(r.listeners, listener.Dup())
	return nil
}

// Say calls every listener. The room is given away at each call.
func (r *Room) Say(ctx context.Context, text string) error {
	r.said++
	var failed error
	for _, l := range r.listeners {
		if _, err := l.Apply(ctx, text); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// Close lets the listeners go.
func (r *Room) Close(context.Context) error {
	for _, l := range r.listeners {
		l.Close()
	}
	r.listeners = nil
	return nil
}

// Said is a property: limpet.Getter says so.
func (r *Room) Said(context.Context) (int, error) { return r.said, nil }

// Each calls back for every word: the function ends with the call.
func (r *Room) Each(ctx context.Context, text string, fn func(context.Context, string) error) error {
	for word := range strings.FieldsSeq(text) {
		if err := fn(ctx, word); err != nil {
			return err
		}
	}
	return nil
}

// Count reads a stream while other events of the room may run.
func (r *Room) Count(ctx context.Context, in io.Reader) (n int64, err error) {
	err = r.st.Await(ctx, func(context.Context) error {
		n, err = io.Copy(io.Discard, in)
		return err
	})
	return n, err
}

// Enter gives a target away: methods with a memory of their own.
func (r *Room) Enter(_ context.Context, name string) (*limpet.Stub[any], error) {
	return limpet.NewTarget(&Guest{r, name})
}

// Guest is what Enter gives. Its methods run as events of the room.
type Guest struct {
	room *Room
	name string
}

// Say is Room.Say under the guest's name.
func (g *Guest) Say(ctx context.Context, text string) error {
	return g.room.Say(ctx, g.name+": "+text)
}

// Dispose runs when the last handle to the guest was closed.
func (g *Guest) Dispose() { g.room.said++ }

var roomClass = limpet.NewClass("Room",
	func(st *limpet.State) (*Room, error) { return &Room{st: st}, nil },
	limpet.Getter((*Room).Said))

// openRooms opens a node and gives its rooms.
func openRooms(ctx context.Context) (rooms limpet.Namespace[*Room], closeNode func()) {
	dir, err := os.MkdirTemp("", "limpet")
	if err != nil {
		log.Fatal(err)
	}
	n, err := node.Open(ctx, node.Config{Dir: dir, Classes: []*limpet.Class{roomClass}})
	if err != nil {
		log.Fatal(err)
	}
	if rooms, err = limpet.NamespaceOf[*Room](n, "ROOM"); err != nil {
		log.Fatal(err)
	}
	return rooms, func() {
		_ = n.Close()
		_ = os.RemoveAll(dir)
	}
}

// A function that is an argument is called back.
func Example_callback() {
	ctx := context.Background()
	rooms, closeNode := openRooms(ctx)
	defer closeNode()
	room := rooms.Named("lobby")

	err := limpet.Do2(ctx, room, (*Room).Each, "good morning", func(_ context.Context, word string) error {
		fmt.Println(word)
		return nil
	})
	fmt.Println(err)

	// One that is to be kept is taken as a stub.
	_, err = room.Invoke(ctx, "join", func(_ context.Context, text string) error {
		fmt.Println("heard", text)
		return nil
	})
	fmt.Println(err)
	fmt.Println(limpet.Do1(ctx, room, (*Room).Say, "hello"))
	fmt.Println(limpet.Do(ctx, room, (*Room).Close))
	// Output:
	// good
	// morning
	// <nil>
	// <nil>
	// heard hello
	// <nil>
	// <nil>
}

// A target that a method returned is the caller's to close.
func Example_target() {
	ctx := context.Background()
	rooms, closeNode := openRooms(ctx)
	defer closeNode()
	room := rooms.Named("lobby")

	guest, err := limpet.Call1(ctx, room, (*Room).Enter, "ann")
	if err != nil {
		log.Fatal(err)
	}
	_, err = guest.Invoke(ctx, "say", "hello")
	fmt.Println(err)
	fmt.Println(limpet.Do1(ctx, limpet.As[*Guest](guest), (*Guest).Say, "typed")) // the same handle, typed

	guest.Close()
	_, err = guest.Invoke(ctx, "say", "too late")
	fmt.Println(err, limpet.DeliveryOf(err))
	// Output:
	// <nil>
	// <nil>
	// RPC stub used after being disposed. not delivered
}

// A call on a promise is sent before the result it needs is there.
func Example_pipelining() {
	ctx := context.Background()
	rooms, closeNode := openRooms(ctx)
	defer closeNode()
	room := rooms.Named("lobby")

	guest := room.Start(ctx, "enter", "ann")
	defer guest.Close()
	_, err := guest.Invoke(ctx, "say", "hello")
	fmt.Println(err)

	said, err := room.Get(ctx, "said")
	fmt.Println(said, err)
	// Output:
	// <nil>
	// 1 <nil>
}

// A reader that is an argument is read by the object.
func Example_stream() {
	ctx := context.Background()
	rooms, closeNode := openRooms(ctx)
	defer closeNode()

	n, err := limpet.Call1(ctx, rooms.Named("lobby"), (*Room).Count, io.Reader(strings.NewReader("hello")))
	fmt.Println(n, err)
	// Output: 5 <nil>
}
