package main

import (
	"context"

	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/doctor"
	"conclave/config"
	"conclave/subjects"
)

// checkInstallation returns the function with which the page runs the checks of conclave doctor.
func checkInstallation(a *cli.App) func(context.Context) []subjects.DoctorCheck {
	return func(ctx context.Context) (out []subjects.DoctorCheck) {
		cfg, err := config.Load(a.Home.Config)
		for _, c := range doctor.Run(ctx, a, cfg, err) {
			out = append(out, subjects.DoctorCheck(c))
		}
		return out
	}
}
