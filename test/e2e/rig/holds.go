// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/residue"
)

// Holds is what a daemon holds of the machine.
type Holds struct {
	residue.Objects     // of the product in its lab
	Files           int // open ones
	Memory          int // resident, in KiB
}

func (h Holds) String() string {
	return fmt.Sprintf("%d programs, %d maps, %d links, %d files, %.1f MiB", h.Programs, h.Maps, h.Links, h.Files, float64(h.Memory)/1024)
}

// Holds looks at the daemon from outside.
func (d *Daemon) Holds(b *bed.Bed) (h Holds) {
	d.tb.Helper()
	var err error
	if h.Objects, err = residue.Count(Scope(b)); err != nil {
		d.tb.Fatal(err)
	}
	h.Files = len(OpenFiles(d.tb, d.PID))
	h.Memory = d.Memory()
	return h
}

// Memory is what of the daemon is in memory, in KiB.
func (d *Daemon) Memory() int {
	d.tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID))
	if err != nil {
		d.tb.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				d.tb.Fatal(err)
			}
			return n
		}
	}
	d.tb.Fatalf("no VmRSS in\n%s", status)
	return 0
}

// Time is what processor time the daemon has taken, in all of its threads.
func (d *Daemon) Time() time.Duration {
	d.tb.Helper()
	const scheduled = 2 // CPUCLOCK_SCHED, of include/linux/posix-timers.h
	var spent unix.Timespec
	if err := unix.ClockGettime(int32(^d.PID<<3|scheduled), &spent); err != nil {
		d.tb.Fatalf("read the daemon's processor time: %v", err)
	}
	return time.Duration(spent.Nano())
}

// Metrics is where a daemon serves metrics if it is not told otherwise.
var Metrics = netip.MustParseAddrPort("127.0.0.1:14789")

// Metric scrapes one metric without labels from a daemon at its default address.
func (d *Daemon) Metric(name string) (v float64) {
	d.tb.Helper()
	err := d.NS.Do(func() error {
		conn, err := net.DialTimeout("tcp", Metrics.String(), Patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(Patience)); err != nil {
			return err
		}
		if _, err := fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nHost: overlane\r\nConnection: close\r\n\r\n"); err != nil {
			return err
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var text bytes.Buffer
		if _, err := text.ReadFrom(res.Body); err != nil {
			return err
		}
		for line := range strings.Lines(text.String()) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				v, err = strconv.ParseFloat(strings.TrimSpace(rest), 64)
				return err
			}
		}
		return fmt.Errorf("no %s in\n%s", name, text.String())
	})
	if err != nil {
		d.tb.Fatalf("scrape %s: %v", name, err)
	}
	return v
}

// OpenFiles lists what a process has open.
func OpenFiles(tb testing.TB, pid int) []string {
	tb.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		tb.Fatal(err)
	}
	var files []string
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			files = append(files, to)
		}
	}
	slices.Sort(files)
	return files
}
