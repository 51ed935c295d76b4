package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/node"
)

// Cart is an object: one of them for each user, say.
type Cart struct{ st *limpet.State }

// SetQuantity is idempotent, and marked.
func (c *Cart) SetQuantity(_ context.Context, item string, n int) error {
	if n < 0 {
		return &limpet.Error{Code: "NegativeQuantity", Message: fmt.Sprintf("%d of %s", n, item)}
	}
	return c.st.KV().Put(item, n)
}

// AddOne is not.
func (c *Cart) AddOne(_ context.Context, item string) (int, error) {
	var n int
	if _, err := c.st.KV().Get(item, &n); err != nil {
		return 0, err
	}
	n++
	return n, c.st.KV().Put(item, n)
}

// CopyTo sets the quantities of another cart: calls out of an object. Other
// events of this cart may run at each of them, so it reads first and changes
// nothing of its own by what it read.
func (c *Cart) CopyTo(ctx context.Context, other string) error {
	quantities := map[string]int{}
	for e, err := range c.st.KV().List(limpet.ListOptions{}) {
		if err != nil {
			return err
		}
		var n int
		if err := e.Decode(&n); err != nil {
			return err
		}
		quantities[e.Key] = n
	}
	carts, err := limpet.NamespaceOf[*Cart](c.st, "CART")
	if err != nil {
		return err
	}
	for item, n := range quantities {
		if err := limpet.Do2(ctx, carts.Named(other), (*Cart).SetQuantity, item, n); err != nil {
			return err
		}
	}
	return nil
}

// ServeHTTP answers fetches.
func (c *Cart) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "the cart at %s", r.URL.Path)
}

var cartClass = limpet.NewClass("Cart",
	func(st *limpet.State) (*Cart, error) { return &Cart{st}, nil },
	limpet.Retryable((*Cart).SetQuantity))

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "limpet")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	n, err := node.Open(ctx, node.Config{Dir: dir, Classes: []*limpet.Class{cartClass}})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Close()
	carts, err := limpet.NamespaceOf[*Cart](n, "CART")
	if err != nil {
		log.Fatal(err)
	}
	cart := carts.Named("user-123", limpet.MaxRetries(1), limpet.RetryTimeout(2*time.Second))

	if err := limpet.Do2(ctx, cart, (*Cart).SetQuantity, "item-1", 3); err != nil {
		log.Fatal(err)
	}
	qty, err := limpet.Call1(ctx, cart, (*Cart).AddOne, "item-1")
	fmt.Println(qty, err)

	// By name, as code that does not know the type calls.
	v, err := cart.Invoke(ctx, "addOne", "item-1")
	fmt.Println(v, err)

	// An error says what it is, and whether the method may have run.
	err = limpet.Do2(ctx, cart, (*Cart).SetQuantity, "item-1", -1)
	fmt.Println(err, errors.Is(err, limpet.Code("NegativeQuantity")), limpet.DeliveryOf(err))

	// One object calls another.
	fmt.Println(limpet.Do1(ctx, cart, (*Cart).CopyTo, "user-456"))
	qty, err = limpet.Call1(ctx, carts.Named("user-456"), (*Cart).AddOne, "item-1")
	fmt.Println(qty, err)

	// A fetch, with the types of net/http.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://cart.example/items", nil)
	if err != nil {
		log.Fatal(err)
	}
	resp, err := cart.Fetch(req)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(body), err)

	// Output:
	// 4 <nil>
	// 5 <nil>
	// -1 of item-1 true received
	// <nil>
	// 6 <nil>
	// 200 the cart at /items <nil>
}
