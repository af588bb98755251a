// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
)

const id = "3f2a9c1b7d440123456789abcdef0123456789abcdef0123456789abcdef0123"

func TestContainersAreKnownByTheirCgroups(t *testing.T) {
	const uid, low = "0f8fad5b-d9cb-469f-a165-70867728950e", "0f8fad5b_d9cb_469f_a165_70867728950e"
	for name, tc := range map[string]struct {
		cgroup string
		want   Place
	}{
		"docker, systemd":  {"0::/system.slice/docker-" + id + ".scope\n", Place{Container: id[:12], Engine: "docker"}},
		"docker, cgroupfs": {"0::/docker/" + id + "\n", Place{Container: id[:12], Engine: "docker"}},
		"docker, v1":       {"12:pids:/docker/" + id + "\n1:name=systemd:/docker/" + id + "\n", Place{Container: id[:12], Engine: "docker"}},
		"seen from another cgroup namespace": {"0::/../../system.slice/docker-" + id + ".scope/init\n",
			Place{Container: id[:12], Engine: "docker"}},
		"containerd under Kubernetes": {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + low + ".slice/cri-containerd-" + id + ".scope\n",
			Place{Container: id[:12], Engine: "cri-containerd", Pod: uid}},
		"guaranteed":          {"0::/kubepods.slice/kubepods-pod" + low + ".slice/crio-" + id + ".scope\n", Place{Container: id[:12], Engine: "crio", Pod: uid}},
		"cgroupfs driver":     {"0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", Place{Container: id[:12], Pod: uid}},
		"containerd, v1":      {"5:memory:/system.slice/containerd.service/kubepods-besteffort-pod" + low + ".slice:cri-containerd:" + id + "\n", Place{Container: id[:12], Engine: "cri-containerd", Pod: uid}},
		"podman":              {"0::/machine.slice/libpod-" + id + ".scope/container\n", Place{Container: id[:12], Engine: "podman"}},
		"podman's monitor":    {"0::/machine.slice/libpod-conmon-" + id + ".scope\n", Place{}},
		"a service":           {"0::/system.slice/ssh.service\n", Place{}},
		"nothing":             {"", Place{}},
		"a container's fancy": {"0::/docker/" + id + "/docker/" + strings.Repeat("f", 64) + "\n", Place{Container: id[:12], Engine: "docker"}},
		"too short an id":     {"0::/docker/abcdef\n", Place{}},
	} {
		if got := cgroupPlace(tc.cgroup); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestDockersMountsTellNetworks(t *testing.T) {
	for name, want := range map[string]struct {
		place Place
		says  string
	}{
		"1-i79xvqm2hn": {Place{Network: "i79xvqm2hn", Mount: "1-i79xvqm2hn"}, "network i79xvqm2hn"},
		"lb_i79xvqm2h": {Place{Network: "i79xvqm2h", Balancer: true, Mount: "lb_i79xvqm2h"}, "lb_i79xvqm2h"},
		"ingress_sbox": {Place{Balancer: true, Mount: "ingress_sbox"}, "ingress_sbox"},
		"blue":         {Place{Mount: "blue"}, "blue"},
		"f0bcd9a8e713": {Place{Mount: "f0bcd9a8e713"}, "f0bcd9a8e713"},
	} {
		var p Place
		if p.mounted(name); p != want.place || p.String() != want.says {
			t.Errorf("%s: %+v, %s", name, p, p)
		}
	}
}

// What people ask is told of the container in a namespace now, and costs one scan of the processes.
func TestPlacesTellWhoIsInANamespace(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	a.ip(t, bridge)
	s := w.scanner(a)
	pod := held(t)
	a.ip(t, "link add ve1 type veth peer name eth0 netns $1\nlink set ve1 master br0 up", pod)
	if snap := scan(t, s); len(snap.Pods) != 1 {
		t.Fatalf("%+v", snap)
	}
	if got := s.Places()[pod.cookie]; !strings.HasPrefix(got.Process, "process ") || !strings.HasSuffix(got.Process, "(sleep)") || got.Inode != pod.Inode() {
		t.Errorf("%+v", got)
	}
	if got := s.Places()[a.cookie]; got.String() != "" {
		t.Errorf("home is %+v", got)
	}
	pod.kill()
	if got := s.Places()[pod.cookie]; got.Process != "" {
		t.Errorf("the process has ended: %+v", got)
	}
}
