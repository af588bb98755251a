// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/measure"
	"github.com/overlane/overlane/internal/privilege"
)

func newRunCmd() *cobra.Command {
	var file string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make the overlays of this node faster, until told to stop",
		Long: `Finds the NICs that carry tunnels, the tunnels and the pods behind them in this
network namespace, follows their coming and going, and measures.

When packets come fast, UDP datagrams of one flow that come in a row cross the
overlay as one packet. When receiving overlay packets keeps a core busy, the work
of a flow is spread over several cores, if a trial shows that this pays. When it
does not pay any more, overlane steps back.

On an idle node nothing is changed on any device. When overlane ends, for
whatever reason, everything is as it was.

It needs root, and keeps the capabilities BPF, PERFMON, NET_ADMIN, SYS_ADMIN,
SYS_PTRACE and SYS_NICE; it gives up all others. Without SYS_PTRACE or SYS_NICE it
does less, and status says what.`,
		Example: `  overlane run
  overlane run --config /etc/overlane/config.yaml`,
		Args:        cobra.NoArgs,
		Annotations: cli.Exits(map[int]string{cli.ExitOK: "told to stop, and everything is as it was"}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), file, verbose)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE`; without, the defaults")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "log also what was checked and left as it is")
	var keys [][2]string
	for _, k := range config.Keys() {
		text := k.About + "; " + k.Allowed
		if k.Default != "" {
			text += " (default: " + k.Default + ")"
		}
		keys = append(keys, [2]string{k.Name, text})
	}
	cli.Keys(cmd, keys)
	return cmd
}

func run(ctx context.Context, file string, verbose bool) error {
	if err := needRoot("run"); err != nil {
		return err
	}
	if err := privilege.Drop(privilege.Daemon()); err != nil {
		return err
	}
	if err := needCapabilities(); err != nil {
		return err
	}
	lowered := privilege.Lower()
	if lowered != nil && !errors.Is(lowered, privilege.ErrLinkedWithC) {
		return lowered
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := beModest(); err != nil {
		log.Debug("the daemon takes more of the cores than it has to", "reason", err)
	}
	opts, cfg, err := daemonOptions(file, log)
	if err != nil {
		return err
	}
	opts.Log = log
	var d *daemon.Daemon
	status := func(ctx context.Context) (control.Status, error) { return d.Snapshot(ctx) }
	metrics := measure.NewServer(cfg.Metrics, status, log)
	opts.Metrics = metrics.State
	d, err = daemon.Start(ctx, opts)
	if err != nil {
		return err
	}
	if err := tellPrivileges(log, lowered); err != nil {
		return errors.Join(err, d.Close())
	}
	return serve(ctx, d, metrics, file, log)
}

// serve answers requests and signals while the daemon runs.
func serve(ctx context.Context, d *daemon.Daemon, metrics *measure.Server, file string, log *slog.Logger) error {
	path, err := control.SocketPath(global.stateDir, d.Cookie())
	if err != nil {
		return errors.Join(err, d.Close())
	}
	srv, err := control.Listen(path, d)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()
	metrics.Start(ctx)
	go reloads(ctx, d, metrics, file, log)
	log.Info("running", "socket", path)
	notified(log, control.NotifyReady("running"))
	context.AfterFunc(ctx, func() { notified(log, control.NotifyStopping("restoring the node")) })
	err = d.Run(ctx)
	cancel()
	return errors.Join(err, <-served)
}

// reloads reads the configuration again at each SIGHUP. A file with a mistake
// changes nothing.
func reloads(ctx context.Context, d *daemon.Daemon, metrics *measure.Server, file string, log *slog.Logger) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		notified(log, control.NotifyReloading())
		opts, cfg, err := daemonOptions(file, log)
		if err == nil {
			err = metrics.Move(ctx, cfg.Metrics, func() error { return d.Reconfigure(ctx, opts) })
		}
		if err != nil {
			log.Error("configuration not taken over", "reason", err)
		} else {
			log.Info("configuration read again", "file", file)
		}
		notified(log, control.NotifyReady("running"))
	}
}

func notified(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("service manager not told", "reason", err)
	}
}

func modeOf(m config.Mode) governor.Mode {
	return map[config.Mode]governor.Mode{config.ModeAuto: governor.Auto, config.ModeOff: governor.Off, config.ModeForced: governor.Forced}[m]
}
