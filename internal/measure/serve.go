// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/overlane/overlane/internal/control"
)

// Any local user may connect, as often as it likes, and the process that answers is the one that has to
// notice policies. These bound what that takes of it, whatever comes.
const (
	maxConns    = 16                    // connections at once; so many more wait in the kernel
	acceptPause = 50 * time.Millisecond // from one connection to the next, once maxConns came in a row
	maxHeader   = 4 << 10
	readTime    = 2 * time.Second // for a request
	writeTime   = 5 * time.Second // for an answer, from the request on
	fresh       = time.Second     // so long an answer serves all that ask
	statusTime  = 2 * time.Second // for the daemon to say how it is
)

// retryAfter is the pause between attempts to take an address that another program has.
const retryAfter = 10 * time.Second

// Server answers scrapes, at one address at a time.
type Server struct {
	status Status
	log    *slog.Logger
	retry  time.Duration
	end    func() // of what answers at addr: returns when it does no more

	mu   sync.Mutex
	addr string // empty: nowhere
	err  error  // why nothing listens
}

// Status asks the daemon how it is.
type Status func(context.Context) (control.Status, error)

// NewServer returns a server for an address, which may be empty. Nothing listens before Start.
func NewServer(addr string, status Status, log *slog.Logger) *Server {
	return &Server{addr: addr, status: status, log: log, retry: retryAfter, end: func() {}}
}

// State is what the daemon's status says of it.
func (s *Server) State() control.Metrics {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := control.Metrics{Address: s.addr}
	if s.err != nil {
		m.Reason = s.err.Error()
	}
	return m
}

// Start answers until ctx ends. An address that another program has is tried again: the daemon's work does not
// depend on it. The first attempt is over when Start returns.
func (s *Server) Start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	l, err := listen(ctx, s.addr)
	s.note(err)
	s.answer(ctx, cancel, s.addr, l, err)
}

// Move answers at another address from now on, nowhere if it is empty. The new one is taken first and the old one left
// last, with do in between: an error is either's, and leaves all as it was. It is called by one goroutine, after Start.
func (s *Server) Move(ctx context.Context, addr string, do func() error) error {
	if addr == s.State().Address {
		return do()
	}
	ctx, cancel := context.WithCancel(ctx)
	l, err := listen(ctx, addr)
	if err == nil {
		err = do()
	}
	if err != nil {
		cancel()
		return errors.Join(err, l.close())
	}
	s.end()
	s.mu.Lock()
	s.addr, s.err = addr, nil
	s.mu.Unlock()
	s.answer(ctx, cancel, addr, l, nil)
	return nil
}

// answer serves what came of listen, in the background.
func (s *Server) answer(ctx context.Context, cancel func(), addr string, l *listener, err error) {
	var ended sync.WaitGroup
	s.end = func() { cancel(); ended.Wait() }
	if addr == "" {
		return
	}
	ended.Go(func() {
		for {
			if err == nil {
				s.note(s.serve(ctx, l))
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.retry):
				l, err = listen(ctx, addr)
				s.note(err)
			}
		}
	})
}

// note keeps why nothing listens, and says it once.
func (s *Server) note(err error) {
	s.mu.Lock()
	was := s.err
	s.err = err
	s.mu.Unlock()
	switch {
	case err != nil && was == nil:
		s.log.Warn("metrics are not served", "address", s.addr, "reason", err, "again_in", s.retry)
	case err == nil && was != nil:
		s.log.Info("metrics are served", "address", s.addr)
	}
}

// listen takes an address, if there is one.
func listen(ctx context.Context, addr string) (*listener, error) {
	if addr == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w (choose another address with metrics:, or metrics: off)", err)
	}
	return newListener(ctx, l.(*net.TCPListener))
}

func (s *Server) serve(ctx context.Context, l net.Listener) error {
	page, err := newPage(s.status)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", page)
	srv := &http.Server{
		Handler: mux, ReadTimeout: readTime, WriteTimeout: writeTime, MaxHeaderBytes: maxHeader,
		ErrorLog: stdlog.New(io.Discard, "", 0), // what clients do wrong is theirs to log
	}
	srv.SetKeepAlivesEnabled(false) // a scrape comes every few seconds at most
	// Not srv.Close alone: before Serve has begun, it would not close the listener.
	stop := context.AfterFunc(ctx, func() { _ = errors.Join(srv.Close(), l.Close()) })
	defer stop()
	if err := srv.Serve(l); ctx.Err() == nil {
		return errors.Join(fmt.Errorf("serve metrics: %w", err), srv.Close())
	}
	return nil
}

// page is what a scrape gets. It is made anew once a second at most: what is asked of the daemon, which
// answers between two decisions, does not grow with the number of scrapes.
type page struct {
	reg   *prometheus.Registry
	turn  chan struct{} // the request that has it may look, or make it anew
	made  time.Time
	text  []byte
	err   error
	clock func() time.Time
}

func newPage(status Status) (*page, error) {
	p := &page{reg: prometheus.NewPedanticRegistry(), turn: make(chan struct{}, 1), clock: time.Now}
	// What the daemon itself takes, its memory, descriptors and time, has the names that
	// are usual.
	for _, c := range []prometheus.Collector{&Collector{status}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := p.reg.Register(c); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := p.get(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_, _ = w.Write(text) // the client may be gone
}

func (p *page) get(ctx context.Context) ([]byte, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.made.IsZero() || p.clock().Sub(p.made) >= fresh {
		p.text, p.err = p.render()
		p.made = p.clock()
	}
	return p.text, p.err
}

func (p *page) render() ([]byte, error) {
	families, err := p.reg.Gather()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
