package broker

import (
	"cmp"

	"conclave/actors/broker/internal/stage"
	"conclave/pkg/firewall"
	"conclave/pkg/policy"
	"conclave/pkg/text"
	"conclave/subjects"
)

// workFolder returns the working folder of the call's question, or of the call itself when it has no question; ""
// without a workspace.
func (b *Broker) workFolder(r stage.Received) string {
	return policy.WorkFolder(b.cfg.Workspace, r.Session, cmp.Or(r.Query, r.ID))
}

// folderRules returns the folders that the tool of a call may access, nil for a tool without files.
func (b *Broker) folderRules(j *stage.Judged) *subjects.FolderRules {
	if !j.Facts().Tool.UsesFolders() {
		return nil
	}
	return j.Rules().Chain.FolderRules(j.Facts(), b.workFolder(j.Received()))
}

// filterArtifacts returns the paths that are in the folders of the call and are plain text without secrets, at most
// maxArtifacts.
func filterArtifacts(paths []string, folders *subjects.FolderRules) (out []string) {
	for _, p := range paths {
		_, secrets := firewall.Redact(p)
		if len(out) < maxArtifacts && policy.IsInAllowedFolder(p, folders) && p == text.OneLine(p, maxLink) &&
			secrets == 0 {
			out = append(out, p)
		}
	}
	return out
}

// maxArtifacts bounds the files in one result.
const maxArtifacts = 100
