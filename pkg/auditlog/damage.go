package auditlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/file"
)

// foundDamage is the content of the file damageFile in a folder of damaged files.
type foundDamage struct {
	Time   time.Time      `json:"time"` // of the start that found it
	Damage []audit.Damage `json:"damage"`
}

const damageFile = "damage.json"

// OpenFiles opens the files of the audit log before a server starts on them; none means that there is no log. It keeps
// damaged files in a new folder per stream, because the server would cut off what it cannot read. The readable records
// stay in the log; [VerifySource] names the damage until the log is rotated. damage is what was found, and folder where
// its files are, the last of several. The caller must hold the lock of the data folder.
func OpenFiles(home bus.Home) (files []*bus.AuditFiles, folder string, damage []audit.Damage, err error) {
	files, err = bus.OpenAuditLog(home)
	if errors.Is(err, bus.ErrNoAudit) {
		return nil, "", nil, nil
	}
	if err != nil {
		return nil, "", nil, err
	}
	now := time.Now().UTC()
	for _, f := range files {
		found := f.Damage()
		if len(found) == 0 {
			continue
		}
		damage = append(damage, found...)
		folder = filepath.Join(home.Damaged(), now.Format("20060102T150405.000000Z")+"-"+f.Stream())
		if err := f.SetDamageAside(folder); err != nil {
			return nil, "", damage, err
		}
		if err := file.ReplaceJSON(filepath.Join(folder, damageFile), foundDamage{now, found}); err != nil {
			return nil, folder, damage, fmt.Errorf("setting damaged files aside: %w", err)
		}
	}
	if len(damage) > 0 {
		files, err = bus.OpenAuditLog(home)
	}
	return files, folder, damage, err
}

// addEarlierDamage adds the damage that earlier starts found in the current log to the report.
func addEarlierDamage(home bus.Home, rep *audit.Report) {
	folders, err := os.ReadDir(home.Damaged())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		rep.AddProblem(audit.Problem{Text: fmt.Sprintf("the damaged files of the audit log cannot be listed: %v", err)})
	}
	for _, e := range folders {
		folder := filepath.Join(home.Damaged(), e.Name())
		var found foundDamage
		b, err := os.ReadFile(filepath.Join(folder, damageFile))
		if err == nil {
			err = json.Unmarshal(b, &found)
		}
		if err != nil {
			rep.AddProblem(audit.Problem{Text: fmt.Sprintf("damaged files of the audit log are kept in %s, and their "+
				"description cannot be read: %v", folder, err)})
			continue
		}
		for _, d := range found.Damage {
			rep.Damage = append(rep.Damage, d)
			if !d.Tail {
				rep.AddProblem(audit.Problem{Text: fmt.Sprintf("damage found at the start of %s: %s; the file is "+
					"kept in %s", found.Time.Format(time.DateTime), d, folder)})
			}
		}
	}
}
