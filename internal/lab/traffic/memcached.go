// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// MemcachedPort is where the lab's memcached listens.
const MemcachedPort = 11211

const (
	memcachedThreads = 4
	objectSize       = 550 // bytes in a value
	objects          = 1024
	setEvery         = 11 // one request of so many stores
)

// StartMemcached starts a memcached and stores the objects that clients ask for.
func StartMemcached(ctx context.Context, from, at Endpoint, cfg ServerConfig) (*Process, error) {
	// As root it stays: with its user it would lose the signal that ends it when
	// the lab is gone.
	proc, err := cfg.program(at).serve(ctx, Listens, MemcachedPort, "memcached", "-u", "root", "-l", host(at), "-p", strconv.Itoa(MemcachedPort),
		"-U", "0", "-t", strconv.Itoa(memcachedThreads), "-m", "64")
	if err != nil {
		return nil, err
	}
	if err := fill(from, at); err != nil {
		return nil, errors.Join(err, proc.Stop(Ends))
	}
	return proc, nil
}

// fill stores every object once.
func fill(from, at Endpoint) (err error) {
	c, err := dial(from, netip.AddrPortFrom(at.Addr, MemcachedPort))
	if err != nil {
		return fmt.Errorf("fill memcached: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(c.fd)) }()
	d := &memcachedDialogue{}
	c.stop, c.dialogue = new(atomic.Bool), filling{d}
	until := monotonic() + uint64(time.Minute)
	for key := range objects {
		ok, err := c.exchange(key, until)
		if err == nil && !ok {
			err = errors.New("no answer")
		}
		if err != nil {
			return fmt.Errorf("fill memcached: %w", err)
		}
	}
	return nil
}

// MemcachedDialogue asks for stored objects, and stores one now and then, in
// memcached's text protocol.
func MemcachedDialogue(client int) Dialogue { return &memcachedDialogue{client: client} }

type memcachedDialogue struct {
	client        int
	request, want []byte
}

func (d *memcachedDialogue) ask(slot int) []byte {
	// Clients take turns with the objects in different orders, and do not all
	// store at the same time.
	n := slot + d.client
	key := (n*97 + d.client*31) % objects
	if n%setEvery == setEvery-1 {
		return d.set(key)
	}
	d.request = fmt.Appendf(d.request[:0], "get %s\r\n", keyName(key))
	d.want = fmt.Appendf(d.want[:0], "VALUE %s 0 %d\r\n", keyName(key), objectSize)
	d.want = append(appendObject(d.want, key), "\r\nEND\r\n"...)
	return d.request
}

func (d *memcachedDialogue) set(key int) []byte {
	d.request = fmt.Appendf(d.request[:0], "set %s 0 0 %d\r\n", keyName(key), objectSize)
	d.request = append(appendObject(d.request, key), "\r\n"...)
	d.want = append(d.want[:0], "STORED\r\n"...)
	return d.request
}

func (d *memcachedDialogue) answered(data []byte) (int, error) {
	n := min(len(data), len(d.want))
	if !bytes.Equal(data[:n], d.want[:n]) {
		return 0, fmt.Errorf("memcached answers %s, not %s", firstLine(data), firstLine(d.want))
	}
	if n < len(d.want) {
		return 0, nil
	}
	return n, nil
}

// filling stores the objects one by one.
type filling struct{ *memcachedDialogue }

func (f filling) ask(key int) []byte { return f.set(key) }

func keyName(key int) string { return fmt.Sprintf("overlane-%04d", key) }

// appendObject appends an object's value, which no other key has.
func appendObject(b []byte, key int) []byte {
	name := keyName(key)
	end := len(b) + objectSize
	for len(b) < end {
		b = append(b, name...)
	}
	return b[:end]
}

// FloodMemcached has memcaslap ask as fast as it is answered, 9 requests of 10
// for objects, and returns the requests per second.
func FloodMemcached(ctx context.Context, from, at Endpoint, f Flood) (float64, error) {
	out, err := program{ns: from.NS, cores: []int{f.Core}}.output(ctx, "memcaslap", "-s", host(at)+":"+strconv.Itoa(MemcachedPort), "-T", "1",
		"-c", strconv.Itoa(f.Clients), "-t", strconv.Itoa(wholeSeconds(f.Length))+"s", "-X", strconv.Itoa(objectSize), "-w", "1k")
	if err != nil {
		return 0, err
	}
	return parseMemcaslap(string(out))
}

var memcaslapTPS = regexp.MustCompile(`(?m)^Run time: [0-9.]+s Ops: [0-9]+ TPS: ([0-9]+) `)

func parseMemcaslap(out string) (float64, error) {
	m := memcaslapTPS.FindStringSubmatch(out)
	if m == nil {
		return 0, errors.New("read memcaslap's report: no TPS in it")
	}
	return strconv.ParseFloat(m[1], 64)
}
