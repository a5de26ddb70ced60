package tools

import (
	"context"
	_ "embed"
	"encoding/json"
	"strings"
	"time"

	"conclave/pkg/policy"
	"conclave/subjects"
)

//go:embed package_install.md
var packageInstallText string

// noEgressProxy is why package_install is disabled: programs have no network, and the proxy that would let a package manager reach
// its registry alone does not exist.
const noEgressProxy = "programs have no network, and this build has no proxy to package registries; install the packages on the machine, or put them into the working folder"

// packageInstall returns the tool package_install. It is disabled in this build, so that a call is denied with the reason.
func packageInstall() *Tool {
	return &Tool{
		disabled: noEgressProxy,
		schema: subjects.ToolSchema{
			Name: "package_install", Version: Version, Description: strings.TrimSpace(packageInstallText),
			Parameters: json.RawMessage(`{"type":"object","properties":{` +
				`"manager":{"type":"string","enum":["pip","npm","go"],"description":"the package manager"},` +
				`"packages":{"type":"array","items":{"type":"string","minLength":1,"maxLength":200},"minItems":1,"maxItems":32,"description":"names of packages, with versions as the manager writes them"}},` +
				`"required":["manager","packages"],"additionalProperties":false}`),
		},
		facts: policy.Tool{
			Name: "package_install", Zone: "tools", Known: true, Act: policy.ActExecute,
			Args:    policy.Args{"manager": {Role: policy.RoleOption, Values: []string{"pip", "npm", "go"}}}, // packages are chosen by the user
			Effects: policy.Declare(policy.Exec, policy.Mutate, policy.Egress, policy.ReadsUntrusted), Timeout: time.Minute, MaxArgs: 16 << 10,
		},
		run: func(context.Context, Call) (Output, error) { return Output{}, Failure(noEgressProxy) },
	}
}
