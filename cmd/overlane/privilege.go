// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/privilege"
	"github.com/overlane/overlane/internal/probe"
	"github.com/overlane/overlane/internal/shell"
)

// lacking is what the daemon would need and this process was not given.
func lacking() ([]privilege.Need, error) {
	held, err := privilege.Held()
	return privilege.Missing(held), err
}

// needCapabilities says what there is no daemon without, nil where all of it was given.
func needCapabilities() error {
	list, err := lacking()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(n privilege.Need) bool { return n.Without != "" })
	if len(list) == 0 {
		return nil
	}
	var why []string
	for _, n := range list {
		why = append(why, whyNeeded(n))
	}
	return cli.Unsupported(strings.Join(why, "; "), privilege.Grant(list))
}

func whyNeeded(n privilege.Need) string {
	return fmt.Sprintf("%s is missing, by which the daemon %s", n, n.For)
}

// tellPrivileges says what is otherwise than it should be; lowered is why no capability could be
// lowered, nil if it could.
func tellPrivileges(log *slog.Logger, lowered error) error {
	if lowered != nil {
		log.Warn("all capabilities are in force all the time", "reason", lowered)
	}
	held, err := privilege.Held()
	if lowered == nil && err == nil && privilege.Everyday(held).Has(unix.CAP_SYS_ADMIN) {
		log.Warn("CAP_SYS_ADMIN is in force all the time", "reason", "CAP_BPF and CAP_PERFMON were not given, and the kernel takes it for them; Docker before 23 does not know them")
	}
	for _, n := range privilege.Missing(held) {
		reason, remedy := without(n)
		log.Warn("not all is done here", "reason", reason, "remedy", remedy)
	}
	return err
}

// without is a lower tier's reason and remedy.
func without(n privilege.Need) (reason string, remedy shell.Line) {
	return n.Without + ": " + whyNeeded(n), privilege.Grant([]privilege.Need{n})
}

// noPriority says why priority does nothing for want of a capability, nil if it lacks none.
func (l nodeState) noPriority() error {
	for _, n := range l.lacking {
		if n.Capability == unix.CAP_SYS_NICE {
			reason, remedy := without(n)
			return errors.New(reason + "; mend it with: " + remedy.String())
		}
	}
	return nil
}

// tell says in the tiers what they have to do without.
func (l *nodeState) tell() {
	for _, n := range l.lacking {
		if n.Capability == unix.CAP_SYS_PTRACE && len(l.tiers) > 0 {
			l.tiers[0].Reason, l.tiers[0].Remedy = without(n)
		}
	}
}

// mechanisms are those that the features, and the capabilities that were given, allow.
func (l nodeState) mechanisms() []probe.Mechanism {
	list := probe.Mechanisms(l.features)
	for _, n := range l.lacking {
		for i, m := range list {
			if n.Capability == unix.CAP_SYS_NICE && m.Name == "priority" && m.Possible {
				list[i].Possible = false
				list[i].Reason, list[i].Remedy = without(n)
			}
		}
	}
	return list
}

// needRoot is asked before anything is opened, so that a user does not have to
// guess from whichever file was the first to be closed to him.
func needRoot(verb string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return fmt.Errorf("%s needs root: sudo overlane %s", verb, verb)
}
