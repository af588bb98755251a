// SPDX-License-Identifier: Apache-2.0

package parser

import "testing"

func TestCandidatesDifferAndSpreadEvenly(t *testing.T) {
	run(t, compile(t, "check_pipeline.c", sanitizers))
}
