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
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
)

// offTime is how long a daemon may take to let flows drain, to restore and to
// end.
const offTime = 15 * time.Second

func newOffCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "off",
		Short: "Take everything back, with or without a running daemon",
		Long: `Takes back everything that overlane has changed in this network namespace and in
those of its tunnels and pods.

A running daemon does so itself, and ends with exit code 0, so that systemd does
not start it again. When the daemon was killed, off restores from its journal.

A value that another program has changed meanwhile stays as it is. Off may be run
at any time; with nothing to do it says so and succeeds.`,
		Example: `  overlane off`,
		Args:    cobra.NoArgs,
		Annotations: exits(map[int]string{
			exitOK:          "everything is as it was, also when there was nothing to do",
			exitFailure:     "something could not be brought back; it stays in the journal",
			exitUnsupported: "", exitVerdict: "",
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("off"); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), offTime)
			defer cancel()
			rep, err := off(ctx, global.stateDir)
			if global.json {
				return errors.Join(err, printJSON(cmd.OutOrStdout(), rep))
			}
			showOff(newScreen(cmd.OutOrStdout()), rep, err)
			return err
		},
	}
}

// off makes whoever is able to restore do it: the daemon, its guardian, or this
// process.
func off(ctx context.Context, stateDir string) (control.OffReport, error) {
	rep := control.OffReport{Report: apply.Report{Results: []apply.Result{}}}
	cookie, err := here()
	if err != nil {
		return rep, err
	}
	// Looking must not create the folder.
	_, err = os.Stat(filepath.Join(stateDir, strconv.FormatUint(cookie, 10)))
	if errors.Is(err, fs.ErrNotExist) {
		return rep, nil
	}
	for {
		done, err := offByDaemon(ctx, &rep)
		if done {
			return rep, err
		}
		got, err := apply.RestoreLeft(stateDir, cookie)
		rep.Report.Results = append(rep.Report.Results, got.Results...)
		rep.Damaged += got.Damaged
		if !errors.Is(err, apply.ErrBusy) {
			return rep, err
		}
		// Its holder is starting or stopping: it will listen or let go.
		select {
		case <-ctx.Done():
			return rep, busyHint(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
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
	got, err := c.Off(ctx)
	var refused *control.RemoteError
	switch {
	case errors.As(err, &refused) && strings.Contains(refused.Message, daemon.ErrStopping.Error()):
		// Somebody else has told it so. What it could not restore is in the journal.
		return false, c.WaitGone(ctx)
	case errors.As(err, &refused):
		return true, fmt.Errorf("the daemon (pid %d) could not restore everything: %w", c.PID(), err)
	case err != nil && ctx.Err() != nil:
		return true, err
	case err != nil:
		// It was on its way out. What it has not restored is in the journal.
		return false, c.WaitGone(ctx)
	}
	*rep = got
	return true, c.WaitGone(ctx)
}

func showOff(s *screen, rep control.OffReport, err error) {
	var rows [][]cell
	for _, r := range rep.Results {
		mark := cell{string(r.Outcome), dim}
		what := r.Setting.String()
		switch r.Outcome {
		case apply.Restored:
			mark.style = green
			what += fmt.Sprintf(": %s -> %s", r.From, r.To)
		case apply.Kept:
			mark.style = red
		}
		if r.Reason != "" {
			what += ": " + r.Reason
		}
		rows = append(rows, []cell{mark, {what, plain}})
	}
	s.table(nil, rows)
	if rep.Damaged > 0 {
		s.line(cell{fmt.Sprintf("  %s of the journal could not be read", plural(rep.Damaged, "record")), yellow})
	}
	if err != nil {
		return
	}
	by := ""
	if rep.PID != 0 {
		by = fmt.Sprintf(" by the daemon (pid %d), which has ended", rep.PID)
	}
	switch n := rep.Count(apply.Restored); {
	case n > 0:
		s.line(cell{"off: ", bold}, cell{plural(n, "value") + " restored" + by, plain})
	case rep.PID != 0:
		s.line(cell{"off: ", bold}, cell{fmt.Sprintf("the daemon (pid %d) has ended; no value was changed", rep.PID), plain})
	case len(rep.Results) > 0:
		s.line(cell{"off: ", bold}, cell{"nothing was left to restore", plain})
	default:
		s.line(cell{"off: ", bold}, cell{"nothing to do: nothing of overlane is in place", plain})
	}
}
