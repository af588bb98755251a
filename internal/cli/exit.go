// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/shell"
)

// Exit codes of every verb. They are an interface.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitUnsupported = 3
)

// exitMeaning is what the help says about the codes, unless a verb says it
// more exactly.
var exitMeaning = []string{
	ExitOK:          "done",
	ExitFailure:     "failure",
	ExitUsage:       "usage: an unknown verb or flag, or a mistake in the configuration",
	ExitUnsupported: "not supported here: the kernel or the NIC lacks what is needed",
}

// codedError carries the exit code that an error leads to.
type codedError struct {
	code int
	error
}

func (e *codedError) Unwrap() error { return e.error }

// toldError is one that the JSON on stdout holds already.
type toldError struct{ error }

func (e *toldError) Unwrap() error { return e.error }

// Told prints a report as JSON, in which fail notes the error if there is one.
func Told(w io.Writer, report any, err error, fail func(message string)) error {
	if err == nil {
		return JSON(w, report)
	}
	fail(Message(err))
	if p := JSON(w, report); p != nil {
		return errors.Join(err, p)
	}
	return &toldError{err}
}

// Usage is for what the user wrote.
func Usage(format string, args ...any) error {
	return &codedError{ExitUsage, fmt.Errorf(format, args...)}
}

// Unsupported is for what this node cannot do. The remedy may be empty.
func Unsupported(reason string, remedy shell.Line) error {
	if !remedy.IsZero() {
		reason += "; mend it with: " + remedy.String()
	}
	return &codedError{ExitUnsupported, errors.New("not supported here: " + reason)}
}

// Code is the only place where errors become exit codes.
func Code(err error) int {
	var coded *codedError
	var conf *config.Error
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &conf):
		return ExitUsage
	}
	return ExitFailure
}

// Message is what the user reads: one line, with what would mend it.
func Message(err error) string {
	// errors.Join puts lines between errors that happened together.
	s := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	var coded *codedError
	if errors.Is(err, os.ErrPermission) && !errors.As(err, &coded) {
		s += " (overlane needs root with the capabilities BPF, PERFMON, NET_ADMIN, SYS_ADMIN, SYS_PTRACE and SYS_NICE, and gives up others)"
	}
	return printable.Text(s)
}
