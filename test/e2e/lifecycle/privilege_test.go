// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
)

// capability is a bit of a set, as the kernel counts them, and its name.
type capability struct {
	bit  int
	name string
}

var capabilities = []capability{
	{unix.CAP_BPF, "BPF"}, {unix.CAP_PERFMON, "PERFMON"}, {unix.CAP_NET_ADMIN, "NET_ADMIN"},
	{unix.CAP_SYS_ADMIN, "SYS_ADMIN"}, {unix.CAP_SYS_PTRACE, "SYS_PTRACE"}, {unix.CAP_SYS_NICE, "SYS_NICE"},
}

func setOf(names ...string) (set uint64) {
	for _, c := range capabilities {
		if slices.Contains(names, c.name) {
			set |= 1 << c.bit
		}
	}
	return set
}

// mayOnly fails the test unless each thread of a process has just these sets.
func mayOnly(t *testing.T, process string, pid int, want rig.Privileges) {
	t.Helper()
	for _, got := range rig.PrivilegesOf(t, pid) {
		if got != want {
			t.Errorf("a thread of the %s may %s, want %s", process, got, want)
		}
	}
}

// What the daemon keeps it keeps on all threads while it works, and its guardian keeps less.
func TestDaemonAndGuardianMayNoMoreThanTheyNeed(t *testing.T) {
	b := lab(t, bed.Options{})
	d, l := start(t, b)
	six := setOf("BPF", "PERFMON", "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "SYS_NICE")
	four := setOf("NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "SYS_NICE")
	three := setOf("BPF", "PERFMON", "NET_ADMIN")
	rig.Until(t, "no thread has more in force than what is always", func() (bool, string) {
		raised := 0
		for _, p := range rig.PrivilegesOf(t, d.PID) {
			if p.Effective != three {
				raised++ // it is just looking into a namespace, say
				p.Effective |= six
			}
			p.Effective |= six
			if want := (rig.Privileges{Permitted: six, Effective: six, Bounding: six, NoNewPrivs: 1}); p != want {
				t.Fatalf("a thread of the daemon may %s, want %s, or less of the effective ones", p, want)
			}
		}
		return raised == 0, fmt.Sprintf("%d have", raised)
	})
	mayOnly(t, "guardian", d.Guardian(), rig.Privileges{Permitted: four, Effective: four, Bounding: six, NoNewPrivs: 1})
	ends(t, d)
	left(t, d, l.Stop())
}

// without takes a capability from whatever is started.
func (c capability) without() error { return unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c.bit), 0, 0, 0) }

// Each capability that is taken away is told, with what it is for and what grants it.
func TestWithoutACapabilityThereIsOneError(t *testing.T) {
	b := lab(t, bed.Options{})
	for _, c := range capabilities[2:4] {
		for _, verb := range []string{"run", "plan"} {
			t.Run(c.name+"/"+verb, func(t *testing.T) {
				state := filepath.Join(t.TempDir(), "state")
				r := rig.Run(t, rig.Spec{NS: b.Receiver().NS, Before: c.without}, verb, "--state-dir", state)
				refused(t, r, unsupported, "CAP_"+c.name+" is missing", "by which the daemon", "CapabilityBoundingSet=CAP_"+c.name+" ", "--cap-add="+c.name)
				if _, err := os.Stat(state); err == nil {
					t.Error("a state directory was made")
				}
			})
		}
	}
}

// As Docker before 23 starts it: SYS_ADMIN stands for what that does not know.
func TestSysAdminStandsForBPFAndPerfmon(t *testing.T) {
	b := lab(t, bed.Options{})
	none := func() error { return errors.Join(capabilities[0].without(), capabilities[1].without()) }
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced, Before: none})
	l := rig.StartLoad(t, b, 4)
	d.Acting()
	four, two := setOf("NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "SYS_NICE"), setOf("NET_ADMIN", "SYS_ADMIN")
	for _, p := range rig.PrivilegesOf(t, d.PID) {
		if p.Permitted != four || p.Effective&two != two {
			t.Errorf("a thread of the daemon may %s", p)
		}
	}
	d.Says("CAP_SYS_ADMIN is in force all the time")
	ends(t, d)
	left(t, d, l.Stop())
}

func TestWithoutSysPtraceNamedNamespacesAreServed(t *testing.T) {
	b := lab(t, bed.Options{})
	c := capabilities[4]
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced, Before: c.without})
	l := rig.StartLoad(t, b, 4)
	st := d.Acting()
	if r := st.Tiers[0]; !r.Reached || !strings.Contains(r.Reason, "CAP_SYS_PTRACE is missing") || !strings.Contains(r.Reason, "have a name") || !strings.Contains(r.Remedy, "--cap-add=SYS_PTRACE") {
		t.Errorf("status does not say what is missing: %+v", r)
	}
	ends(t, d)
	left(t, d, l.Stop())
}

func TestWithoutSysNiceThereIsNoPriority(t *testing.T) {
	b := lab(t, bed.Options{})
	c := capabilities[5]
	const rule = "priority:\n  rules:\n    - {name: web, proto: tcp, port: 80}\n"
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced + rule, Before: c.without})
	l := rig.StartLoad(t, b, 4)
	st := d.Acting() // the rest goes on
	says := func(text string) bool {
		return strings.Contains(text, "priority does nothing") && strings.Contains(text, "CAP_SYS_NICE is missing") && strings.Contains(text, "--cap-add=SYS_NICE")
	}
	at := slices.IndexFunc(st.Mechanisms, func(m control.Mechanism) bool { return m.Name == "priority" })
	if at < 0 || st.Mechanisms[at].State != control.Unsupported || !says(st.Mechanisms[at].Reason) {
		t.Errorf("status does not say what is missing: %+v", st.Mechanisms)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(rule), 0o600))
	r := rig.Run(t, rig.Spec{NS: b.Receiver().NS, Before: c.without}, "plan", "--config", file, "--state-dir", filepath.Join(t.TempDir(), "state"))
	if r.Code != 0 || !says(r.Out) {
		t.Errorf("plan does not say what is missing: %s", r)
	}
	ends(t, d)
	left(t, d, l.Stop())
}

// The masks of a pod in a user namespace (hostUsers: false, in Kubernetes) are that one's root's. The
// daemon has given up the capability to write them all the same; other pods are none the worse.
func TestPodOfAUserNamespaceIsLeftAlone(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: 1 << 17, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: 1 << 17, Size: 1}},
	}
	end, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { end.Close(); must(t, cmd.Wait()) }()
	ns, err := netns.OfPID(cmd.Process.Pid)
	must(t, err)
	defer ns.Close()
	first := b.Receiver().Pods[0]
	theirs := bed.Pod{Name: "theirs", NS: ns, HostEnd: "vu0", MAC: first.MAC, IP4: first.IP4.Next()}
	theirs.MAC[5]++
	rig.Plug(t, b.Receiver(), theirs)
	t.Run("with residue check", func(t *testing.T) {
		check(t, b)
		d, l := start(t, b)
		rig.Until(t, "status says why the pod is left alone", func() (bool, string) {
			for _, dev := range d.Status().Devices {
				if dev.Name == theirs.HostEnd {
					return dev.State == control.Manual && strings.Contains(dev.Reason, "user 131072"), fmt.Sprintf("%+v", dev)
				}
			}
			return false, "status does not know it\n" + d.Log()
		})
		if mask := rig.Mask(t, first.NS, bed.PodDev); mask == "0" {
			t.Error("the other pod is not steered")
		}
		ends(t, d)
		left(t, d, l.Stop())
	})
	rig.Unplug(t, b.Receiver(), theirs)
}

// Only root reaches the daemon, and no other host reads its metrics, unless told so.
func TestSocketIsRootsAndMetricsAreLocal(t *testing.T) {
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: "pipeline: auto\n"})
	for _, file := range []struct {
		path string
		mode os.FileMode
	}{
		{filepath.Join(d.Folder(), "control.sock"), os.ModeSocket | 0o600},
		{d.Folder(), os.ModeDir | 0o700},
	} {
		info, err := os.Lstat(file.path)
		must(t, err)
		owner := info.Sys().(*syscall.Stat_t).Uid
		if info.Mode() != file.mode || owner != 0 {
			t.Errorf("%s has mode %s and is user %d's, want %s and root's", file.path, info.Mode(), owner, file.mode)
		}
	}
	if got, want := inetSockets(t, d.PID), []string{"tcp 0100007F:39C5"}; !slices.Equal(got, want) { // 127.0.0.1:14789
		t.Errorf("the daemon listens to %v, want %v", got, want)
	}
	ends(t, d)
}

// inetSockets lists the Internet and packet sockets that a process holds, by protocol and local address.
func inetSockets(t *testing.T, pid int) (list []string) {
	t.Helper()
	held := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil {
			held[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, protocol))
		if os.IsNotExist(err) {
			continue // a kernel without IPv6
		}
		must(t, err)
		for line := range strings.Lines(string(data)) {
			// sl local remote state queues timer retransmits uid timeout inode
			if f := strings.Fields(line); len(f) > 9 && held[f[9]] {
				list = append(list, protocol+" "+f[1])
			}
		}
	}
	return list
}
