// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAPinnedKernelIsTakenAsLongAsItIsServed(t *testing.T) {
	served := []string{
		"linux-image-6.12.9+deb12-cloud-amd64", "linux-image-6.12.10+deb12-cloud-amd64", "linux-image-6.12.10+deb12-amd64",
		"linux-image-6.12.11+deb12-cloud-amd64-unsigned", "linux-image-6.1.0-50-cloud-amd64",
	}
	for pin, want := range map[string]string{"6.12.9+deb12": "6.12.9+deb12-cloud-amd64", "6.12.8+deb12": "6.12.10+deb12-cloud-amd64", "": "6.12.10+deb12-cloud-amd64"} {
		l := Line{Major: 6, Minor: 12, Pin: pin}
		if got, err := l.choose(served); err != nil || got != want {
			t.Errorf("pinned to %q: %s, %v; want %s", pin, got, err, want)
		}
	}
	if got, err := (Line{Major: 6, Minor: 12, Generic: true, Pin: "6.12.10+deb12"}).choose(served); err != nil || got != "6.12.10+deb12-amd64" {
		t.Errorf("generic: %s, %v", got, err)
	}
	if got, err := (Line{Major: 7, Minor: -1, Pin: "7.3.4+deb13"}).choose(served); err == nil {
		t.Errorf("of a line that is not served: %s", got)
	}
}

// The pinned kernel is used without asking the archive. Another one says that it is another one.
func TestAKernelThatIsNotThePinnedOneWarns(t *testing.T) {
	dir := t.TempDir()
	for _, release := range []string{"6.12.9+deb12-cloud-amd64", "6.12.10+deb12-cloud-amd64"} {
		for _, of := range []string{"boot/vmlinuz-" + release, "lib/modules/" + release + "/modules.dep"} {
			path := filepath.Join(dir, release, of)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, newestFile), []byte("6.12.10+deb12-cloud-amd64"), 0o644); err != nil {
		t.Fatal(err)
	}
	for pin, warns := range map[string]bool{"6.12.9+deb12": false, "6.12.8+deb12": true, "": false} {
		k, err := Line{Pin: pin}.cached(dir)
		if err != nil {
			t.Fatalf("pinned to %q: %v", pin, err)
		}
		if (k.Warning != "") != warns || warns && !strings.Contains(k.Warning, pin) {
			t.Errorf("pinned to %q: %s warns: %q", pin, k.Release, k.Warning)
		}
	}
}

// A test that asks for the newest kernel takes the pinned one from no other test.
func TestPinnedKernelsStayInTheCache(t *testing.T) {
	dir := t.TempDir()
	newest := Lines[len(Lines)-1]
	pinned := newest.pinned()
	newest.Pin = ""
	for _, release := range []string{"7.0.1-cloud-amd64", "7.99.1-cloud-amd64", pinned} {
		if err := os.Mkdir(filepath.Join(dir, release), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := newest.prune(dir, "7.99.1-cloud-amd64"); err != nil {
		t.Fatal(err)
	}
	for release, stays := range map[string]bool{"7.0.1-cloud-amd64": false, "7.99.1-cloud-amd64": true, pinned: true} {
		if _, err := os.Stat(filepath.Join(dir, release)); (err == nil) != stays {
			t.Errorf("%s: %v", release, err)
		}
	}
}
