package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/limpet-dev/limpet"
)

// Album keeps pictures. A second run keeps the same picture, so that it is marked.
type Album struct{ st *limpet.State }

func (a *Album) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	picture, err := io.ReadAll(r.Body)
	if err == nil {
		err = a.st.KV().Put(r.URL.Path, picture)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// AlbumClass marks its fetch.
var AlbumClass = limpet.NewClass("Album",
	func(st *limpet.State) (*Album, error) { return &Album{st}, nil },
	limpet.Retryable((*Album).ServeHTTP))

// upload sends a picture that comes from somewhere and can be read only once.
func upload(ctx context.Context, albums limpet.Namespace[*Album], path string, picture io.Reader) error {
	album := albums.Named("summer", limpet.BufferBody(1<<20)) // keeps up to 1 MiB for retries
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://album"+path, picture)
	if err != nil {
		return err
	}
	resp, err := album.Fetch(req)
	if err != nil {
		return fmt.Errorf("upload %s: %w", path, err)
	}
	return resp.Body.Close()
}
