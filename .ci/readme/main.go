// Readme does what README.md tells its readers to type, and fails when it does
// not do what README.md says.
//
//	readme run FILE    run the marked blocks from top to bottom
//	readme test FILE   run the marked test command
//
// A marker is an HTML comment on a line of its own, which readers do not see,
// before a fenced block:
//
//	<!-- run -->            its commands must succeed
//	<!-- run: exit 3 -->    its last command must exit with status 3
//	<!-- expect -->         what the run block before it prints
//	<!-- serve -->          its one command is started and goes on running; the next
//	                        block is begun once 127.0.0.1:8787 takes connections
//	<!-- serve: ADDR -->    as above, with another address
//	<!-- kill -->           no block: the running command is ended with SIGKILL
//	<!-- test-command -->   its one command runs the tests; exactly one in a file
//
// A running command is ended with SIGTERM when the next serve block comes, or at
// the end of the file; it must then exit with status 0.
//
// A run block is either a script for bash, whose output an expect block shows,
// or a dialogue: lines that start with "$ " are commands (a backslash at a
// line's end goes on with the next), and the lines after each are its output.
// Every command, and every script, starts anew in the folder of FILE. Output is
// standard output, or both outputs where the expected status is not 0. In
// expected output "..." stands for any text in a line, and alone on a line for
// any number of lines. Programs that `go install` makes are found by their name.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "readme:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: readme run|test FILE")
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	blocks, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	bin, err := os.MkdirTemp("", "readme-bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	p := &player{file: args[1], dir: filepath.Dir(args[1]), bin: bin, out: os.Stdout}
	switch args[0] {
	case "run":
		return p.play(ctx, blocks)
	case "test":
		return p.test(ctx, blocks)
	}
	return fmt.Errorf("%q is neither run nor test", args[0])
}
