// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
)

// Options say what a Scanner checks. The zero value is the daemon's default.
type Options struct {
	// Underlays names the NICs to use; empty: those that carry the outer
	// packets of a tunnel.
	Underlays []string
	// Home is the namespace whose underlays we own; nil: that of the calling
	// thread. It is not kept, and stays the caller's.
	Home *netns.Handle
	// Dirs are where mounted namespaces are looked for; nil: wherever they are.
	Dirs []string
	// Resync is the time between events without a cause; 0: 30 s.
	Resync time.Duration
	// OwnXDP reports whether an XDP program is ours; nil: none is.
	OwnXDP func(progID uint32) bool
}

// Reader reads how devices receive: a Scanner as it is now, or what has kept what one read a while ago.
type Reader interface {
	Settings(Dev) (Settings, error)
	Features(Dev) (map[string]ethtool.Feature, error)
	Namespace(cookie uint64) (*netns.Handle, error)
}

// Scanner observes a node. Its methods may be called at the same time.
type Scanner struct {
	opts     Options
	home     *netns.Handle
	homePath string // reopens home

	scanning sync.Mutex // a scan, or a search for what an id means: one at a time
	buf      []byte     // answers to a scan's requests
	search   search
	watches  map[uint64]*watch
	served   map[DevKey]bool // what the last scan found: namespaces have the number 0
	failing  time.Time       // since when scans fail for something of that, zero: the last one did not
	retry    *time.Timer

	homeCookie  uint64
	homeKnownAs string // a path of home that other processes can use

	// mu guards what is asked for while a scan is under way. Namespaces, and the ways to them, change only while
	// scanning is held, too: a scan reads them without.
	mu       sync.Mutex
	searched Searched
	known    map[uint64]*known
	others   map[nsKey]other
	closed   bool

	wantFull atomic.Bool // the next scan scans every namespace
	newIDs   sync.Map    // nsKeys that were given out or taken back since the last scan
	lostIDs  atomic.Bool // and that may be any
	poked    chan struct{}
	events   chan struct{}
	done     chan struct{}
	mounts   *mounts
	rcvbuf   int
	wg       sync.WaitGroup
}

// nsKey is the id that one namespace has for another.
type nsKey struct {
	cookie uint64
	id     int
}

// NewScanner starts watching the home namespace. It needs CAP_NET_ADMIN and
// CAP_SYS_ADMIN: namespaces are entered to be scanned.
func NewScanner(opts Options) (*Scanner, error) {
	if opts.Resync == 0 {
		opts.Resync = 30 * time.Second
	}
	path := "/proc/thread-self/ns/net"
	if opts.Home != nil {
		path = "/proc/self/fd/" + strconv.Itoa(opts.Home.FD())
	}
	home, err := netns.OfPath(path)
	if err != nil {
		return nil, err
	}
	s := &Scanner{
		opts: opts, home: home, homePath: "/proc/self/fd/" + strconv.Itoa(home.FD()),
		buf:   make([]byte, 1<<16),
		known: map[uint64]*known{}, others: map[nsKey]other{}, search: search{ends: map[nsKey]int{}, most: 100 * time.Millisecond}, watches: map[uint64]*watch{},
		poked: make(chan struct{}, 1), events: make(chan struct{}, 1), done: make(chan struct{}),
		rcvbuf: 1 << 20,
	}
	s.wantFull.Store(true)
	cookie, err := home.Cookie()
	if err != nil {
		return nil, errors.Join(err, home.Close())
	}
	s.homeCookie = cookie
	err = home.Do(func() error {
		s.watches[cookie], err = s.watchHere(cookie)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, home.Close())
	}
	s.mounts = watchMounts(opts.Dirs, s.poke, s.wg.Go)
	s.wg.Go(s.settle)
	return s, nil
}

// Scan checks the node. What cannot be read is in Snapshot.Skipped with
// the reason; the error is for what makes the whole meaningless: of home, or
// of what the last one found. Another scan is due then.
func (s *Scanner) Scan(ctx context.Context) (Snapshot, error) {
	take, err := s.Look(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	return take(), nil
}

// Look is the part of Scan that takes long. Until take is called all that the Scanner tells of namespaces is as the scan
// before has found it: a caller that goes on working meanwhile has what it works with not taken from it. No other Look
// may begin before.
func (s *Scanner) Look(ctx context.Context) (take func() Snapshot, err error) {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	if s.closed {
		return nil, fmt.Errorf("scan node: %w", os.ErrClosed)
	}
	if s.lostIDs.Swap(false) {
		clear(s.search.ends)
	}
	s.newIDs.Range(func(key, _ any) bool {
		s.newIDs.Delete(key)
		delete(s.search.ends, key.(nsKey))
		return true
	})
	p := &pass{s: s, full: s.wantFull.Swap(false), byInode: map[uint64]*space{}, unopened: map[uint64]error{}}
	err = s.home.Visit(func() error {
		defer p.close()
		return p.run(ctx)
	})
	if err != nil {
		s.wantFull.Store(true)
		s.pokeSoon()
		return nil, fmt.Errorf("scan node: %w", err)
	}
	return func() Snapshot {
		s.keep(p)
		return p.snap
	}, nil
}

// Home is the cookie of the home namespace.
func (s *Scanner) Home() uint64 { return s.homeCookie }

// Searched is where a scan has searched, for a caller that finds nothing.
type Searched struct {
	Namespaces int
	// Dirs are where some of them are mounted; the others processes are in, or hold.
	Dirs []string
	// Elsewhere are tunnels that other namespaces' NICs carry.
	Elsewhere int
}

// Searched tells where the last scan has searched.
func (s *Scanner) Searched() Searched {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.searched
}

// keep remembers the namespaces of a scan and lets go of all others, but for those that are there and could not be
// opened.
func (s *Scanner) keep(p *pass) {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[uint64]*space{}
	for _, sp := range p.order {
		found[sp.cookie] = sp
		if k := s.known[sp.cookie]; k != sp.known {
			k.close() // Other has found it as well
		}
		s.known[sp.cookie] = sp.known
	}
	s.homeKnownAs = p.home.path
	s.searched = Searched{Namespaces: len(p.order), Elsewhere: p.elsewhere}
	for _, sp := range p.order {
		if dir := filepath.Dir(sp.mount.Path()); sp.mount != (netns.Mount{}) && !slices.Contains(s.searched.Dirs, dir) {
			s.searched.Dirs = append(s.searched.Dirs, dir)
		}
	}
	slices.Sort(s.searched.Dirs)
	for cookie, k := range s.known {
		if err := p.unopened[k.inode]; found[cookie] == nil && (err == nil || ended(err)) {
			k.close()
			delete(s.known, cookie)
		}
	}
	for cookie, w := range s.watches {
		if sp := found[cookie]; sp == nil || sp != p.home && !sp.tunnels {
			w.close()
			delete(s.watches, cookie)
		}
	}
	for k, o := range s.others {
		if s.known[k.cookie] == nil || o.cookie != 0 && s.known[o.cookie] == nil {
			delete(s.others, k)
		}
	}
	for k := range s.search.ends {
		if s.watches[k.cookie] == nil { // nothing tells of its ids
			delete(s.search.ends, k)
		}
	}
	for i, u := range p.snap.Underlays { // which programs are its own is up to the caller's goroutine
		p.snap.Underlays[i].ForeignXDP = u.XDPProgID != 0 && (s.opts.OwnXDP == nil || !s.opts.OwnXDP(u.XDPProgID))
	}
	s.failing, s.served = time.Time{}, map[DevKey]bool{}
	for _, u := range p.snap.Underlays {
		s.served[u.Key()] = true
	}
	for _, t := range p.snap.Tunnels {
		s.served[DevKey{t.NetnsCookie, 0}] = true
	}
	for _, pod := range p.snap.Pods {
		s.served[pod.Host.Key()], s.served[DevKey{pod.Peer.NetnsCookie, 0}] = true, true
	}
	if p.again {
		s.pokeSoon()
	}
}

// pokeSoon has a scan follow of which no event will tell.
func (s *Scanner) pokeSoon() {
	if s.retry != nil {
		s.retry.Stop()
	}
	s.retry = time.AfterFunc(time.Second, s.poke)
}

// Namespace opens a namespace that the last scan saw. The caller closes it,
// and soon: an open handle keeps the namespace of a dead container alive. It
// fails with ErrGone only if the namespace has ended: the journal forgets what
// was changed there.
func (s *Scanner) Namespace(cookie uint64) (*netns.Handle, error) {
	path, mount := s.homePath, netns.Mount{}
	if cookie != s.homeCookie {
		s.mu.Lock()
		k := s.known[cookie]
		if k == nil {
			s.mu.Unlock()
			return nil, fmt.Errorf("network namespace %d: %w", cookie, ErrGone)
		}
		path, mount = k.path, k.mount
		s.mu.Unlock()
	}
	h, err := open(path, mount)
	if err != nil {
		if ended(err) {
			err = fmt.Errorf("%w (%w)", ErrGone, err)
		}
		return nil, fmt.Errorf("network namespace %d: %w", cookie, err)
	}
	c, err := h.Cookie()
	if err == nil && c != cookie {
		err = ErrGone
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace %d: %w", cookie, err), h.Close())
	}
	return h, nil
}

// Path returns where a namespace that the last scan saw is reached, for
// commands that people are told to run, such as nsenter --net=PATH.
func (s *Scanner) Path(cookie uint64) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[cookie]
	if k == nil {
		return "", fmt.Errorf("network namespace %d: %w", cookie, ErrGone)
	}
	return k.path, nil
}

// Sysfs returns /sys as a namespace that the last scan saw sees it. It is kept
// until a scan finds the namespace gone, and does not keep it alive. The caller
// must not close it.
func (s *Scanner) Sysfs(cookie uint64) (*os.Root, error) {
	s.mu.Lock()
	k := s.known[cookie]
	var root *os.Root
	if k != nil {
		root = k.sysfs
	}
	s.mu.Unlock()
	if root != nil {
		return root, nil
	}
	h, err := s.Namespace(cookie)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if k = s.known[cookie]; k == nil {
		return nil, fmt.Errorf("network namespace %d: %w", cookie, ErrGone)
	}
	return k.openSysfs(h)
}

// Close stops watching and frees everything. The channel of Events is closed.
func (s *Scanner) Close() error {
	s.scanning.Lock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.scanning.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	for _, w := range s.watches {
		w.close()
	}
	s.mounts.close()
	s.search.close()
	if s.retry != nil {
		s.retry.Stop()
	}
	for _, k := range s.known {
		k.close()
	}
	clear(s.known)
	s.mu.Unlock()
	s.scanning.Unlock()
	s.wg.Wait()
	return s.home.Close()
}

func byKey(a, b Dev) int {
	return cmp.Or(cmp.Compare(a.NetnsCookie, b.NetnsCookie), cmp.Compare(a.Ifindex, b.Ifindex))
}

func (p *pass) sort() {
	n := &p.snap
	slices.SortFunc(n.Underlays, func(a, b Underlay) int { return byKey(a.Dev, b.Dev) })
	slices.SortFunc(n.Tunnels, func(a, b Tunnel) int { return byKey(a.Dev, b.Dev) })
	slices.SortFunc(n.Pods, func(a, b Pod) int { return byKey(a.Host, b.Host) })
	slices.SortFunc(n.Stacked, func(a, b Stacked) int { return byKey(a.Dev, b.Dev) })
	slices.SortFunc(n.Skipped, func(a, b Skip) int {
		return cmp.Or(byKey(a.Dev, b.Dev), cmp.Compare(a.Dev.Name, b.Dev.Name), cmp.Compare(a.Reason, b.Reason))
	})
	n.Skipped = slices.Compact(n.Skipped) // several tunnels may use a NIC that is left out
	for _, pod := range n.Pods {
		slices.SortFunc(pod.Tunnels, byKey)
	}
	for _, dev := range n.Stacked {
		slices.SortFunc(dev.Tunnels, byKey)
	}
}
