package main

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// block is one marker with its fenced block.
type block struct {
	kind     string // run, serve, kill, test-command; expect blocks are part of their run block
	line     int    // of the marker, from 1
	addr     string // of serve
	commands []command
}

// command is what bash is given at once: a line of a dialogue or a whole script.
type command struct {
	line   int
	text   string
	status int
	// want is the expected output; nil when nothing is said about it.
	want []string
}

// defaultAddr is where every server that limpet ships listens when nothing else
// is said.
const defaultAddr = "127.0.0.1:8787"

var marker = regexp.MustCompile(`^<!--\s*(run|serve|expect|kill|test-command)\b\s*:?\s*(.*?)\s*-->$`)

// parse returns the marked blocks of a Markdown text.
func parse(text string) ([]block, error) {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	var blocks []block
	for i := 0; i < len(lines); i++ {
		if fence := fenceOf(lines[i]); fence != "" { // an unmarked block, whatever stands in it
			_, next, err := fenced(lines, i, fence)
			if err != nil {
				return nil, err
			}
			i = next - 1
			continue
		}
		m := marker.FindStringSubmatch(strings.TrimSpace(lines[i]))
		if m == nil {
			continue
		}
		kind, arg, at := m[1], m[2], i+1
		if kind == "kill" {
			if arg != "" {
				return nil, fmt.Errorf("line %d: kill takes no argument", at)
			}
			blocks = append(blocks, block{kind: kind, line: at})
			continue
		}
		j := i + 1
		for j < len(lines) && strings.TrimSpace(lines[j]) == "" {
			j++
		}
		if j == len(lines) || fenceOf(lines[j]) == "" {
			return nil, fmt.Errorf("line %d: no fenced block follows the marker", at)
		}
		body, next, err := fenced(lines, j, fenceOf(lines[j]))
		if err != nil {
			return nil, err
		}
		i = next - 1
		if kind == "expect" {
			if err := addExpected(blocks, body); err != nil {
				return nil, fmt.Errorf("line %d: %w", at, err)
			}
			continue
		}
		b, err := newBlock(kind, arg, body, at, j+2)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", at, err)
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// fenceOf returns the fence that a line opens, or "".
func fenceOf(line string) string {
	s := strings.TrimLeft(line, " ")
	for _, c := range []string{"`", "~"} {
		if n := len(s) - len(strings.TrimLeft(s, c)); n >= 3 {
			return strings.Repeat(c, n)
		}
	}
	return ""
}

// fenced returns the lines of the block whose fence stands at i, and the index
// after its closing fence.
func fenced(lines []string, i int, fence string) (body []string, next int, err error) {
	for j := i + 1; j < len(lines); j++ {
		if s := strings.TrimSpace(lines[j]); strings.HasPrefix(s, fence) && strings.Trim(s, fence[:1]) == "" {
			return lines[i+1 : j], j + 1, nil
		}
	}
	return nil, 0, fmt.Errorf("line %d: the fenced block is never closed", i+1)
}

// newBlock makes a block from its marker and body; the body starts at line first.
func newBlock(kind, arg string, body []string, at, first int) (block, error) {
	b := block{kind: kind, line: at}
	status := 0
	switch {
	case kind == "serve":
		b.addr = cmp.Or(arg, defaultAddr)
	case kind == "run" && arg != "":
		n, ok := strings.CutPrefix(arg, "exit ")
		var err error
		if status, err = strconv.Atoi(n); !ok || err != nil || status < 0 || status > 255 {
			return b, fmt.Errorf("%q is not: exit STATUS", arg)
		}
	case arg != "":
		return b, fmt.Errorf("%s takes no argument", kind)
	}
	b.commands = commands(body, first)
	if len(b.commands) == 0 {
		return b, fmt.Errorf("the block has no command")
	}
	if kind != "run" && len(b.commands) != 1 {
		return b, fmt.Errorf("a %s block has one command, this has %d", kind, len(b.commands))
	}
	b.commands[len(b.commands)-1].status = status
	return b, nil
}

// commands returns the commands of a dialogue, or of a script, which is one.
func commands(body []string, first int) []command {
	dialogue := false
	for _, l := range body {
		dialogue = dialogue || strings.HasPrefix(l, "$ ")
	}
	if !dialogue {
		text := strings.Join(body, "\n")
		if strings.TrimSpace(text) == "" {
			return nil
		}
		return []command{{line: first, text: text}}
	}
	var all []command
	for i := 0; i < len(body); i++ {
		text, ok := strings.CutPrefix(body[i], "$ ")
		if !ok {
			if len(all) > 0 {
				c := &all[len(all)-1]
				c.want = append(c.want, body[i])
			}
			continue
		}
		c := command{line: first + i, text: text, want: []string{}}
		for strings.HasSuffix(body[i], `\`) && i+1 < len(body) {
			i++
			c.text += "\n" + body[i]
		}
		all = append(all, c)
	}
	return all
}

// addExpected gives the last block, a script, its expected output.
func addExpected(blocks []block, body []string) error {
	if len(blocks) == 0 || blocks[len(blocks)-1].kind != "run" {
		return fmt.Errorf("no run block stands before what is expected")
	}
	c := blocks[len(blocks)-1].commands
	if len(c) != 1 || c[0].want != nil {
		return fmt.Errorf("the run block before shows its output already")
	}
	c[0].want = append([]string{}, body...)
	return nil
}

// matches tells whether got is what want says. Blanks at the ends of lines, and
// empty lines at the end, do not count.
func matches(want []string, got string) bool {
	var re strings.Builder
	re.WriteString(`^`)
	for _, l := range strings.Split(strings.TrimRight(strings.Join(want, "\n"), " \t\n"), "\n") {
		l = strings.TrimRight(l, " \t")
		if strings.TrimSpace(l) == "..." {
			re.WriteString(`(?:.*\n)*`)
			continue
		}
		re.WriteString(strings.ReplaceAll(regexp.QuoteMeta(l), `\.\.\.`, `.*`) + `[ \t]*\n`)
	}
	re.WriteString(`$`)
	return regexp.MustCompile(re.String()).MatchString(strings.TrimRight(got, " \t\n") + "\n")
}
