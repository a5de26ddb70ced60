package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"

	"conclave/subjects"
)

// A call whose change can be undone is not asked about. That a call can be undone is a fact: the build says that the
// tool keeps the state before (Keeps), and the tool's process confirmed that it has it for this call ([Call].Kept). No
// manifest and no announcement can say either.

// Kept is what a keeper of the build confirmed about the state before a call.
type Kept struct {
	subjects.ChangeRef
	MayPass bool // the manifest lets what can be undone run without a question
	// Work is the working folder of the question when the call has no other folder; "" = it has others, has none, or a
	// link leads to a folder of another name
	Work string
	// Own is the working folder of the question, whatever other folders the call has; "" = as for Work
	Own string
}

// undoableEffects are the effects that the kept state takes back, and those that change nothing.
var undoableEffects = []Effect{Mutate, ReadsPrivate, ReadsUntrusted}

// IsUndoable reports whether nobody needs to be asked about the call, because the user can take it back: the state
// before is kept, the tool has no other effect, but for programs that are confined ([Call.isConfined]), and what it
// changes gains no power later, see [Call.obeyedFile]. It is false for the question of a client, who is not the one who
// would take it back, and for one that is unknown.
func (c Call) IsUndoable() bool {
	if c.Kept == nil || !c.Kept.MayPass || len(c.Kept.Files) == 0 || c.Flow == nil {
		return false
	}
	effects := Declare(undoableEffects...)
	if c.isConfined() {
		effects = effects.With(Exec)
	}
	q := c.Flow.findQuestion(c.Query)
	return q != nil && q.Client == "" && c.Tool.Known && c.Tool.Keeps && c.Tool.Effects.Declared() &&
		effects.Includes(c.Tool.Effects) && c.obeyedFile() == ""
}

// isConfined reports whether the call runs a program that can change nothing but the working folder of its question,
// which is kept: the build says that the tool runs programs only in the sandbox, and the call has no other folder. A
// file there gains no power later, unless the folder is in one whose files do.
func (c Call) isConfined() bool {
	return c.Kept != nil && c.Kept.Work != "" && slices.Equal(c.Kept.Files, []string{c.Kept.Work}) &&
		c.Tool.Sandboxed && len(c.Tool.Paths) == 0 && !isObeyed(path.Join(path.Dir(c.Kept.Work), "file"))
}

// isOwn reports whether a file is in the working folder of the call's question. Nothing there gains power later: only
// confined programs of that question run in it, and what they could put there is the same.
func (c Call) isOwn(file string) bool {
	return c.Kept != nil && c.Kept.Own != "" && strings.HasPrefix(path.Clean(file), c.Kept.Own+"/") &&
		!isObeyed(path.Join(path.Dir(c.Kept.Own), "file"))
}

// obeyedFile returns a file of the call that something runs, trusts or sends later without the user starting it, "" for
// none, and words for a file when the arguments cannot be read. The files are those that the keeper named, and the path
// arguments, without those of [Call.isOwn]; a confined program has none.
func (c Call) obeyedFile() string {
	args, err := flattenArguments(c)
	switch {
	case err != nil:
		return "a file in arguments that cannot be read"
	case c.isConfined():
		return ""
	}
	var files []string
	if c.Kept != nil {
		files = slices.DeleteFunc(slices.Clone(c.Kept.Files), c.isOwn)
		if c.Kept.Runs && len(files) > 0 {
			return files[0]
		}
	}
	for _, a := range args {
		if slices.Contains(c.Tool.Paths, a.name) && !c.isOwn(a.text) {
			files = append(files, a.text)
		}
	}
	for _, f := range files {
		if isObeyed(f) {
			return f
		}
	}
	return ""
}

// obeyedFolders are folders, by a part of a path in lower case, whose files something runs, trusts or sends later.
var obeyedFolders = []string{
	"bin", "sbin", "cron.d", "cron.daily", "cron.hourly", "cron.monthly", "cron.weekly", "crontabs", "autostart",
	"systemd", "init.d", "launchagents", "launchdaemons", "site-packages", "node_modules", "vendor", "skills", "hooks",
	"dotfiles", "public", "public_html", "www", "sync", "com~apple~clouddocs", "mobile documents", "cloudstorage",
}

// obeyedBeginnings begin the names of folders whose files are sent elsewhere, and of start-up files in a collection of
// them.
var obeyedBeginnings = []string{
	".", "dot_", "dot-", "dropbox", "nextcloud", "owncloud", "onedrive", "google drive", "googledrive",
}

// obeyedRoots are folders of the system.
var obeyedRoots = []string{
	"/etc/", "/usr/", "/opt/", "/boot/", "/lib/", "/lib64/", "/library/", "/srv/", "/system/", "/applications/",
	"/var/spool/", "/var/opt/", "/var/srv/", "/var/usrlocal/",
}

// obeyedNames are files, in lower case, that build tools, CI and agents run or obey. Those whose names begin with a dot
// are obeyed anyway.
var obeyedNames = []string{
	"makefile", "gnumakefile", "justfile", "rakefile", "taskfile.yml", "taskfile.yaml", "cmakelists.txt",
	"meson.build", "build.xml", "pom.xml", "build.rs", "build.zig", "sconstruct", "wscript", "bsdmakefile",
	"dockerfile", "containerfile", "vagrantfile", "procfile", "compose.yaml", "compose.yml", "docker-compose.yml",
	"docker-compose.yaml", "jenkinsfile", "azure-pipelines.yml", "bitbucket-pipelines.yml", "appveyor.yml",
	"cloudbuild.yaml", "package.json", "deno.json", "composer.json", "gemfile", "cargo.toml", "go.work", "setup.py",
	"setup.cfg", "pyproject.toml", "conftest.py", "tox.ini", "noxfile.py", "sitecustomize.py", "usercustomize.py",
	"pip.conf", "crontab", "authorized_keys", "known_hosts", "sudoers",
	"agents.md", "claude.md", "gemini.md", "skill.md", "copilot-instructions.md", "codeowners",
	"bashrc", "bash_profile", "profile", "zshrc", "zshenv", "zprofile", "vimrc", "gitconfig", "tmux.conf", "xinitrc",
	"init.el", "init.lua", "go.mod", "requirements.txt", "pipfile", "pytest.ini", "conanfile.py", "podfile",
	"package.swift", "build", "workspace", "compose.override.yaml", "compose.override.yml",
	"docker-compose.override.yml", "docker-compose.override.yaml", "gulpfile.js", "gruntfile.js", "package-lock.json",
	"pnpm-lock.yaml", "yarn.lock", "cargo.lock", "directory.build.props", "directory.build.targets",
}

// obeyedEndings end the names of such files.
var obeyedEndings = []string{
	".service", ".timer", ".socket", ".desktop", ".plist", ".pth", ".code-workspace", ".gradle", ".gradle.kts", ".mk",
	".cmake", ".gyp", ".bazel", ".bzl", ".command", ".bat", ".cmd", ".ps1", ".nix", ".tf", ".csproj", ".dockerfile",
	".config.js", ".config.cjs", ".config.mjs", ".config.ts",
}

// isObeyed reports whether something runs, trusts or sends the file at p later, although it is only a file: files and
// folders whose name begins with a dot (start-up files, .git, .ssh, .config, .github), build, CI and agent files,
// folders of programs, of the system, and those that are shared. Case and forms of letters are ignored, as some file
// systems do.
func isObeyed(p string) bool {
	p = strings.ToLower(norm.NFKC.String(path.Clean(p)))
	p = strings.TrimPrefix(p, "/private") // macOS: /etc is a link
	parts := strings.Split(strings.Trim(p, "/"), "/")
	name := parts[len(parts)-1]
	isPart := func(part string) bool {
		return slices.Contains(obeyedFolders, part) || slices.ContainsFunc(obeyedBeginnings, func(begin string) bool {
			return strings.HasPrefix(part, begin)
		})
	}
	return slices.ContainsFunc(parts, isPart) || slices.Contains(obeyedNames, name) ||
		slices.ContainsFunc(obeyedEndings, func(end string) bool { return strings.HasSuffix(name, end) }) ||
		slices.ContainsFunc(obeyedRoots, func(root string) bool { return strings.HasPrefix(p, root) })
}

// judgeObeyed asks about a change of a file that gains power later, whatever the question says. Such an approval is
// never remembered.
func judgeObeyed(c Call) []Verdict {
	file := c.obeyedFile()
	if file == "" || !c.Tool.Has(Mutate) {
		return nil
	}
	return []Verdict{Ask(ruleObeyed, c.After()+describeObeyed(c.Tool.Name, file))}
}

// describeObeyed is the reason to ask about a change of a file that gains power later.
func describeObeyed(tool, file string) string {
	return fmt.Sprintf("%s would change %s, which something runs, trusts or shares later", tool, quote(file))
}
