// SPDX-License-Identifier: Apache-2.0

//go:build resteer

package daemon

import (
	"context"

	"github.com/overlane/overlane/internal/mechanism/pipeline"
)

// Resteer makes each poll wish for another lane, for tests of the order guard.
func (d *Daemon) Resteer(ctx context.Context, on bool) error {
	return d.do(ctx, func() error {
		t := pipeline.Tuning
		t.Resteer = on
		return d.dp.SetTuning(t)
	})
}
