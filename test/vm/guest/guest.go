// SPDX-License-Identifier: Apache-2.0

// Package guest is what the two sides of a virtual machine agree on: the plan
// that its init finds in the root image, and the records that init writes to
// the second serial port. (The first one is the kernel's console: what it says
// in between would break any framing.)
package guest

// Files of the root image.
const (
	PlanFile  = "plan.json"
	ModuleDir = "modules"
	TestDir   = "tests"
)

// Products are files in /bin by the variables that tell tests where to find them.
var Products = map[string]string{
	"OVERLANE_TEST_PROGRAM":         "overlane",
	"OVERLANE_TEST_PROGRAM_FAULTS":  "overlane_faults",
	"OVERLANE_TEST_PROGRAM_NEXT":    "overlane_next",
	"OVERLANE_TEST_PROGRAM_RESTEER": "overlane_resteer",
}

// Plan is what init does, in this order.
type Plan struct {
	// Modules are files in ModuleDir, each behind those that it needs.
	Modules []string `json:"modules"`
	Runs    []Run    `json:"runs"`
}

// Run is one test binary with its arguments.
type Run struct {
	Name string   `json:"name"` // of the file in TestDir
	Args []string `json:"args"`
}

// Record is one line of the second serial port. It is either output of a run,
// or its end, or, with Run empty, what init has to say about itself.
type Record struct {
	Run    string `json:"run,omitempty"`
	Output string `json:"output,omitempty"`
	Ended  bool   `json:"ended,omitempty"`
	// Exit is the exit status of a run that has ended, -1 if a signal ended it
	// or it could not be started.
	Exit  int    `json:"exit,omitempty"`
	Error string `json:"error,omitempty"`
	// Done says that the plan was carried out to its end.
	Done bool `json:"done,omitempty"`
}
