package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"conclave/cmd/conclave/internal/cli"
)

// serviceName is the name of the systemd unit.
const serviceName = "conclave.service"

// serviceCommand installs conclave up as a systemd service of the user.
func serviceCommand(a *cli.App) *cobra.Command {
	sub := func(use, short, example string, run func(ctx context.Context) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Long: short + ".", Example: example, Args: cli.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) },
		}
	}
	noStart := false
	install := sub("install", "Write the unit, and enable and start it", "  conclave service install",
		func(ctx context.Context) error { return installService(ctx, a, !noStart) })
	install.Flags().BoolVar(&noStart, "no-start", false, "write the unit only")
	return cli.Group("service", "Run conclave as a systemd service of your user",
		`Runs conclave up as a systemd service of your user, with this program and these folders: it starts
when you log in, and again when it fails. To keep it running after you log out: loginctl
enable-linger. Its log: journalctl --user -u conclave. Where there is no systemd, print shows the
command for another supervisor.`,
		`  conclave service print
  conclave service install
  conclave service uninstall`,
		install,
		sub("uninstall", "Stop and remove the service; all data stays", "  conclave service uninstall",
			func(ctx context.Context) error { return uninstallService(ctx, a) }),
		sub("print", "Print the unit", "  conclave service print > conclave.service", func(context.Context) error {
			unit, err := serviceUnit(a)
			return a.Print(map[string]string{"unit": unit}, err, func() { fmt.Fprint(a.Out, unit) })
		}))
}

// serviceUnit is the unit for this program and these folders.
func serviceUnit(a *cli.App) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	words := []string{self, "up", "--data", a.Home.Data, "--config", a.Home.Config}
	for i, w := range words {
		if strings.ContainsFunc(w, unicode.IsControl) || !utf8.ValidString(w) {
			return "", cli.Usage("a unit cannot have the path %q: use one without line breaks and other control "+
				"characters", w)
		}
		words[i] = `"` + unitEscapes.Replace(w) + `"`
	}
	return fmt.Sprintf(`[Unit]
Description=Conclave, a local assistant
Documentation=man:conclave(1)
After=network.target

[Service]
ExecStart=%s
Restart=on-failure
RestartSec=2
TimeoutStopSec=90
UMask=0077

[Install]
WantedBy=default.target
`, strings.Join(words, " ")), nil
}

// unitEscapes escapes what systemd expands between the quotes of a word.
var unitEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$")

// servicePath is where systemd reads units of the user.
func servicePath() (string, error) {
	folder, err := os.UserConfigDir()
	return filepath.Join(folder, "systemd", "user", serviceName), err
}

// canInstallService reports whether systemd runs services of the user and the unit is not installed.
func canInstallService(ctx context.Context) bool {
	file, err := servicePath()
	if err != nil {
		return false
	}
	if _, err := os.Stat(file); err == nil {
		return false
	}
	return systemctl(ctx, "show-environment") == nil
}

// installService writes the unit, and with start enables and starts it.
func installService(ctx context.Context, a *cli.App, start bool) error {
	unit, err := serviceUnit(a)
	if err != nil {
		return err
	}
	file, err := servicePath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(unit), 0o644); err != nil {
		return err
	}
	a.Say("wrote %s", file)
	if !start {
		return nil
	}
	if err := systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if err := systemctl(ctx, "enable", "--now", serviceName); err != nil {
		return err
	}
	a.Say("conclave runs as a service; its log: journalctl --user -u conclave")
	return nil
}

// uninstallService stops the service and removes its unit. That there is none is no error.
func uninstallService(ctx context.Context, a *cli.App) error {
	file, err := servicePath()
	if err != nil {
		return err
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		a.Say("no service is installed")
		return nil
	}
	if err := systemctl(ctx, "disable", "--now", serviceName); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil {
		return err
	}
	a.Say("removed %s; your data is untouched", file)
	return systemctl(ctx, "daemon-reload")
}

// systemctl runs systemctl --user.
func systemctl(ctx context.Context, v ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", append([]string{"--user"}, v...)...).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return cli.Fail(cli.ExitFailed, "there is no systemd here", "run the command of conclave service print with "+
			"your own supervisor")
	case err != nil:
		return cli.Fail(cli.ExitFailed, "systemctl --user "+strings.Join(v, " ")+": "+string(bytes.TrimSpace(out)),
			"log in as the user who owns the service, and try again")
	}
	return nil
}
