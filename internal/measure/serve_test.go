// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
)

func quiet(context.Context) (control.Status, error) { return control.Status{}, nil }

// However many ask, the daemon is asked once a second.
func TestScrapesShareAnAnswer(t *testing.T) {
	asked, now := 0, time.Unix(1e9, 0)
	p := pageOf(t, func(context.Context) (control.Status, error) { asked++; return control.Status{}, nil })
	p.clock = func() time.Time { return now }
	for range 100 {
		scrape(t, p)
	}
	if asked != 1 {
		t.Errorf("asked %d times for 100 scrapes at once", asked)
	}
	now = now.Add(fresh)
	if scrape(t, p); asked != 2 {
		t.Errorf("asked %d times after a second", asked)
	}
}

// Connections that say nothing, and more than there is room for: some are accepted, none stays, and one
// that asks in the end is answered.
func TestAFloodOfConnectionsIsBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer("", quiet, slog.New(slog.DiscardHandler))
	var open, most atomic.Int64
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx, counting{l, &open, &most}) }()

	dialer := net.Dialer{Timeout: time.Second / 2}
	var wg sync.WaitGroup
	for range 4 * maxConns {
		wg.Go(func() {
			c, err := dialer.Dial("tcp", l.Addr().String())
			if err != nil {
				return // beyond the queue
			}
			_ = c.SetDeadline(time.Now().Add(2 * readTime))
			_, _ = io.ReadAll(c) // until the server has had enough
			c.Close()
		})
	}
	wg.Wait()
	if n := most.Load(); n > maxConns || n < maxConns/2 {
		t.Errorf("%d connections were open at once, of %d", n, maxConns)
	}
	res, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("status %d, %v", res.StatusCode, err)
	}
	res.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("at the end: %v", err)
	}
}

// counting counts the connections that are open.
type counting struct {
	*listener
	open, most *atomic.Int64
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.listener.Accept()
	if err == nil {
		n := l.open.Add(1)
		l.most.Store(max(n, l.most.Load())) // one goroutine accepts
		c = counted{c, sync.OnceFunc(func() { l.open.Add(-1) })}
	}
	return c, err
}

// counted counts less before there is room for another one.
type counted struct {
	net.Conn
	gone func()
}

func (c counted) Close() error {
	c.gone()
	return c.Conn.Close()
}

func TestAcceptingHasAPace(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.next = time.Now().Add(time.Hour) // as after many
	go cancel()
	if _, err := l.Accept(); err == nil {
		t.Error("a connection was accepted at once")
	}
}

// Another program has the port: a warning, and it is tried again.
func TestAnAddressInUseIsTriedAgain(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	addr := other.Addr().String()
	var log buffer
	s := NewServer(addr, quiet, slog.New(slog.NewTextHandler(&log, nil)))
	s.retry = time.Millisecond
	s.Start(t.Context())
	if m := s.State(); m.Address != addr || !strings.Contains(m.Reason, "metrics:") {
		t.Errorf("state %+v, want a reason that names the setting", m)
	}
	other.Close()
	for deadline := time.Now().Add(20 * time.Second); s.State().Reason != ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not listen: %+v", s.State())
		}
	}
	res, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || strings.Count(text, "level=INFO") != 1 || strings.Count(text, "\n") != 2 {
		t.Errorf("the log has\n%s", text)
	}
}

// A new address is taken before the old one is left, and what goes wrong leaves all as it was.
func TestMoveToAnotherAddress(t *testing.T) {
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken, first, second := other.Addr().String(), free(), free()
	s := NewServer(first, quiet, slog.New(slog.DiscardHandler))
	s.Start(t.Context())
	answersOnly := func(at string) {
		t.Helper()
		if m := s.State(); m != (control.Metrics{Address: at}) {
			t.Errorf("state %+v, want %q", m, at)
		}
		for _, addr := range []string{first, second} {
			res, err := http.Get("http://" + addr + "/metrics")
			if (err == nil) != (addr == at) {
				t.Errorf("%s, while metrics are at %q: %v", addr, at, err)
			}
			if err == nil {
				res.Body.Close()
			}
		}
	}
	answersOnly(first)
	failure := errors.New("test")
	if err := s.Move(t.Context(), taken, func() error { t.Error("done without the address"); return nil }); err == nil {
		t.Error("an address that is taken was no error")
	}
	answersOnly(first)
	for _, addr := range []string{first, second, ""} {
		if err := s.Move(t.Context(), addr, func() error { return failure }); !errors.Is(err, failure) {
			t.Errorf("to %q: %v", addr, err)
		}
		answersOnly(first)
	}
	for _, addr := range []string{first, second, "", second, first} {
		before := s.State().Address
		err := s.Move(t.Context(), addr, func() error {
			if c, err := net.Dial("tcp", before); before != "" && err != nil {
				t.Errorf("%s was left before all was done: %v", before, err)
			} else if err == nil {
				c.Close()
			}
			return nil
		})
		if err != nil {
			t.Errorf("to %q: %v", addr, err)
		}
		answersOnly(addr)
	}
}

// buffer may be written to and read at once.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprint(b.b.String())
}
