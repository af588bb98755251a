// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/scenario"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:         "overlane-lab",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "overlane lab"},
		Version:     cli.Version(version),
		Short:       "Testbed and benchmark, in network namespaces of its own",
		Long: `Builds two hosts in network namespaces, joined by a veth pair in place of a wire,
with a real VXLAN overlay and pods on top. It sends traffic through them and
compares the plain overlay with ways to make it faster.

Nothing outside of these namespaces is touched, except by "lab run --awake" while
it runs. Several labs can be up at once. "lab down" leaves nothing.`,
	}
	root.AddCommand(newUpCmd(), newDownCmd(), newRunCmd(), newStagesCmd(), newExecCmd(), cli.Man())
	cli.Setup(root)
	return root
}

func bedFlags(cmd *cobra.Command, o *bed.Options) {
	f := cmd.Flags()
	f.StringVar((*string)(&o.Topology), "topology", "bridged", "bridged, routed (no bridge, as flannel and Calico), nested (tunnel in a namespace of its own, as Docker), bare (hosts and wire, for a container engine to build its own on)")
	f.StringVar((*string)(&o.NIC), "nic", "thread", "how the wire's receiving end is polled: thread (a pinned NAPI thread) or softirq (on the sender's core)")
	f.StringVar((*string)(&o.NAPI), "napi", "nice", "how the wire's NAPI thread is scheduled, in every variant: nice (-20), fifo (real time, lowest priority), or own (nice, but as priority has it where that acts)")
	f.IntVar(&o.Queues, "queues", 1, "queues of the wire")
	f.BoolVar(&o.IPv6, "ipv6", false, "IPv6 inside of the overlay")
	labFlags(cmd, o)
}

func labFlags(cmd *cobra.Command, o *bed.Options) {
	cmd.Flags().StringVar(&o.Name, "name", bed.DefaultName, "name of the lab")
	cmd.Flags().StringVar(&o.StateDir, "state-dir", bed.DefaultStateDir, "where labs are recorded")
}

func newUpCmd() *cobra.Command {
	var o bed.Options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Build a lab and leave it up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Normalize(); err != nil {
				return cli.Usage("%w", err)
			}
			b, err := bed.Up(o)
			if err != nil {
				return err
			}
			defer b.Close()
			fmt.Fprintf(cmd.OutOrStdout(), "lab %s is up: %s\nhosts: %s\ntry: overlane lab exec cA -- ping -c 3 %s\n",
				b.Name, b.Options.String(), strings.Join(b.HostNames(), " "), b.Receiver().Pods[0].IP4)
			return nil
		},
	}
	bedFlags(cmd, &o)
	cmd.Flags().IntVar(&o.Pods, "pods", 1, "pods on each host")
	return cmd
}

func newDownCmd() *cobra.Command {
	var o bed.Options
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a lab: its processes, devices and namespaces",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if !all {
				return bed.Down(o.StateDir, o.Name)
			}
			names, err := bed.Names(o.StateDir)
			if err != nil {
				return err
			}
			var errs []error
			for _, n := range names {
				errs = append(errs, bed.Down(o.StateDir, n))
			}
			return errors.Join(errs...)
		},
	}
	labFlags(cmd, &o)
	cmd.Flags().BoolVar(&all, "all", false, "every lab that is recorded")
	return cmd
}

func newExecCmd() *cobra.Command {
	var o bed.Options
	cmd := &cobra.Command{
		Use:   "exec [flags] HOST -- COMMAND [ARG...]",
		Short: "Run a command in a host of a lab: hA, hB, cA, cB, ...",
		Long: `Runs a command in the network namespace of a host. Only the network is another
one: files, /sys and /proc are the machine's own, so that BPF pins stay in
sight; /sys/class/net therefore shows the machine's devices.`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			} else if strings.HasPrefix(argv[0], "-") {
				return cli.Usage("%s behind the host: flags go before it (see: overlane lab exec --help)", argv[0])
			}
			b, err := bed.Open(o.StateDir, o.Name)
			if err != nil {
				return err
			}
			defer b.Close()
			ns, err := b.Namespace(args[0])
			if err != nil {
				return cli.Usage("%w", err)
			}
			if len(argv) == 0 {
				return fmt.Errorf("run in %s: no command", args[0])
			}
			path, err := exec.LookPath(argv[0])
			if err != nil {
				return err
			}
			return ns.Do(func() error {
				if err := unix.Exec(path, argv, os.Environ()); err != nil {
					return fmt.Errorf("run %s: %w", path, err)
				}
				return nil
			})
		},
	}
	cmd.Flags().SetInterspersed(false)
	labFlags(cmd, &o)
	return cmd
}

func newRunCmd() *cobra.Command {
	var o bed.Options
	var cfg scenario.Config
	var seconds float64
	var reportDir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "run SCENARIO...",
		Short: "Compare variants under traffic, in interleaved rounds",
		Long:  "Runs the variants of each scenario in turn (A B C A B C ...), and prints a table.\nUses the lab of the given name if it is up, or else one of its own for the time.\n\nA daemon is measured when its status is steady, or after 30 s at most, which the row says then.\nFrom four cores on, what receives, applications, sender and generator have cores of their own.\n\n" + scenario.Catalogue(),
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			cfg.Length = time.Duration(seconds * float64(time.Second))
			var results []report.Result
			for _, name := range args {
				one := cfg
				one.Scenario = name
				res, err := runLab(ctx, cmd, o, one)
				results = append(results, res...)
				if !asJSON {
					for _, r := range res {
						if err := r.Table(cmd.OutOrStdout()); err != nil {
							return err
						}
						fmt.Fprintln(cmd.OutOrStdout())
					}
					if err := report.Sweeps(cmd.OutOrStdout(), res); err != nil {
						return err
					}
				}
				if err != nil {
					return err
				}
			}
			if reportDir != "" {
				if err := report.WriteDir(reportDir, results); err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "report in %s\n", reportDir)
			}
			switch {
			case !asJSON:
				return nil
			case len(results) == 1:
				return results[0].JSON(cmd.OutOrStdout())
			}
			return cli.JSON(cmd.OutOrStdout(), results)
		},
	}
	seriesFlags(cmd, &o, &cfg, &seconds, &asJSON)
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Variants, "variants", []string{"overlay", "host", "rps"}, "what to compare; all for everything that this wire can show")
	f.IntVar(&cfg.Rounds, "rounds", 5, "rounds; a figure counts from 25")
	f.IntVar(&cfg.Flows, "flows", 0, "number of flows (default: the scenario's own)")
	f.StringVar((*string)(&cfg.Rates), "rates", "equal", "shares of the flows: equal, skewed, shifting")
	f.Float64Var(&cfg.Offer, "offer", 1.05, "what UDP above saturation offers, in times what the host network takes: 1.05 to 4")
	f.IntVar(&cfg.Size, "size", 0, "bytes in a datagram, or written to a TCP connection at a time (default: the scenario's own)")
	f.Float64Var(&cfg.Load, "load", 0, "background load, as a share of saturation (default: the scenario's own)")
	f.BoolVar(&cfg.Awake, "awake", false, "keep the machine's cores from halting meanwhile (/dev/cpu_dma_latency): what saves work lets them halt, and to wake takes its time")
	f.BoolVar(&cfg.DaemonLog, "daemon-log", false, "print to standard error what each daemon logged, when it ends")
	f.IntVar(&cfg.Busy, "busy", 0, "of the cores that may take work and poll no queue, how many a further program keeps busy all the time")
	f.IntVar(&cfg.Batch, "batch", 0, "frames in a micro-flow, in variants that have them (default: overlane's own)")
	f.StringVar(&reportDir, "report", "", "write a page with plots, and the raw numbers, to this directory")
	return cmd
}

// seriesFlags are what all that measures has in common.
func seriesFlags(cmd *cobra.Command, o *bed.Options, cfg *scenario.Config, seconds *float64, asJSON *bool) {
	bedFlags(cmd, o)
	cmd.Flags().Float64Var(seconds, "seconds", 2, "length of one measurement")
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON instead of a table")
	cmd.Flags().Float64Var(&cfg.Slow, "slow", 1, "how many times slower this machine is than usual: traffic gets so much longer to become steady, and daemons to answer")
}

func newStagesCmd() *cobra.Command {
	var o bed.Options
	cfg := scenario.Config{Scenario: scenario.Stages}
	var seconds float64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stages",
		Short: "What each step of the receive path costs",
		Long: `Sends one flow of datagrams above saturation, and looks some 4000 times a second
at what the kernel does on each core: what each step from the NIC to the socket
costs, in ns for each datagram that gets there. Rounds are interleaved; shown are
medians.`,
		Example: "  overlane lab stages --variants overlay,pipeline\n  overlane lab stages --variants overlay,aggregate --size 1400",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			cfg.Length = time.Duration(seconds * float64(time.Second))
			results, err := runLab(ctx, cmd, o, cfg)
			for _, r := range results {
				show := func() error { return r.Stages(cmd.OutOrStdout(), scenario.StageNames()) }
				if asJSON {
					show = func() error { return r.JSON(cmd.OutOrStdout()) }
				}
				if err := show(); err != nil {
					return err
				}
			}
			return err
		},
	}
	seriesFlags(cmd, &o, &cfg, &seconds, &asJSON)
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Variants, "variants", []string{"overlay", "host"}, "what to compare (see: overlane lab run --help)")
	f.IntVar(&cfg.Rounds, "rounds", 5, "rounds")
	f.IntVar(&cfg.Flows, "flows", 0, "number of flows (default 1)")
	f.IntVar(&cfg.Size, "size", 0, "bytes in a datagram (default 64)")
	return cmd
}

// untilSignal ends with what asks the program to end, so that the lab of a run is taken down: also where the terminal
// is closed, or the reader of a pipe has gone.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ends := []os.Signal{os.Interrupt, unix.SIGTERM, unix.SIGPIPE}
	if !signal.Ignored(unix.SIGHUP) { // by nohup: it goes on
		ends = append(ends, unix.SIGHUP)
	}
	return signal.NotifyContext(ctx, ends...)
}

// runLab runs one scenario in the lab that is up, or in a temporary one.
func runLab(ctx context.Context, cmd *cobra.Command, o bed.Options, cfg scenario.Config) (_ []report.Result, err error) {
	cfg.Log, cfg.Command = cmd.ErrOrStderr(), commandLine(cmd, cfg.Scenario)
	if cfg.Binary, err = product(); err != nil {
		return nil, err
	}
	o.Pods = cfg.Pods()
	if err := o.Normalize(); err != nil {
		return nil, cli.Usage("%w", err)
	}
	b, err := bed.Open(o.StateDir, o.Name)
	switch {
	case err == nil:
		defer b.Close()
		for _, flag := range []string{"topology", "nic", "napi", "queues", "ipv6"} {
			if cmd.Flags().Changed(flag) {
				return nil, cli.Usage("lab %s is up as it is (%s): leave out --%s, or end it with overlane lab down --name %s",
					b.Name, b.Options.String(), flag, b.Name)
			}
		}
	case errors.Is(err, bed.ErrNotUp) && !cmd.Flags().Changed("name"):
		o.Name = "run" + strconv.Itoa(os.Getpid())
		if err := cfg.Normalize(o.NIC); err != nil {
			return nil, cli.Usage("%w", err)
		}
		if b, err = bed.Up(o); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, b.Down()) }()
	default:
		return nil, err
	}
	if err := cfg.Normalize(b.NIC); err != nil {
		return nil, cli.Usage("%w", err)
	}
	res, err := scenario.Run(ctx, b, cfg)
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted; what was complete is shown")
	}
	return res, err
}

// product finds the program whose lab this is.
func product() (string, error) {
	path, dir, err := cli.Beside("overlane")
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("the lab measures the program overlane, which is neither in %s nor in PATH: make build builds both", dir)
	}
	return path, err
}

// commandLine is what to type to get one scenario's series again.
func commandLine(cmd *cobra.Command, name string) string {
	words := []string{"overlane", "lab", cmd.Name()}
	if name != cmd.Name() {
		words = append(words, name)
	}
	for _, flag := range []string{"variants", "rounds", "seconds", "nic", "napi", "queues", "topology", "ipv6", "flows", "rates", "offer", "size", "load", "busy", "batch", "awake", "slow"} {
		f := cmd.Flags().Lookup(flag)
		if f == nil || !f.Changed {
			continue
		}
		words = append(words, "--"+flag)
		if f.Value.Type() != "bool" {
			words = append(words, strings.Trim(f.Value.String(), "[]"))
		}
	}
	return strings.Join(words, " ")
}
