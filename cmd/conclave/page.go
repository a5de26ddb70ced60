package main

import (
	"context"

	"conclave/actors/gateway"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/doctor"
	"conclave/config"
	"conclave/stories"
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

// listStories returns the stories of this build with the command that runs each.
func listStories() (out []gateway.Story, err error) {
	list, err := stories.List()
	for _, s := range list {
		out = append(out, gateway.Story{File: s.File, ID: s.ID, Title: s.Title, Why: s.Why, Command: "conclave story run stories/" + s.File})
	}
	return out, err
}
