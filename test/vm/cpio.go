// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// cpio writes the "newc" format, the one that the kernel unpacks as its first
// root. Every folder of a name is written before the first file in it.
type cpio struct {
	w    io.Writer
	dirs map[string]bool
	ino  int
	err  error
}

const (
	typeDir  = 0o040000
	typeFile = 0o100000
)

func newCPIO(w io.Writer) *cpio { return &cpio{w: w, dirs: map[string]bool{".": true}} }

// file adds an executable file; name has no leading slash.
func (c *cpio) file(name string, data []byte) {
	c.folder(path.Dir(name))
	c.entry(name, typeFile|0o755, data)
}

func (c *cpio) folder(name string) {
	if c.dirs[name] {
		return
	}
	c.folder(path.Dir(name))
	c.dirs[name] = true
	c.entry(name, typeDir|0o755, nil)
}

// close writes the end and returns the first error.
func (c *cpio) close() error {
	c.entry("TRAILER!!!", 0, nil)
	return c.err
}

func (c *cpio) entry(name string, mode int, data []byte) {
	c.ino++
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0) + name + "\x00"
	c.write([]byte(head + pad(len(head))))
	c.write(data)
	c.write([]byte(pad(len(data))))
}

// pad fills up to a multiple of four.
func pad(n int) string { return strings.Repeat("\x00", -n&3) }

func (c *cpio) write(b []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
	}
}
