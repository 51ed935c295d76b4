package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// answerTimeout is how long a request may take in all.
const answerTimeout = 30 * time.Second

// maxAnswer bounds the body of an answer in bytes.
const maxAnswer = 64 << 10

// client is one keep-alive connection that sends a request, reads the answer and
// looks at status and length only. It is far cheaper than net/http's client, so
// that the servers are measured and not the load.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	body []byte
}

func dial(addr string) (*client, error) {
	conn, err := net.DialTimeout("tcp", addr, answerTimeout)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}, nil
}

func (c *client) Close() error { return c.conn.Close() }

// request is one to send: a GET, or a POST of JSON if there is a body.
type request struct {
	path string
	body []byte
}

// do sends r. An answer other than 200 is an error that tells its body.
func (c *client) do(r request) error {
	b := c.out[:0]
	if r.body == nil {
		b = append(b, "GET "...)
	} else {
		b = append(b, "POST "...)
	}
	b = append(b, r.path...)
	b = append(b, " HTTP/1.1\r\nHost: 127.0.0.1\r\n"...)
	if r.body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	b = append(b, r.body...)
	c.out = b
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := c.conn.Write(b); err != nil {
		return err
	}
	return c.answer(r)
}

func (c *client) answer(r request) error {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) || len(line) < 13 {
		return fmt.Errorf("no HTTP/1.1 answer: %.60q", line)
	}
	status := string(line[9:12])
	length, chunked := -1, false
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		name, v, _ := bytes.Cut(line, []byte(":"))
		v = bytes.TrimSpace(v)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(v)); err != nil {
				return err
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = bytes.EqualFold(v, []byte("chunked"))
		case bytes.EqualFold(name, []byte("Connection")) && bytes.EqualFold(v, []byte("close")):
			return fmt.Errorf("%s: the server closes the connection (status %s)", r.path, status)
		}
	}
	c.body = c.body[:0]
	switch {
	case chunked:
		err = c.chunks()
	case length >= 0:
		err = c.take(length)
	default:
		err = errors.New("an answer without a length")
	}
	if err == nil && status != "200" {
		err = fmt.Errorf("%s: status %s: %.300s", r.path, status, c.body)
	}
	return err
}

// take reads n more bytes of the body.
func (c *client) take(n int) error {
	at := len(c.body)
	if n < 0 || at+n > maxAnswer {
		return fmt.Errorf("an answer of more than %d bytes", maxAnswer)
	}
	c.body = append(c.body, make([]byte, n)...)
	_, err := io.ReadFull(c.in, c.body[at:])
	return err
}

func (c *client) chunks() error {
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
		if err != nil {
			return err
		}
		if err := c.take(int(n)); err != nil {
			return err
		}
		if _, err := c.in.Discard(2); err != nil || n == 0 {
			return err
		}
	}
}
