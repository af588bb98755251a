// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/shell"
)

// Place is what a network namespace is to people: what other tools call what is in it. It comes from the
// cgroup of a process in it, and from the name of its mount; no container engine is asked. Names are
// others' choice, and may hold anything.
type Place struct {
	Netns uint64 `json:"netns"` // its cookie
	Inode uint64 `json:"inode,omitempty"`
	// Container is the first twelve characters of the container's id, which the engine's ps shows, and
	// Engine is what runs it.
	Container string `json:"container,omitempty"`
	Engine    string `json:"engine,omitempty"`
	// Pod is the UID of a pod of Kubernetes.
	Pod string `json:"pod,omitempty"`
	// Network is the beginning of the id of the Docker network whose namespace it is, or whose load
	// balancer is in it.
	Network  string `json:"network,omitempty"`
	Balancer bool   `json:"balancer,omitempty"`
	// Mount is the name under which it is mounted.
	Mount string `json:"mount,omitempty"`
	// Process is one in it, as PID and name, where nothing else is known.
	Process string `json:"process,omitempty"`
}

// String is the shortest that an operator can find again with the tools of the engine, empty if nothing is
// known.
func (p Place) String() string {
	switch {
	case p.Container != "":
		return p.Container
	case p.Pod != "":
		return "pod " + p.Pod
	case p.Balancer:
		return p.Mount
	case p.Network != "":
		return "network " + p.Network
	case p.Mount != "":
		return p.Mount
	}
	return p.Process
}

// member is what is known of the container in a namespace.
type member struct {
	pid   string
	place Place // what its cgroup says
	since time.Time
}

// walkEvery bounds how often processes are checked for what people ask, as each scan reads a link of each
// process.
const walkEvery = 5 * time.Second

// Places tells what the namespaces are that the last scan saw. What is in them is found when it is asked for: a
// container's process comes after its devices.
func (s *Scanner) Places() map[uint64]Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[uint64]*known{}
	for cookie, k := range s.known {
		if cookie == s.homeCookie {
			continue // each process of the machine is in it
		}
		if k.member.pid != "" && inodeOf(ofProcess(k.member.pid)) != k.inode {
			k.member = member{}
		}
		var named Place
		named.mounted(path.Base(k.mount.Point))
		if named.Network != "" || named.Balancer {
			continue // Docker's own, where no process is
		}
		if k.member.place.Container == "" && time.Since(k.member.since) >= walkEvery {
			k.member.since = time.Now()
			wanted[k.inode] = k
		}
	}
	s.findMembers(wanted)
	places := map[uint64]Place{}
	for cookie, k := range s.known {
		p := k.member.place
		p.Netns, p.Inode = cookie, k.inode
		if cookie != s.homeCookie && k.mount != (netns.Mount{}) {
			p.mounted(path.Base(k.mount.Point))
		}
		places[cookie] = p
	}
	return places
}

// findMembers checks all processes once, the oldest first: a pod's sandbox comes before its containers, and both
// before a process that checks them from outside.
func (s *Scanner) findMembers(wanted map[uint64]*known) {
	if len(wanted) == 0 {
		return
	}
	list := netns.PIDs()
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	for _, pid := range list {
		k := wanted[inodeOf(ofProcess(pid))]
		if k == nil || k.member.place.Container != "" {
			continue
		}
		cgroup, err := os.ReadFile(proc + "/" + pid + "/cgroup")
		if err != nil {
			continue
		}
		p := cgroupPlace(string(cgroup))
		if p.Container == "" && k.member.pid != "" {
			continue // the first one of no container is as good
		}
		if p == (Place{}) {
			comm, err := os.ReadFile(proc + "/" + pid + "/comm")
			if err != nil {
				continue
			}
			p.Process = fmt.Sprintf("process %s (%s)", pid, shell.Word(strings.TrimSuffix(string(comm), "\n")))
		}
		k.member.pid, k.member.place = pid, p
	}
}

// mounted takes over what the name of a mount tells.
func (p *Place) mounted(name string) {
	p.Mount = name
	if n, ok := strings.CutPrefix(name, "lb_"); ok {
		p.Network, p.Balancer = n, true
	} else if name == "ingress_sbox" {
		p.Balancer = true
	} else if m := overlayMount.FindStringSubmatch(name); m != nil {
		p.Network = m[1]
	}
}

var (
	// overlayMount is how Docker names the namespace of an overlay network: a number and the first ten
	// characters of the network's id, which are of base 36 (libnetwork, GenerateKey).
	overlayMount = regexp.MustCompile(`^[0-9]{1,3}-([0-9a-z]{9,11})$`)
	// scope is how engines name a container's cgroup: by systemd, or in a cgroup of the engine's.
	scope = regexp.MustCompile(`^(?:(docker|cri-containerd|containerd|crio|libpod|nerdctl|podman)-|[^:]+:(cri-containerd|crio):)?([0-9a-f]{64})(?:\.scope)?$`)
	// podOf is how Kubernetes names a pod's: with its UID.
	podOf = regexp.MustCompile(`^(?:kubepods(?:-[a-z]+)?-)?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)
)

// parents are engines by the cgroup in which those of their containers are.
var parents = map[string]string{"docker": "docker", "containerd": "containerd", "libpod_parent": "podman"}

// cgroupPlace reads a container, or a pod, from a process's /proc/PID/cgroup. The outermost container counts: what is
// below its cgroup is its own choice.
func cgroupPlace(cgroup string) (p Place) {
	for line := range strings.Lines(cgroup) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // number, controllers, path
		if len(fields) < 3 {
			continue
		}
		p = Place{}
		parent := ""
		for part := range strings.SplitSeq(fields[2], "/") {
			// systemd's names hold the pod's before the container's.
			pod, _, _ := strings.Cut(part, ".slice:")
			if m := podOf.FindStringSubmatch(pod); m != nil {
				p.Pod = strings.ReplaceAll(m[1], "_", "-")
			}
			if m := scope.FindStringSubmatch(part); m != nil {
				p.Container, p.Engine = m[3][:12], cmp.Or(m[1], m[2], parents[parent])
				if p.Engine == "libpod" {
					p.Engine = "podman"
				}
				return p
			}
			parent = part
		}
		if p != (Place{}) {
			return p
		}
	}
	return p
}
