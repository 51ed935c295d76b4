package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/limpet-dev/limpet"
	"github.com/limpet-dev/limpet/internal/sim"
	"github.com/limpet-dev/limpet/node"
)

// Bank keeps accounts; each bank is one object.
type Bank struct{ st *limpet.State }

func NewBank(st *limpet.State) (*Bank, error) {
	_, err := st.SQL().Exec(context.Background(), `
		CREATE TABLE IF NOT EXISTS accounts(
			name    TEXT PRIMARY KEY,
			balance INTEGER NOT NULL CHECK(balance >= 0));
		CREATE TABLE IF NOT EXISTS moves(
			id     INTEGER PRIMARY KEY,
			debit  TEXT NOT NULL REFERENCES accounts(name),
			credit TEXT NOT NULL REFERENCES accounts(name),
			amount INTEGER NOT NULL,
			at     TEXT NOT NULL)`)
	return &Bank{st}, err
}

// Move is all or nothing, whatever fails.
func (b *Bank) Move(ctx context.Context, from, to string, amount int) error {
	return b.st.Transaction(func() error {
		sql := b.st.SQL()
		for _, step := range []struct {
			account string
			change  int
		}{{from, -amount}, {to, amount}} {
			r, err := sql.Exec(ctx, "UPDATE accounts SET balance = balance + ? WHERE name = ?", step.change, step.account)
			if err != nil {
				return err
			}
			if r.RowsAffected == 0 {
				return fmt.Errorf("there is no account %q", step.account)
			}
		}
		_, err := sql.Exec(ctx, "INSERT INTO moves(debit, credit, amount, at) VALUES(?, ?, ?, ?)", from, to, amount, time.Now())
		return err
	})
}

type Account struct {
	Name    string
	Balance int
}

// Top are the richest accounts.
func (b *Bank) Top(ctx context.Context, limit int) (top []Account, err error) {
	for row, err := range b.st.SQL().Rows(ctx, "SELECT name, balance FROM accounts ORDER BY balance DESC LIMIT ?", limit) {
		if err != nil {
			return nil, err
		}
		var a Account
		if err := row.Scan(&a.Name, &a.Balance); err != nil {
			return nil, err
		}
		top = append(top, a)
	}
	return top, nil
}

// Total is what all accounts have together.
func (b *Bank) Total(ctx context.Context) (total int, err error) {
	row, err := b.st.SQL().One(ctx, "SELECT coalesce(sum(balance), 0) FROM accounts")
	if err != nil {
		return 0, err
	}
	return total, row.Scan(&total)
}

// Open makes an account.
func (b *Bank) Open(ctx context.Context, name string, balance int) error {
	tx, err := b.st.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "INSERT INTO accounts(name, balance) VALUES(?, ?)", name, balance); err != nil {
		return err
	}
	return tx.Commit()
}

func openBank() (*limpet.Stub[*Bank], func() error, error) {
	n, err := node.Open(context.Background(), node.Config{
		Dir: "data", Logger: slog.New(slog.DiscardHandler),
		Classes: []*limpet.Class{limpet.NewClass("Bank", NewBank)},
	}.OnDisk(sim.NewDisk(), 1<<20))
	if err != nil {
		return nil, nil, err
	}
	banks, err := limpet.NamespaceOf[*Bank](n, "BANK")
	if err != nil {
		return nil, n.Close, err
	}
	bank := banks.Named("north")
	ctx := context.Background()
	return bank, n.Close, errors.Join(
		limpet.Do2(ctx, bank, (*Bank).Open, "ann", 100),
		limpet.Do2(ctx, bank, (*Bank).Open, "bob", 20))
}

// A turn's statements are one commit, and Transaction takes back a part of it.
func Example_sql() {
	ctx := context.Background()
	bank, closeNode, err := openBank()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = closeNode() }()
	fmt.Println(limpet.Do3(ctx, bank, (*Bank).Move, "ann", "bob", 30))
	fmt.Println(limpet.Do3(ctx, bank, (*Bank).Move, "ann", "bob", 300))
	fmt.Println(limpet.Do3(ctx, bank, (*Bank).Move, "ann", "eve", 1))
	fmt.Println(limpet.Call1(ctx, bank, (*Bank).Top, 10))
	fmt.Println(limpet.Call(ctx, bank, (*Bank).Total))
	// Output:
	// <nil>
	// CHECK constraint failed: balance >= 0: SQLITE_CONSTRAINT
	// there is no account "eve"
	// [{ann 70} {bob 50}] <nil>
	// 120 <nil>
}

// Libraries that want database/sql get the same database.
func Example_databaseSQL() {
	ctx := context.Background()
	bank, closeNode, err := openBank()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = closeNode() }()
	fmt.Println(limpet.Do2(ctx, bank, (*Bank).Open, "carl", 5))
	fmt.Println(limpet.Do2(ctx, bank, (*Bank).Open, "ann", 5))
	fmt.Println(limpet.Call(ctx, bank, (*Bank).Total))
	// Output:
	// <nil>
	// UNIQUE constraint failed: accounts.name: SQLITE_CONSTRAINT
	// 125 <nil>
}

// TestSQLPageCode: the code of docs/SQL.md is that of the examples.
func TestSQLPageCode(t *testing.T) {
	page, err := os.ReadFile("../docs/SQL.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example_sql_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) < 4 {
		t.Errorf("%d blocks of code", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(string(code), string(b[1])) {
			t.Errorf("docs/SQL.md has code that is in no example:\n%s", b[1])
		}
	}
}
