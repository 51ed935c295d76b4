package main

import (
	"context"

	"github.com/limpet-dev/limpet"
)

// Shop sells things and knows what it has sold to whom.
type Shop struct{ st *limpet.State }

// SetPrice may run again: a second run sets the same price.
func (s *Shop) SetPrice(_ context.Context, item string, cents int) error {
	return s.st.KV().Put("price of "+item, cents)
}

// Sell must not run again: a second run sells another one.
func (s *Shop) Sell(_ context.Context, order string) (number int, err error) {
	if _, err := s.st.KV().Get("sold", &number); err != nil {
		return 0, err
	}
	number++
	if err := s.st.KV().Put("sold", number); err != nil {
		return 0, err
	}
	return number, s.st.KV().Put("number of "+order, number)
}

// ShopClass marks SetPrice, and nothing else.
var ShopClass = limpet.NewClass("Shop",
	func(st *limpet.State) (*Shop, error) { return &Shop{st}, nil },
	limpet.Retryable((*Shop).SetPrice))

// NumberOf is the number under which an order was sold, 0 if it was not.
func (s *Shop) NumberOf(_ context.Context, order string) (number int, err error) {
	_, err = s.st.KV().Get("number of "+order, &number)
	return number, err
}

// Sold is how many were sold.
func (s *Shop) Sold(context.Context) (n int, err error) {
	_, err = s.st.KV().Get("sold", &n)
	return n, err
}
