// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// WebPort is where the lab's nginx listens.
const WebPort = 8080

const pageName = "page.html"

// page is the small file that it serves.
var page = []byte("<!doctype html><title>overlane lab</title><p>" + strings.Repeat("a page of a small size. ", 24) + "\n")

// All paths that are compiled in are replaced: nginx gives those that it finds,
// which may be the machine's own, to its user.
const nginxConf = `daemon off;
user root; # the lab's directory is root's
worker_processes %[2]d;
pid %[1]s/nginx.pid;
lock_file %[1]s/nginx.lock;
error_log stderr error;
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	scgi_temp_path %[1]s/scgi;
	uwsgi_temp_path %[1]s/uwsgi;
	keepalive_requests 1000000000;
	keepalive_timeout 1h;
	server {
		listen %[3]s;
		root %[1]s;
	}
}
`

// StartNginx starts an nginx that serves a small file.
func StartNginx(ctx context.Context, at Endpoint, cfg ServerConfig) (*Process, error) {
	conf := filepath.Join(cfg.Dir, "nginx.conf")
	text := fmt.Sprintf(nginxConf, cfg.Dir, max(len(cfg.Cores), 1), netip.AddrPortFrom(at.Addr, WebPort))
	err := errors.Join(os.WriteFile(conf, []byte(text), 0o600), os.WriteFile(filepath.Join(cfg.Dir, pageName), page, 0o600))
	if err != nil {
		return nil, fmt.Errorf("start nginx: %w", err)
	}
	// Its workers go on when it is killed. In a PID namespace they do not: it is
	// that one's init.
	p := cfg.program(at)
	p.clone = unix.CLONE_NEWPID
	return p.serve(ctx, Listens, WebPort, "nginx", "-e", "stderr", "-p", cfg.Dir, "-c", conf)
}

// WebDialogue asks for the file over a connection that stays open.
func WebDialogue(int) Dialogue { return webDialogue{} }

type webDialogue struct{}

var webRequest = []byte("GET /" + pageName + " HTTP/1.1\r\nHost: lab\r\n\r\n")

func (webDialogue) ask(int) []byte { return webRequest }

func (webDialogue) answered(data []byte) (int, error) {
	const ok = "HTTP/1.1 200 "
	if n := min(len(data), len(ok)); string(data[:n]) != ok[:n] {
		return 0, fmt.Errorf("nginx answers %s", firstLine(data))
	}
	head, body, found := bytes.Cut(data, []byte("\r\n\r\n"))
	if !found {
		return 0, nil
	}
	length, err := contentLength(head)
	if err != nil {
		return 0, err
	}
	if length != len(page) {
		return 0, fmt.Errorf("nginx sends %d bytes for a page of %d", length, len(page))
	}
	if n := min(len(body), length); !bytes.Equal(body[:n], page[:n]) {
		return 0, fmt.Errorf("nginx sends another page: %s", firstLine(body))
	}
	if len(body) < length {
		return 0, nil
	}
	return len(head) + len("\r\n\r\n") + length, nil
}

func contentLength(head []byte) (int, error) {
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			return strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	return 0, errors.New("nginx answers without a Content-Length")
}

// FloodWeb has wrk ask as fast as it is answered, and returns the requests per
// second.
func FloodWeb(ctx context.Context, from, at Endpoint, f Flood) (float64, error) {
	url := fmt.Sprintf("http://%s/%s", netip.AddrPortFrom(at.Addr, WebPort), pageName)
	out, err := program{ns: from.NS, cores: []int{f.Core}}.output(ctx, "wrk", "-t", "1", "-c", strconv.Itoa(f.Clients), "-d", strconv.Itoa(wholeSeconds(f.Length))+"s", url)
	if err != nil {
		return 0, err
	}
	return parseWrk(string(out))
}

var (
	wrkRate   = regexp.MustCompile(`(?m)^Requests/sec: +([0-9.]+)$`)
	wrkFailed = regexp.MustCompile(`(?m)^ *(Non-2xx or 3xx responses: .*|Socket errors: connect [1-9].*)$`)
)

func parseWrk(out string) (float64, error) {
	if m := wrkFailed.FindStringSubmatch(out); m != nil {
		return 0, fmt.Errorf("wrk: %s", m[1])
	}
	m := wrkRate.FindStringSubmatch(out)
	if m == nil {
		return 0, errors.New("read wrk's report: no rate in it")
	}
	return strconv.ParseFloat(m[1], 64)
}
