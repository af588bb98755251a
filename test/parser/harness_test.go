// SPDX-License-Identifier: Apache-2.0

// Package parser runs those parts of bpf/ that need no kernel, or for which a model
// of it does, compiled for this machine under sanitizers.
package parser

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const clang = "clang-19"

// compiled are the programs that were built, by source and flags, in built.
var (
	built    string
	compiled = map[string]string{}
)

// compile builds one C program of host/, once, and returns its path.
func compile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	key := fmt.Sprint(source, flags)
	if bin := compiled[key]; bin != "" {
		return bin
	}
	if _, err := exec.LookPath(clang); err != nil {
		t.Skipf("needs %s (Debian: apt-get install %s libclang-rt-19-dev)", clang, clang)
	}
	bin := filepath.Join(built, fmt.Sprint(len(compiled), "-", strings.TrimSuffix(source, ".c")))
	args := append([]string{
		"-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
		"-fno-sanitize-recover=all", "-DHOST_TEST", "-I../../bpf", "-o", bin, filepath.Join("host", source),
	}, flags...)
	if out, err := exec.Command(clang, args...).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "libclang_rt") {
			t.Skipf("needs the sanitizers of %s (Debian: apt-get install libclang-rt-19-dev)", clang)
		}
		t.Fatalf("compile %s: %v\n%s", source, err, out)
	}
	compiled[key] = bin
	return bin
}

const sanitizers = "-fsanitize=address,undefined"

// run executes a compiled program, which must succeed, and returns what it said.
func run(t *testing.T, bin string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(bin), strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestMain(m *testing.M) {
	// A program under sanitizers that finds something must not take long to
	// say so.
	os.Setenv("ASAN_OPTIONS", "symbolize=1:detect_leaks=1")
	os.Exit(runIn(m))
}

func runIn(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "parser"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	return m.Run()
}
