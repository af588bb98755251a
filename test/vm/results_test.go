// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlane/overlane/test/vm/guest"
)

func TestAMachineThatDoesNotComeToItsEndIsAFailure(t *testing.T) {
	runs := []guest.Run{{Name: "a"}}
	const end, done = `{"run":"a","ended":true}` + "\n", `{"done":true}` + "\n"
	for _, tt := range []struct {
		name, records, want string
	}{
		{"all of it", `{"run":"a","output":"x\n"}` + "\n" + end + done, ""},
		{"nothing", "", "ended before"},
		{"without the end", end, "ended before"},
		{"init failed", `{"error":"load module x: no"}` + "\n", "init: load module x: no"},
		{"a broken record", end + done + "{\"ru", "record"},
		{"a record of no run", `{"run":"b","ended":true}` + "\n" + done, "not in the plan"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Outcomes(tt.records, runs)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestTestsOfARunAreFoundWithTheirSubtests(t *testing.T) {
	o := Outcome{Output: strings.Join([]string{
		"\x16=== RUN   TestA", "\x16=== RUN   TestA/x", "\x16=== RUN   TestA/x/y/z", "    a_test.go:1: needs a moon",
		"\x16--- SKIP: TestA/x/y/z (0.00s)", "\x16--- PASS: TestA/x (0.00s)", "\x16--- PASS: TestA (0.00s)",
		"\x16=== RUN   TestB", "panic: no", "",
	}, "\n")}
	tests, _, err := o.Tests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var walk func(string, []*Test)
	walk = func(outer string, all []*Test) {
		for _, x := range all {
			got = append(got, strings.TrimSpace(outer+x.Name+" "+x.Result+" "+x.Reason()))
			walk(outer+x.Name+" > ", x.Sub)
		}
	}
	walk("", tests)
	// The binary died in TestB: test2json calls what did not end failed or
	// leaves it open; it never passes.
	last := len(got) - 1
	if got[last] != "TestB" && got[last] != "TestB fail" {
		t.Errorf("a test that did not end: %q", got[last])
	}
	want := []string{"TestA pass", "TestA > x pass", "TestA > x > y/z skip needs a moon"}
	if d := cmp.Diff(want, got[:last]); d != "" {
		t.Error(d)
	}
}

func TestTheRootImageIsReadByCPIO(t *testing.T) {
	tool, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("needs cpio")
	}
	var image bytes.Buffer
	c := newCPIO(&image)
	c.file("init", []byte("12345"))
	c.file("tests/deep/a", nil)
	c.file("tests/b", []byte("1234"))
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool, "-idm", "--quiet")
	cmd.Dir, cmd.Stdin = t.TempDir(), &image
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command("find", cmd.Dir, "-type", "f", "-perm", "755", "-printf", "%P %s\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(strings.ReplaceAll(string(out), " ", "="))
	for _, want := range []string{"init=5", "tests/deep/a=0", "tests/b=4"} {
		if !strings.Contains(strings.Join(got, " ")+" ", want+" ") {
			t.Errorf("%s: not among %q", want, got)
		}
	}
}

func TestOnlySignedKernelsOfTheRightKindAreTaken(t *testing.T) {
	for name, want := range map[string]*regexp.Regexp{
		"linux-image-6.12.117+deb12-cloud-amd64":          cloud,
		"linux-image-6.12.117+deb12-cloud-amd64-unsigned": nil,
		"linux-image-6.12.117+deb12-amd64":                generic,
		"linux-image-6.12.117+deb12-amd64-unsigned":       nil,
		"linux-image-6.12.117+deb12-rt-amd64":             nil,
		"linux-image-cloud-amd64":                         nil,
		"linux-image-6.12.117+deb12-cloud-amd64-dbg":      nil,
	} {
		for _, kind := range []*regexp.Regexp{cloud, generic} {
			m := kind.FindStringSubmatch(name)
			if (m != nil) != (kind == want) || m != nil && m[1] != strings.TrimPrefix(name, imagePrefix) {
				t.Errorf("%s by %s: %q", name, kind, m)
			}
		}
	}
	if got := moduleName("/x/udp-tunnel.ko.xz"); got != "udp_tunnel" {
		t.Error(got)
	}
}
