// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/overlane/overlane/internal/control"
)

// Server answers scrapes.
type Server struct{ l net.Listener }

// Listen takes the address, so that a port that is in use is an error at start.
func Listen(addr string) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w (choose another address with metrics:, or metrics: off)", err)
	}
	return &Server{l}, nil
}

// Close gives the address back if Serve was never called.
func (s *Server) Close() error { return s.l.Close() }

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context, status func() control.Status) error {
	reg := prometheus.NewPedanticRegistry()
	// What the daemon itself takes, its memory, descriptors and time, has the names that
	// everybody knows.
	for _, c := range []prometheus.Collector{NewCollector(status), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := reg.Register(c); err != nil {
			return errors.Join(err, s.l.Close())
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(s.l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
