package host

import (
	"context"
	"errors"

	"github.com/limpet-dev/limpet"
)

// This file is SQL as an object sees it of its incarnation.

// Query runs statements in the event's turn.
func (inc *incarnation) Query(ctx context.Context, query string, args []limpet.SQLArg) (limpet.SQLRows, error) {
	if a := awaitingOf(ctx); a != nil && a.ev.inc == inc {
		return nil, inc.noTurnInAwait()
	}
	d, err := inc.enter()
	if err != nil {
		return nil, err
	}
	defer inc.storage.Unlock()
	rows, wrote, err := d.Query(ctx, query, args)
	inc.confirmed = inc.confirmed || wrote
	if err != nil {
		return nil, inc.sqlFailure(ctx, err)
	}
	return &sqlRows{inc: inc, ctx: ctx, rows: rows}, nil
}

// sqlFailure is how a statement's failure is told.
func (inc *incarnation) sqlFailure(ctx context.Context, err error) error {
	if inc.ended.Load() {
		return inc.cause
	}
	if _, coded := errors.AsType[*limpet.Error](err); !coded && ctx.Err() != nil {
		return canceled(ctx, inc.id, limpet.DeliveryNone)
	}
	return err
}

// DatabaseSize is that of the turn.
func (inc *incarnation) DatabaseSize() (int64, error) {
	d, err := inc.enter()
	if err != nil {
		return 0, err
	}
	defer inc.storage.Unlock()
	return d.DatabaseSize()
}

// sqlRows locks the object's data for each row.
type sqlRows struct {
	inc  *incarnation
	ctx  context.Context // of the Query, which its rows belong to
	rows limpet.SQLRows
}

func (r *sqlRows) Columns() []string { return r.rows.Columns() }

func (r *sqlRows) DeclaredType(i int) string {
	r.inc.storage.Lock()
	defer r.inc.storage.Unlock()
	return r.rows.DeclaredType(i)
}

func (r *sqlRows) Next(row []limpet.SQLValue) (bool, error) {
	if _, err := r.inc.enter(); err != nil {
		return false, err
	}
	defer r.inc.storage.Unlock()
	ok, err := r.rows.Next(row)
	if err != nil {
		err = r.inc.sqlFailure(r.ctx, err)
	}
	return ok, err
}

func (r *sqlRows) Result() limpet.SQLResult {
	r.inc.storage.Lock()
	defer r.inc.storage.Unlock()
	return r.rows.Result()
}

// Close needs no turn: rows that are open are of the turn that is held.
func (r *sqlRows) Close() error {
	r.inc.storage.Lock()
	defer r.inc.storage.Unlock()
	return r.rows.Close()
}

// transaction is one that BeginTransaction began and nobody has ended.
type transaction struct {
	ctx   context.Context // its end takes the transaction back
	depth int
}

// BeginTransaction opens a transaction that a function ends.
func (inc *incarnation) BeginTransaction(ctx context.Context) (end func(keep bool) error, err error) {
	d, err := inc.enter()
	if err != nil {
		return nil, err
	}
	defer inc.storage.Unlock()
	depth, err := d.BeginTransaction()
	if err != nil {
		return nil, err
	}
	inc.txDepth++
	tx := &transaction{ctx, depth}
	inc.txBegun = append(inc.txBegun, tx)
	return func(keep bool) error { return inc.endTransaction(tx, keep) }, nil
}

func (inc *incarnation) endTransaction(tx *transaction, keep bool) error {
	d, err := inc.enter()
	if err != nil {
		return err
	}
	defer inc.storage.Unlock()
	for i, t := range inc.txBegun {
		if t != tx {
			continue
		}
		inc.forgetBegun(i)
		inc.txDepth = tx.depth - 1
		return d.EndTransaction(tx.depth, keep)
	}
	if !keep {
		return nil // rolled back with the one around it
	}
	return inc.newError(limpet.CodeInvalidArgument, limpet.DeliveryNone,
		"the transaction was rolled back with the one around it, which ended first: end the inner one first")
}

// endExpired takes back those whose contexts have ended, unless a State.Transaction
// runs inside. database/sql does so too, but on a goroutine that may come late.
// inc.storage is held.
func (inc *incarnation) endExpired() {
	for i, tx := range inc.txBegun {
		if tx.ctx.Err() == nil || len(inc.txBegun)-i != inc.txDepth-tx.depth+1 {
			continue
		}
		inc.forgetBegun(i)
		inc.txDepth = tx.depth - 1
		if err := inc.data.EndTransaction(tx.depth, false); err != nil {
			inc.host.log.Error("take back a transaction whose context has ended", "object", inc.label(), "error", err)
		}
		return
	}
}

// forgetBegun drops transactions that have ended, from the i-th on.
func (inc *incarnation) forgetBegun(i int) {
	clear(inc.txBegun[i:])
	inc.txBegun = inc.txBegun[:i]
}

// AtEnd keeps fn for the end of the incarnation.
func (inc *incarnation) AtEnd(fn func()) {
	inc.mu.Lock()
	if !inc.gate.ended {
		inc.atEnd = append(inc.atEnd, fn)
		inc.mu.Unlock()
		return
	}
	inc.mu.Unlock()
	fn()
}
