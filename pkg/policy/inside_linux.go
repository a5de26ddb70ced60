package policy

import "golang.org/x/sys/unix"

// oPath opens a folder only to go on from it: no right to list it is needed.
const oPath = unix.O_PATH

// denyKernelFS refuses files of file systems that are doors into the kernel, wherever they are mounted.
func denyKernelFS(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	switch int64(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
		unix.SECURITYFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.NSFS_MAGIC, unix.BPF_FS_MAGIC,
		unix.EFIVARFS_MAGIC:
		return ErrSpecial
	}
	return nil
}
