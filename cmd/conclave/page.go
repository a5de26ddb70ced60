package main

import (
	"context"
	"log/slog"

	"conclave/actors/gateway"
	"conclave/cmd/conclave/internal/cli"
	"conclave/cmd/conclave/internal/doctor"
	"conclave/config"
	"conclave/pkg/story"
	"conclave/stories"
	"conclave/stories/harness"
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

// runShippedStory runs a story of this build for the page, on a system of its own. The scripted model answers.
func runShippedStory(ctx context.Context, file string, observe func(story.Progress)) story.Result {
	data, err := stories.Read(file)
	if err != nil {
		return story.Result{Story: file, File: file, Failures: []story.Failure{{Line: 1, Text: err.Error()}}}
	}
	s, err := story.Parse(data, "stories/"+file)
	if err != nil {
		return story.Result{Story: file, File: file, Failures: []story.Failure{{Line: 1, Text: err.Error()}}}
	}
	return harness.RunStory(ctx, s, harness.Options{Log: slog.New(slog.DiscardHandler)},
		story.Options{Observe: observe})
}

// listStories returns the stories of this build with the command that runs each.
func listStories() (out []gateway.Story, err error) {
	list, err := stories.List()
	for _, s := range list {
		out = append(out, gateway.Story{
			File: s.File, ID: s.ID, Title: s.Title, Why: s.Why,
			Command: "conclave story run stories/" + s.File,
		})
	}
	return out, err
}
