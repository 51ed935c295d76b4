// Command cart serves shopping carts: one durable object for each, in the
// namespace CART. Try the lines that it prints.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/node"
)

func main() {
	os.Exit(node.Main(os.Args[1:], node.Config{Classes: []*limpet.Class{CartClass}}, try))
}

// try tells what to do with the server at url.
func try(out io.Writer, url string) {
	_, _ = fmt.Fprintf(out, `try  curl --json '["item-1", 3]' %s/v1/objects/CART/user-123/call/setQuantity
and  go run ./cmd/limpet call --server %s CART/user-123 addOne item-1
`, url, url)
}
