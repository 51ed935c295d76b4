package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/bench/rivals/remote/adder"
	"github.com/limpet-dev/limpet/bench/rivals/remote/adder/adderconnect"
	"github.com/limpet-dev/limpet/client"
	"github.com/limpet-dev/limpet/node"
)

// item is the text of every call.
const item = "item-1"

func dialLimpet(ctx context.Context, addr string, callers int) (callFunc, func() error, error) {
	return dialObjects(ctx, addr, callers)
}

func dialOne(ctx context.Context, addr string, _ int) (callFunc, func() error, error) {
	return dialObjects(ctx, addr, 1)
}

// openNear has the node in this process.
func openNear(ctx context.Context, dir string, objects int) (callFunc, func() error, error) {
	n, err := node.Open(ctx, node.Config{Dir: dir, Classes: []*limpet.Class{counterClass}, IdleTimeout: time.Hour})
	if err != nil {
		return nil, nil, err
	}
	call, err := callObjects(n, objects)
	if err != nil {
		_ = n.Close() // the first error tells more
		return nil, nil, err
	}
	return call, n.Close, nil
}

// dialObjects spreads the callers over so many objects.
func dialObjects(ctx context.Context, addr string, objects int) (callFunc, func() error, error) {
	c, err := client.Dial(ctx, []string{addr})
	if err != nil {
		return nil, nil, err
	}
	call, err := callObjects(c, objects)
	if err != nil {
		_ = c.Close() // as above
		return nil, nil, err
	}
	return call, c.Close, nil
}

func callObjects(from limpet.Resolver, objects int) (callFunc, error) {
	counters, err := limpet.NamespaceOf[*counter](from, "COUNTER")
	if err != nil {
		return nil, err
	}
	stubs := make([]*limpet.Stub[*counter], objects)
	for i := range stubs {
		stubs[i] = counters.Named("counter-" + strconv.Itoa(i))
	}
	return func(ctx context.Context, caller int) error {
		n, err := limpet.Call2(ctx, stubs[caller%objects], (*counter).AddOne, item, 1)
		if err == nil && n < 1 {
			err = fmt.Errorf("a counter at %d", n)
		}
		return err
	}, nil
}

func dialGRPC(_ context.Context, addr string, _ int) (callFunc, func() error, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	c := adder.NewAdderClient(conn)
	return func(ctx context.Context, _ int) error {
		r, err := c.AddOne(ctx, &adder.AddOneRequest{Item: item, N: 1})
		return rivalAnswer(r, err)
	}, conn.Close, nil
}

func dialConnect(_ context.Context, addr string, _ int) (callFunc, func() error, error) {
	transport := &http.Transport{Protocols: &http.Protocols{}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	c := adderconnect.NewAdderClient(&http.Client{Transport: transport}, "http://"+addr)
	return func(ctx context.Context, _ int) error {
			r, err := c.AddOne(ctx, &adder.AddOneRequest{Item: item, N: 1})
			return rivalAnswer(r, err)
		}, func() error {
			transport.CloseIdleConnections()
			return nil
		}, nil
}

func rivalAnswer(r *adder.AddOneResponse, err error) error {
	if err == nil && r.GetQuantity() != int64(len(item)+1) {
		err = fmt.Errorf("the answer is %d", r.GetQuantity())
	}
	return err
}
