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

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/governor"
)

func newRunCmd() *cobra.Command {
	var file string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make this node's overlay fast, until told to stop",
		Long: `Run finds the underlays of its network namespace, the tunnels over them and
the pods behind, follows their coming and going, and measures. When receive
processing of overlay packets saturates a core, it spreads the stages of each
flow over the configured cores; when that does not pay any more, it steps back.

Until then nothing on any device is changed. When it ends, by whatever cause,
everything is as it was.`,
		Example: `  overlane run
  overlane run --config /etc/overlane/config.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), file, verbose)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE`; without, the defaults")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "log every setting that is changed")
	return cmd
}

func run(ctx context.Context, file string, verbose bool) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	cfg := config.Default()
	if file != "" {
		var err error
		if cfg, err = config.Load(file); err != nil {
			return err
		}
	}
	opts, err := daemonOptions(ctx, cfg)
	if err != nil {
		return err
	}
	opts.Log = log
	d, err := daemon.Start(ctx, opts)
	if err != nil {
		return err
	}
	return serve(ctx, d, opts, log)
}

// serve answers requests while the daemon runs.
func serve(ctx context.Context, d *daemon.Daemon, opts daemon.Options, log *slog.Logger) error {
	path, err := control.SocketPath(opts.StateDir, d.Cookie())
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
	log.Info("running", "socket", path)
	err = d.Run(ctx)
	cancel()
	return errors.Join(err, <-served)
}

func modeOf(m config.Mode) governor.Mode {
	switch m {
	case config.ModeOff:
		return governor.Off
	case config.ModeForced:
		return governor.Forced
	}
	return governor.Auto
}
