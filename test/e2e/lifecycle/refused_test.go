// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// Another program has the port for metrics: the daemon works without, says so, and takes the port when it is free.
func TestMetricsPortThatIsTaken(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{})
	var other net.Listener
	must(t, b.Receiver().NS.Do(func() (err error) {
		other, err = net.Listen("tcp", "127.0.0.1:14789")
		return err
	}))
	defer other.Close()
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS})
	if m := d.Status().Metrics; m.Address != "127.0.0.1:14789" || !strings.Contains(m.Reason, "metrics:") {
		t.Errorf("status: %+v", m)
	}
	if r := d.Verb("status"); !strings.Contains(r.Out, "metrics are not served at 127.0.0.1:14789") {
		t.Errorf("overlane status: %s", r)
	}
	must(t, other.Close())
	rig.Until(t, "metrics are served", func() (bool, string) {
		m := d.Status().Metrics
		return m.Reason == "", fmt.Sprintf("%+v", m)
	})
	if n := d.Metric("process_open_fds"); n == 0 {
		t.Error("no descriptor is open")
	}
	ends(t, d)
}

// A file with a mistake changes nothing of what a daemon does, and the next one without is
// taken over.
func TestAMistakeInTheFileWhileTheDaemonRuns(t *testing.T) {
	b := lab(t, bed.Options{})
	d, l := start(t, b)
	set, steered := masks(t, b), d.Status().Counters.SteeredPackets
	for _, text := range []string{"pipeline: of\n", "\x00\xff", "pipeline: off\nteir: xdp\n", strings.Repeat("[", 2000)} {
		d.Refuses(text)
	}
	rig.Until(t, "packets are steered as before", func() (bool, string) {
		st := d.Status()
		return st.Counters.SteeredPackets > steered+5000, fmt.Sprintf("%+v", st.Counters)
	})
	if now := masks(t, b); now != set {
		t.Errorf("masks are %s, were %s", now, set)
	}
	d.Reload("pipeline: off\nmetrics: off\n")
	rig.Until(t, "the pipeline is off", func() (bool, string) {
		st := d.Status()
		return st.Mechanism("pipeline").State == control.Off && len(st.Lanes) == 0, fmt.Sprintf("%+v", st.Mechanism("pipeline"))
	})
	ends(t, d)
	left(t, d, l.Stop())
}

// A reload moves metrics, or says why it does not and takes over nothing.
func TestAReloadMovesMetrics(t *testing.T) {
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: "pipeline: auto\n"})
	at := func(addr string, off bool) {
		t.Helper()
		st := d.Status()
		if p := st.Mechanism("pipeline"); st.Metrics != (control.Metrics{Address: addr}) || (p.State == control.Off) != off {
			t.Errorf("metrics are at %+v, want %q, and the pipeline is %+v, want off: %v", st.Metrics, addr, p, off)
		}
	}
	at("127.0.0.1:14789", false)
	d.Refuses("pipeline: off\naggregate: off\nmetrics: 192.0.2.1:14789\n") // no address of this node
	at("127.0.0.1:14789", false)
	d.Refuses("tier: xdp\naggregate: off\nmetrics: 127.0.0.1:9999\n") // needs a restart
	at("127.0.0.1:14789", false)
	d.Reload("pipeline: off\nmetrics: 127.0.0.1:9999\n")
	at("127.0.0.1:9999", true)
	d.Reload("pipeline: off\nmetrics: off\n")
	at("", true)
	d.Reload("pipeline: off\n")
	at("127.0.0.1:14789", true)
	if n := d.Metric("process_open_fds"); n == 0 {
		t.Error("no descriptor is open")
	}
	ends(t, d)
}

// Where nothing can be journalled, nothing is changed, and no mechanism is called active; status says why, and traffic
// goes on.
func TestAFullDiskLeavesTheNodeAsItIs(t *testing.T) {
	b := lab(t, bed.Options{})
	before := masks(t, b)
	const (
		most  = forced + "aggregate: forced\nexpress: forced\nmicroflows: {mode: off}\nbridge-netfilter: skip-unused\n"
		split = "pipeline: off\nmetrics: off\naggregate: off\nmicroflows: {mode: forced, udp-order: none}\n"
	)
	// A page for the lock, and some to fill.
	disk := tinyDisk(t, 8)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: most, State: disk + "/state"})
	fill(t, disk)
	l := rig.StartLoad(t, b, 4)
	standsBy := func(mechanisms ...string) {
		t.Helper()
		for _, name := range mechanisms {
			rig.Until(t, "status says that the disk is full: "+name, func() (bool, string) {
				m := d.Status().Mechanism(name)
				return m.State == control.Standby && strings.Contains(m.Reason, d.Folder()) && strings.Contains(m.Reason, unix.ENOSPC.Error()), fmt.Sprintf("%+v\n%s", m, d.Log())
			})
			d.Says(name + " could not be put in place")
		}
	}
	standsBy("pipeline", "aggregate", "express", "bridge-netfilter")
	d.Reload(split)
	rig.Until(t, "status says that the disk is full: microflows", func() (bool, string) {
		m := d.Status().Mechanism("microflows")
		return m.State == control.Standby && strings.Contains(m.Reason, unix.ENOSPC.Error()), fmt.Sprintf("%+v\n%s", m, d.Log())
	})
	if called := regexp.MustCompile(`msg="\S+ active"`).FindAllString(d.Log(), -1); len(called) > 0 {
		t.Errorf("what was not put in place is called %q", called)
	}
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	l.GoesOn()
	d.Signal(unix.SIGTERM)
	if code := d.Exited().ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.GoneBoth()
	l.GoesOn()
	orderly(t, l.Stop())
}

// What has acted while the disk became full is taken back all the same, and ends no daemon. Status says that the journal
// names more than is changed, until there is room again.
func TestADiskThatIsFullWhileMechanismsActEndsNoDaemon(t *testing.T) {
	b := lab(t, bed.Options{})
	before := masks(t, b)
	disk := tinyDisk(t, 8)
	const joins = "aggregate: forced\nmicroflows: {mode: off}\n"
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced + joins, State: disk + "/state"})
	l := rig.StartLoad(t, b, 4)
	d.Acting()
	rig.Until(t, "both act", func() (bool, string) {
		return masks(t, b) != before && forwarding(t, b) == [2]bool{true, true}, fmt.Sprintf("%+v", d.Status().Mechanisms)
	})
	fill(t, disk)
	d.Reload("pipeline: off\nmetrics: off\n" + joins)
	journal := func() string {
		for _, dev := range d.Status().Devices {
			if dev.Name == "journal" {
				return dev.Reason
			}
		}
		return ""
	}
	rig.Until(t, "the pipeline is off, and status says that the journal is not rewritten", func() (bool, string) {
		st := d.Status()
		return len(st.Lanes) == 0 && masks(t, b) == before && strings.Contains(journal(), unix.ENOSPC.Error()), fmt.Sprintf("%+v\n%s", st.Devices, d.Log())
	})
	l.GoesOn()
	must(t, os.Remove(disk+"/filler"))
	rig.Until(t, "the journal is rewritten", func() (bool, string) { return journal() == "", d.Log() })
	names, err := os.ReadFile(d.Folder() + "/journal")
	if err != nil || strings.Contains(string(names), `"pipeline"`) || !strings.Contains(string(names), `"aggregate"`) {
		t.Errorf("the journal is %s, %v", names, err)
	}
	if n := strings.Count(d.Log(), unix.ENOSPC.Error()); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, d.Log())
	}
	ends(t, d)
	joined(t, l.Stop(), 1)
}

// fill fills a tinyDisk.
func fill(t *testing.T, disk string) {
	t.Helper()
	f, err := os.Create(disk + "/filler")
	must(t, err)
	defer f.Close()
	for page := make([]byte, os.Getpagesize()); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// tinyDisk is a file system of so many pages that ends with the test.
func tinyDisk(t *testing.T, pages int) string {
	t.Helper()
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	must(t, err)
	defer unix.Close(fsfd)
	must(t, unix.FsconfigSetString(fsfd, "size", fmt.Sprint(pages*os.Getpagesize())))
	must(t, unix.FsconfigCreate(fsfd))
	mnt, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(mnt)
	dir := t.TempDir()
	must(t, unix.MoveMount(mnt, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
