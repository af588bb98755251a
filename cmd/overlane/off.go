// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/printable"
)

// answerWait is how long a daemon may take to answer at all. To take its programs off hundreds of pods
// beside a saturated core takes it some seconds, during which it answers no request.
const answerWait = 10 * time.Second

// offTime is how long a daemon may take, once it has answered, to let flows drain, to restore and to
// end, and how long one without a socket may start or stop.
const offTime = 15 * time.Second

func newOffCmd() *cobra.Command {
	var left bool
	cmd := &cobra.Command{
		Use:   "off",
		Short: "Take everything back, with or without a running daemon",
		Long: `Takes back everything that overlane has changed in this network namespace and in
those of its tunnels and pods.

A running daemon does so itself, and ends with exit code 0, so that systemd does
not start it again. When the daemon was killed, off restores from its journal. A
daemon that does not answer within 10 s is ended, by SIGTERM and then by SIGKILL;
a service manager may start it again after that.

A value that another program has changed meanwhile stays as it is. Off may be run
at any time; with nothing to do it says so and succeeds.`,
		Example: `  overlane off`,
		Args:    cobra.NoArgs,
		Annotations: cli.Exits(map[int]string{
			cli.ExitOK:          "everything is as it was, also when there was nothing to do",
			cli.ExitFailure:     "something could not be brought back; it stays in the journal",
			cli.ExitUnsupported: "",
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("off"); err != nil {
				return err
			}
			rep, err := off(cmd.Context(), global.stateDir, left)
			var other *apply.BusyError
			if left && errors.As(err, &other) && !other.Restoring {
				cmd.PrintErrf("overlane: %v; it goes on\n", err)
				return nil
			}
			if err != nil && rep.Left() != nil {
				err = fmt.Errorf("%w\nthe journal keeps what is not restored: remove the cause, then run overlane off again", err)
			}
			if global.json {
				return cli.Told(cmd.OutOrStdout(), &rep, err, func(message string) { rep.Error = message })
			}
			showOff(newScreen(cmd.OutOrStdout()), rep, err)
			return err
		},
	}
	cmd.Flags().BoolVar(&left, "left", false, "restore what a killed daemon has left behind; a daemon that runs goes on")
	_ = cmd.Flags().MarkHidden("left") // the flag is there
	return cmd
}

// off has the process that is able to restore do it: the daemon, its guardian, or this
// one. A daemon that hangs is ended first. left is for what systemd runs once its daemon has ended, or could not start:
// a daemon that holds the namespace then is another one, started by hand or in a container, and is left alone.
func off(ctx context.Context, stateDir string, left bool) (control.OffReport, error) {
	rep := control.OffReport{Schema: control.Schema, Report: apply.Report{Results: []apply.Result{}}}
	home, err := netns.Current()
	if err != nil {
		return rep, err
	}
	defer home.Close()
	cookie, err := home.Cookie()
	if err != nil {
		return rep, err
	}
	// Reading must not create the folder.
	_, err = os.Stat(filepath.Join(stateDir, strconv.FormatUint(cookie, 10)))
	if errors.Is(err, fs.ErrNotExist) {
		return rep, apply.Claimed(home)
	}
	if left {
		err = restoreLeft(stateDir, cookie, &rep)
		return rep, err
	}
	err = offUntil(ctx, stateDir, cookie, &rep)
	if ctx.Err() == nil && errors.Is(err, errHangs) {
		ended, eerr := apply.EndHolder(stateDir, cookie)
		if eerr != nil {
			return rep, eerr
		}
		rep.EndedPID, rep.Killed = ended.PID, ended.Killed
		err = offUntil(ctx, stateDir, cookie, &rep)
	}
	if err == nil && rep.PID == 0 && rep.EndedPID == 0 && len(rep.Results) == 0 {
		err = apply.Claimed(home)
	}
	return rep, err
}

// errHangs says that the holder of the lock does nothing.
var errHangs = errors.New("overlane holds this network namespace and does not answer")

// offUntil fails with errHangs if the holder of the lock neither restores nor lets go.
func offUntil(ctx context.Context, stateDir string, cookie uint64, rep *control.OffReport) error {
	late := time.After(offTime)
	for {
		done, err := offByDaemon(ctx, rep)
		if done {
			return err
		}
		err = restoreLeft(stateDir, cookie, rep)
		if !errors.Is(err, apply.ErrBusy) {
			return err
		}
		// Its holder is starting or stopping: it will listen or let go.
		select {
		case <-ctx.Done():
			return busyHint(err)
		case <-late:
			return fmt.Errorf("%w: %w", errHangs, busyHint(err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func restoreLeft(stateDir string, cookie uint64, rep *control.OffReport) error {
	got, err := apply.RestoreLeft(stateDir, cookie)
	rep.Report.Results = append(rep.Report.Results, got.Results...)
	rep.Damaged += got.Damaged
	return err
}

// offByDaemon reports done unless no daemon listens, or the one that did ended
// before it had answered.
func offByDaemon(ctx context.Context, rep *control.OffReport) (done bool, err error) {
	c, err := dialDaemon()
	if errors.Is(err, control.ErrNoDaemon) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer c.Close()
	asked, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	if _, err := c.Status(asked); asked.Err() != nil {
		return true, hangs(ctx, err)
	}
	asked, cancel = context.WithTimeout(ctx, offTime)
	defer cancel()
	got, err := c.Off(asked)
	var refused *control.RemoteError
	switch {
	case errors.As(err, &refused) && strings.Contains(refused.Message, daemon.ErrStopping.Error()):
		// Another command, or a signal, has told it so. What it could not restore is in the journal.
		return gone(ctx, asked, c)
	case errors.As(err, &refused):
		// It may have restored nothing, or all but its journal.
		return true, errors.Join(fmt.Errorf("the daemon (pid %d) answered: %w", c.PID(), err), hangs(ctx, c.WaitGone(asked)))
	case err != nil && asked.Err() != nil:
		return true, hangs(ctx, err)
	case err != nil:
		// It was on its way out. What it has not restored is in the journal.
		return gone(ctx, asked, c)
	}
	rep.PID, rep.Report, rep.Damaged = got.PID, got.Report, got.Damaged
	err = hangs(ctx, c.WaitGone(asked))
	if left := rep.Left(); left != nil {
		err = errors.Join(fmt.Errorf("the daemon (pid %d) could not restore everything: %w", c.PID(), left), err)
	}
	return true, err
}

// gone waits for the end of a daemon that is on its way out.
func gone(ctx, asked context.Context, c *control.Client) (done bool, err error) {
	err = hangs(ctx, c.WaitGone(asked))
	return err != nil, err
}

// hangs makes errHangs of an error, unless off itself is to end.
func hangs(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errHangs, err)
	}
	return err
}

func showOff(s *screen, rep control.OffReport, err error) {
	var rows [][]cell
	for _, r := range rep.Results {
		if r.Outcome == apply.Kept {
			continue // the error names it
		}
		mark := cell{string(r.Outcome), dim}
		what := r.Setting.String()
		if r.Outcome == apply.Restored {
			mark.style = green
			what += fmt.Sprintf(": %s -> %s", r.From, r.To)
		}
		if r.Reason != "" {
			what += ": " + r.Reason
		}
		rows = append(rows, []cell{mark, {what, plain}})
	}
	s.table(nil, rows)
	if rep.Damaged > 0 {
		s.line(cell{fmt.Sprintf("  %s of the journal could not be read", printable.Plural(rep.Damaged, "record")), yellow})
	}
	if err != nil {
		return
	}
	by := ""
	if rep.PID != 0 {
		by = fmt.Sprintf(" by the daemon (pid %d), which has ended", rep.PID)
	}
	if rep.EndedPID != 0 {
		with, by := "SIGTERM", "itself"
		if rep.Killed {
			with, by = "SIGKILL", "its guardian"
		}
		s.line(cell{"off: ", bold}, cell{fmt.Sprintf("the daemon (pid %d) did not answer and was ended with %s; a service manager may start it again", rep.EndedPID, with), yellow})
		if rep.Count(apply.Restored) == 0 {
			s.line(cell{"off: ", bold}, cell{"what it had changed is restored, by " + by, plain})
			return
		}
	}
	switch n := rep.Count(apply.Restored); {
	case n > 0:
		s.line(cell{"off: ", bold}, cell{printable.Plural(n, "value") + " restored" + by, plain})
	case rep.PID != 0:
		s.line(cell{"off: ", bold}, cell{fmt.Sprintf("the daemon (pid %d) has ended; no value was changed", rep.PID), plain})
	case len(rep.Results) > 0:
		s.line(cell{"off: ", bold}, cell{"nothing was left to restore", plain})
	default:
		s.line(cell{"off: ", bold}, cell{"nothing to do: nothing of overlane is in place", plain})
	}
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
