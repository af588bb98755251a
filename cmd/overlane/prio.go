// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/rules"
)

func newPrioCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prio",
		Short: "Let flows overtake bulk traffic: rules at run time",
		Long: `A rule gives flows a class. Flows of the class latency overtake those of the class
bulk. The first rule that fits a flow decides: first the rules that were added by
"prio add", then those of the configuration. A flow that no rule names is bulk,
unless priority.classify is auto. All fields of a rule have to fit. Port and cidr
may be on either side of a flow.

A rule that was added is in force when the command returns, or the command says
why it is not. It stays until the daemon ends. For good, write it into the
configuration (priority.rules).`,
		Example: `  overlane prio add memcached proto tcp port 11211
  overlane prio add batch cidr 10.32.7.0/24 class bulk
  overlane prio list
  overlane prio del batch`,
		Args:        cobra.NoArgs,
		Annotations: prioExits(),
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPrioAddCmd(), newPrioDelCmd(), newPrioListCmd())
	return cmd
}

// prioExits are the codes of all three.
func prioExits() map[string]string {
	return cli.Exits(map[int]string{cli.ExitFailure: "no daemon runs, or it refuses", cli.ExitUnsupported: ""})
}

func newPrioAddCmd() *cobra.Command {
	var fields []string
	for _, f := range rules.Fields[1:] {
		fields = append(fields, fmt.Sprintf("  %-6s %s", f.Name, f.Allowed))
	}
	return &cobra.Command{
		Use:         "add NAME FIELD VALUE...",
		Short:       "Add a rule behind those that were added before",
		Long:        "Adds a rule. Its fields:\n\n" + strings.Join(fields, "\n"),
		Example:     "  overlane prio add memcached proto tcp port 11211",
		Args:        cobra.MinimumNArgs(1),
		Annotations: prioExits(),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := ruleOf(args)
			if err != nil {
				return cli.Usage("rule: %w", err)
			}
			return withDaemon("prio add", func(c *control.Client) error {
				if err := c.AddRule(cmd.Context(), r); err != nil {
					return err
				}
				// The rule is there, whatever the daemon says then.
				st, err := c.Status(cmd.Context())
				if m := st.Mechanism("priority"); err == nil && m.Name != "" && m.State != control.Active {
					cmd.PrintErrf("the rule is kept and has no effect: priority is %s: %s\n", m.State, m.Reason)
				}
				return nil
			})
		},
	}
}

// ruleOf reads a rule from words: its name, then fields with their values.
func ruleOf(words []string) (r rules.Rule, err error) {
	if err := r.Set("name", words[0]); err != nil {
		return r, err
	}
	seen := map[string]bool{}
	for words = words[1:]; len(words) > 0; words = words[2:] {
		if seen[words[0]] {
			return r, fmt.Errorf("%s: appears twice", words[0])
		}
		seen[words[0]] = true
		value := ""
		if len(words) > 1 {
			value = words[1]
		}
		if err := r.Set(words[0], value); err != nil {
			return r, err
		}
	}
	return r, r.Finish()
}

func newPrioDelCmd() *cobra.Command {
	return &cobra.Command{
		Use:         "del NAME",
		Short:       "Take away a rule that was added",
		Example:     "  overlane prio del memcached",
		Args:        cobra.ExactArgs(1),
		Annotations: prioExits(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withDaemon("prio del", func(c *control.Client) error { return c.DelRule(cmd.Context(), args[0]) })
		},
	}
}

func newPrioListCmd() *cobra.Command {
	return &cobra.Command{
		Use:         "list",
		Short:       "The rules, in their order",
		Args:        cobra.NoArgs,
		Annotations: prioExits(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withDaemon("prio list", func(c *control.Client) error {
				st, err := c.Status(cmd.Context())
				if err != nil {
					return err
				}
				if st.Reason != "" && len(st.Rules) == 0 {
					return errors.New(st.Reason)
				}
				if global.json {
					return cli.JSON(cmd.OutOrStdout(), st.Rules)
				}
				s := newScreen(cmd.OutOrStdout())
				if len(st.Rules) == 0 {
					s.line(cell{"no rules", plain})
					return nil
				}
				s.table([]string{"", "RULE", "CLASS", "FROM", ">PACKETS", "FITS"}, ruleRows(st.Rules))
				return nil
			})
		},
	}
}

func ruleRows(list []control.Rule) (rows [][]cell) {
	for i, r := range list {
		from, class := "file", cell{string(r.Class), plain}
		if r.Added {
			from = "added"
		}
		if r.Class == rules.Latency {
			class.style = green
		}
		rows = append(rows, []cell{{fmt.Sprint(i + 1), dim}, {r.Name, bold}, class, {from, plain}, {count(r.Packets), plain}, {r.Fits(), plain}})
	}
	return rows
}

func sparseRow(f control.SparseFlow) []cell {
	return []cell{{f.Flow, bold}, {fmt.Sprint(f.Core), plain}, {f.Reason, plain}}
}
