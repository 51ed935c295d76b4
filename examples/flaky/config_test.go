package main

import (
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/node"
)

var config = node.Config{
	Classes: []*limpet.Class{ShopClass},
	Namespaces: map[string]node.Namespace{
		"SHOP": {Class: "Shop", Defaults: []limpet.StubOption{limpet.RetryTimeout(5 * time.Second)}},
	},
}
