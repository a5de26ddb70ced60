package backup

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"conclave/pkg/audit"
	"conclave/pkg/bus"
	"conclave/pkg/damage"
	"conclave/pkg/file"
	"conclave/subjects"
)

// RestoreStreams takes back what the scheduled backups in folder still have of the damaged streams of home, each from
// the newest in which it is undamaged, and says so in the reports. The audit log is left out, and streams that are not
// restorable: what they permit may have been revoked since. For the state of home see [bus.StreamDamage.Restore]. An
// error means that ctx ended.
func RestoreStreams(ctx context.Context, home bus.Home, folder string, found []bus.StreamDamage,
	isRestorable func(stream string) bool,
) error {
	var open []*bus.StreamDamage
	for i := range found {
		d := &found[i]
		switch {
		case d.Stream == "" || d.Account == subjects.Audit:
		case !isRestorable(d.Stream):
			d.Restored = "nothing is taken from a backup, because it may have been revoked since"
		default:
			d.Restored = "no scheduled backup of this installation in " + folder + " has it undamaged, so nothing " +
				"came back from there"
			open = append(open, d)
		}
	}
	if len(open) == 0 {
		return nil
	}
	made, err := ListScheduled(folder)
	for _, d := range open {
		if err != nil {
			d.Restored = "nothing came back, because the scheduled backups cannot be read: " + err.Error()
		}
	}
	for _, b := range made {
		if open, err = restoreFrom(ctx, home, b, open); err != nil {
			return fmt.Errorf("restoring damaged streams: %w", err)
		}
	}
	return nil
}

// restoreFrom takes back what a backup has of streams, and returns those that it does not have undamaged. Files that
// cannot be read or written count as such.
func restoreFrom(ctx context.Context, home bus.Home, b Scheduled, streams []*bus.StreamDamage) (
	left []*bus.StreamDamage, err error,
) {
	if len(streams) == 0 {
		return nil, nil
	}
	copied, err := extract(ctx, home, b, func(path string) bool {
		return slices.ContainsFunc(streams, func(d *bus.StreamDamage) bool {
			return strings.HasPrefix(path, dataPart+"/"+d.Folder()+"/")
		})
	})
	if err != nil {
		return streams, ctx.Err()
	}
	defer os.RemoveAll(filepath.Dir(copied.Data))
	for _, d := range streams {
		n, err := d.Restore(home, copied)
		if err != nil {
			left = append(left, d)
			continue
		}
		d.Restored = fmt.Sprintf("%d messages came back from the backup of %s UTC; of what was stored later, the "+
			"damaged part is lost, and what was deleted later may be back", n, b.Time.Format(time.DateTime))
	}
	return left, nil
}

// RestoreMemory takes memory back from the newest scheduled backup in folder whose copy passes check, with the position
// up to which it had read the events, so that it learns the later ones again. What is there is moved to a folder of
// damaged files. The report says what came back.
func RestoreMemory(ctx context.Context, home bus.Home, folder string, check func(data string) error) (r damage.Report,
	err error,
) {
	made, err := ListScheduled(folder)
	if err != nil {
		return r, err
	}
	consumer := path.Join(bus.StreamDamage{Account: subjects.Core, Stream: "EVENTS"}.Folder(), "obs", "memory")
	parts := map[string]string{"memory": "memory", consumer: "memory-consumer"}
	for _, b := range made {
		copied, err := extract(ctx, home, b, func(path string) bool {
			rel := strings.TrimPrefix(path, dataPart+"/")
			return strings.HasPrefix(rel, "memory/") || strings.HasPrefix(rel, consumer+"/")
		})
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		if err != nil {
			continue
		}
		defer os.RemoveAll(filepath.Dir(copied.Data))
		if _, err := os.Lstat(filepath.Join(copied.Data, "memory")); err != nil || check(copied.Data) != nil {
			continue
		}
		r = damage.Report{Found: time.Now(), Text: "memory was damaged or missing"}
		kept := damage.Folder(home.Data, r.Found)
		if err := os.MkdirAll(kept, 0o700); err != nil {
			return r, err
		}
		for part, name := range parts {
			part = filepath.FromSlash(part)
			if err := replaceFolder(filepath.Join(copied.Data, part), filepath.Join(home.Data, part),
				filepath.Join(kept, name)); err != nil {
				return r, err
			}
		}
		r.Kept, r.Restored = kept, "it came back from the backup of "+b.Time.Format(time.DateTime)+
			" UTC; later answers and grades are learned again from EVENTS, what the user added later is lost, and "+
			"what was forgotten later stays so as far as EVENTS says (90 days)"
		return r, nil
	}
	return damage.Report{
		Found: time.Now(), Part: damage.Memory, Text: "memory is damaged or missing",
		Restored: "no scheduled backup of this installation in " + folder + " has it undamaged, so nothing came back",
	}, nil
}

// replaceFolder moves a folder to a place whose content, if there is any, moves to kept. Without the folder it does
// nothing.
func replaceFolder(from, to, kept string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Rename(to, kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return file.Sync(filepath.Dir(to))
}

// extract writes the files of a backup with selected paths into a new folder in the data folder of home, which the
// caller removes: the parent of that of the result. It rejects a backup that the installation did not make by itself:
// others may be able to write to the folder.
func extract(ctx context.Context, home bus.Home, b Scheduled, selected func(path string) bool) (bus.Home, error) {
	s, err := open(b.Path)
	if err != nil {
		return bus.Home{}, err
	}
	defer s.close()
	key, err := audit.LoadHasher(home.BackupKey())
	if err != nil {
		return bus.Home{}, err
	}
	if mac, err := s.manifest.hash(key); err != nil || !hmac.Equal([]byte(mac), []byte(s.manifest.MAC)) {
		return bus.Home{}, errors.Join(errors.New(b.Path+" was not made by this installation"), err)
	}
	dir, err := os.MkdirTemp(home.Data, ".restore-*")
	if err != nil {
		return bus.Home{}, err
	}
	if _, _, err := unpack(ctx, s, dir, selected, nil); err != nil {
		_ = os.RemoveAll(dir)
		return bus.Home{}, err
	}
	return bus.Home{Data: filepath.Join(dir, dataPart)}, nil
}
