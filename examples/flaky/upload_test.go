package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/limpettest"
)

// TestUpload loses the answers to two uploads: one that is kept for a retry, and one
// that is too large for it.
func TestUpload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// SPEC G1
		n := limpettest.Start(t, AlbumClass)
		net := n.Network()
		albums, err := limpet.NamespaceOf[*Album](n, "ALBUM")
		if err != nil {
			t.Fatal(err)
		}
		net.Inject(limpettest.DropReply(limpettest.Times(1)))
		if err := upload(t.Context(), albums, "/beach", io.MultiReader(strings.NewReader("sand"))); err != nil || net.Attempts() != 2 {
			t.Errorf("%v after %d attempts", err, net.Attempts())
		}
		net.Inject(limpettest.DropReply(limpettest.Times(1)))
		err = upload(t.Context(), albums, "/sea", io.MultiReader(strings.NewReader(strings.Repeat("water", 1<<20))))
		if !errors.Is(err, limpet.CodeDisconnected) || net.Attempts() != 3 || !strings.Contains(err.Error(), "no further attempt: the request body is larger than the 1048576 bytes of BufferBody") {
			t.Errorf("%v after %d attempts", err, net.Attempts())
		}
	})
}
