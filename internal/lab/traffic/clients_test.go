// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake listens in a namespace of its own and serves each connection with a function.
func fake(t *testing.T, serve func(net.Conn)) (Endpoint, netip.AddrPort) {
	t.Helper()
	at := Endpoint{NS: loopback(t), Addr: netip.MustParseAddr("127.0.0.1")}
	var l net.Listener
	if err := at.NS.Do(func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return at, l.Addr().(*net.TCPAddr).AddrPort()
}

// line is a dialogue of one line each.
type line struct{}

func (line) ask(int) []byte { return []byte("what\n") }

func (line) answered(data []byte) (int, error) {
	const answer = "that\n"
	switch {
	case !strings.HasPrefix(answer, string(data[:min(len(data), len(answer))])):
		return 0, errors.New("another answer")
	case len(data) < len(answer):
		return 0, nil
	}
	return len(answer), nil
}

func lines(int) Dialogue { return line{} }

// each answers every line that is asked, by number.
func each(answer func(n int, w io.Writer)) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewScanner(c)
		for n := 0; r.Scan(); n++ {
			answer(n, c)
		}
	}
}

var quick = ClientsConfig{Count: 3, Every: time.Millisecond, Skip: 10 * time.Millisecond, Length: 40 * time.Millisecond}

func TestClientsAccountForEverySlot(t *testing.T) {
	at, to := fake(t, each(func(_ int, w io.Writer) {
		_, _ = io.WriteString(w, "th") // an answer may come in pieces
		_, _ = io.WriteString(w, "at\n")
	}))
	c, err := StartClients(at, to, lines, quick)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if l.Sent != 120 || l.Received != 120 || l.P50 <= 0 || l.Max < l.P99 {
		t.Errorf("3 clients, 40 slots each that count: %+v", l)
	}
}

// The slots that come after the one without an answer are not forgotten.
func TestClientsOfAServerThatFallsSilent(t *testing.T) {
	at, to := fake(t, each(func(n int, w io.Writer) {
		if n < 30 {
			_, _ = io.WriteString(w, "that\n")
		}
	}))
	c, err := StartClients(at, to, lines, quick)
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if l.Sent != 120 || l.Received != 60 || l.P99 < lateAnswers {
		t.Errorf("3 clients, 20 of 40 slots answered each: %+v", l)
	}
}

func TestClientsSayWhatIsWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"closed":  {func(net.Conn) {}, ""}, // or reset
		"garbage": {each(func(_ int, w io.Writer) { _, _ = io.WriteString(w, "this\n") }), "another answer"},
		"twice":   {each(func(_ int, w io.Writer) { _, _ = io.WriteString(w, "that\nthat\n") }), "5 bytes more"},
	} {
		at, to := fake(t, tc.serve)
		c, err := StartClients(at, to, lines, quick)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Wait(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	at, _ := fake(t, func(net.Conn) {})
	if _, err := StartClients(at, netip.MustParseAddrPort("127.0.0.1:9"), lines, quick); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("no server listens: %v", err)
	}
}

func TestClientsEndWhenTheyAreTold(t *testing.T) {
	asked := make(chan struct{}, quick.Count)
	at, to := fake(t, each(func(int, io.Writer) { asked <- struct{}{} })) // never an answer
	cfg := quick
	cfg.Length = time.Hour
	c, err := StartClients(at, to, lines, cfg)
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

// With the programs themselves: what a client asks is what they answer.
func TestServersAnswer(t *testing.T) {
	for name, talk := range map[string]func(int) Dialogue{"memcached": MemcachedDialogue, "nginx": WebDialogue} {
		t.Run(name, func(t *testing.T) {
			if err := Installed(name); err != nil {
				t.Skip(err)
			}
			at := Endpoint{NS: loopback(t), Addr: netip.MustParseAddr("127.0.0.1")}
			var s *Process
			var err error
			port := uint16(MemcachedPort)
			if name == "memcached" {
				s, err = StartMemcached(t.Context(), at, at, ServerConfig{Urgent: true})
			} else {
				port = WebPort
				s, err = StartNginx(t.Context(), at, ServerConfig{Dir: t.TempDir()})
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := StartClients(at, netip.AddrPortFrom(at.Addr, port), talk, quick)
			if err != nil {
				t.Fatal(errors.Join(err, s.Stop(Ends)))
			}
			l, err := c.Wait()
			if err := errors.Join(err, s.Stop(Ends)); err != nil {
				t.Fatal(err)
			}
			if l.Received != 120 {
				t.Errorf("%+v", l)
			}
		})
	}
}
