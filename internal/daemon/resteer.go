// SPDX-License-Identifier: Apache-2.0

//go:build resteer

package daemon

import (
	"context"
	"errors"

	"github.com/overlane/overlane/internal/mechanism/pipeline"
)

// Resteer makes each poll wish for another lane, for tests of the order guard.
func (d *Daemon) Resteer(ctx context.Context, on bool) error {
	var err error
	e := d.do(ctx, func() {
		t := pipeline.Tuning
		t.Resteer = on
		err = d.dp.SetTuning(t)
	})
	return errors.Join(e, err)
}
