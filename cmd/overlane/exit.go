// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/printable"
)

// Exit codes of every verb. They are an interface.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnsupported = 3
	exitVerdict     = 4
)

// exitMeaning is what the help says about the codes, unless a verb says it
// more exactly.
var exitMeaning = []string{
	exitOK:          "done",
	exitFailure:     "failure",
	exitUsage:       "usage: an unknown verb or flag, or a mistake in the configuration",
	exitUnsupported: "not supported here: the kernel or the NIC lacks what is needed",
	exitVerdict:     "a measurement does not show what it was to show",
}

// codedError carries the exit code that an error leads to.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// toldError is one that the JSON on stdout holds already.
type toldError struct{ err error }

func (e *toldError) Error() string { return e.err.Error() }
func (e *toldError) Unwrap() error { return e.err }

// told prints a report as JSON, in which fail notes the error if there is one.
func told(w io.Writer, report any, err error, fail func(message string)) error {
	if err == nil {
		return printJSON(w, report)
	}
	fail(message(err))
	if p := printJSON(w, report); p != nil {
		return errors.Join(err, p)
	}
	return &toldError{err}
}

// usageError is for what the user wrote.
func usageError(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// unsupportedError is for what this node cannot do. The remedy may be empty.
func unsupportedError(reason, remedy string) error {
	if remedy != "" {
		reason += "; mend it with: " + remedy
	}
	return &codedError{exitUnsupported, errors.New("not supported here: " + reason)}
}

// verdictError is for a measurement that does not show what it was to show, and
// for a node that is not as it should be.
func verdictError(format string, args ...any) error {
	return &codedError{exitVerdict, fmt.Errorf(format, args...)}
}

// exitCode is the only place where errors become exit codes.
func exitCode(err error) int {
	var coded *codedError
	var conf *config.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &conf):
		return exitUsage
	}
	return exitFailure
}

// message is what the user reads: one line, with what would mend it.
func message(err error) string {
	// errors.Join puts lines between errors that happened together.
	s := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	var coded *codedError
	if errors.Is(err, os.ErrPermission) && !errors.As(err, &coded) {
		s += " (overlane needs root with the capabilities BPF, PERFMON, NET_ADMIN, SYS_ADMIN, SYS_PTRACE and SYS_NICE, and gives up others)"
	}
	return printable.Text(s)
}

// needRoot is asked before anything is opened, so that a user does not have to
// guess from whichever file was the first to be closed to him.
func needRoot(verb string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return fmt.Errorf("%s needs root: sudo overlane %s", verb, verb)
}

// busyHint turns the lock's error into the one that fits a verb that is not
// `run`.
func busyHint(err error) error {
	var busy *apply.BusyError
	if errors.As(err, &busy) && busy.PID != 0 {
		return fmt.Errorf("overlane with pid %d holds this network namespace and does not answer: kill %d, then run overlane off again", busy.PID, busy.PID)
	}
	return err
}
