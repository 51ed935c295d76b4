// Command limpet talks to limpet nodes from the command line: see limpet help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of every verb.
const (
	exitAnswered = 1 // the node answered with an error
	exitUsage    = 2
	exitLost     = 3 // the node was not reached, or its answer was lost
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole command, without the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	f, ok := errors.AsType[*failure](err)
	if !ok { // cobra's own: an unknown verb or flag, a wrong number of words
		f = &failure{code: exitUsage, text: err.Error()}
	}
	if f.text != "" {
		_, _ = fmt.Fprintf(stderr, "limpet: %s\n", f.text) // nowhere else to tell it
	}
	return f.code
}

// failure ends the command with an exit code; an empty text was told already.
type failure struct {
	code int
	text string
}

func (f *failure) Error() string { return f.text }

func usage(format string, args ...any) error {
	return &failure{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "limpet",
		Short: "Durable objects on your own machines",
		Long: `limpet runs durable objects on your own machines. This command talks to a
running node; a node is a program of yours (see examples/cart).

Exit codes: 1 the node answered with an error, 2 usage, 3 the node was not
reached or its answer was lost (what is known of the delivery is printed).`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%v\nTry %s --help. Words that begin with - and are no flags go behind --", err, c.CommandPath())
	})
	root.PersistentFlags().VarP(&outputFlag{}, "output", "o", `"text" for people, "json" for programs: one JSON object on stdout, also for errors`)
	root.AddCommand(newCall(), newVersion())
	return root
}

// outputFlag is the value of -o.
type outputFlag struct{ json bool }

func (o *outputFlag) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

func (o *outputFlag) Set(s string) error {
	switch s {
	case "text":
		o.json = false
	case "json":
		o.json = true
	default:
		return fmt.Errorf("must be text or json")
	}
	return nil
}

func (o *outputFlag) Type() string { return "format" }

// wantsJSON tells whether -o json was given.
func wantsJSON(c *cobra.Command) bool {
	o, ok := c.Flag("output").Value.(*outputFlag)
	return ok && o.json
}
