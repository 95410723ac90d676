//! Whether stores into a mapped file of a file system are free of the risk of a signal.

use std::path::Path;

/// File systems on which a store into a mapped file may fail. Some write a page to a new place, so
/// that a full disk fails a store even into a file with all its blocks. Others get their pages over
/// a network or from another process, or lie on an unknown file system. By their magic numbers
/// (`statfs(2)`).
const UNFIT: [(u32, &str); 15] = [
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "f2fs"),
    (0x0000_3434, "nilfs2"),
    (0x794c_7630, "overlayfs"),
    (0x6573_5546, "fuse"),
    (0x0000_6969, "nfs"),
    (0x0000_517b, "smb"),
    (0xfe53_4d42, "smb2"),
    (0xff53_4d42, "cifs"),
    (0x00c3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
];

/// The name of the file system of this type, if mapping its files is a risk.
fn unfit(magic: u32) -> Option<&'static str> {
    UNFIT.iter().find(|(unfit, _)| *unfit == magic).map(|(_, name)| *name)
}

/// The name of the file system that a directory is on, if mapping its files is a risk. A store that
/// the file system fails ends the process with `SIGBUS`. None where the kernel does not say which
/// it is.
#[must_use]
pub fn unfit_to_map(dir: &Path) -> Option<&'static str> {
    // The numbers have 32 bits; the field is wider, and signed, on some machines.
    unfit(rustix::fs::statfs(dir).ok()?.f_type as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_write_elsewhere_or_come_over_a_network_are_not_mapped() {
        for (magic, name) in [
            (0x9123_683e, "btrfs"),
            (0x2fc1_2fc1, "zfs"),
            (0xca45_1a4e, "bcachefs"),
            (0x794c_7630, "overlayfs"),
            (0x6573_5546, "fuse"),
            (0x6969, "nfs"),
        ] {
            assert_eq!(unfit(magic), Some(name));
        }
        // ext4, XFS, tmpfs.
        for magic in [0xef53, 0x5846_5342, 0x0102_1994] {
            assert_eq!(unfit(magic), None, "{magic:#x}");
        }
        // /proc is there on every Linux, and not among them; what is not there has no type.
        assert_eq!(unfit_to_map(Path::new("/proc")), None);
        assert_eq!(unfit_to_map(Path::new("/no such directory")), None);
    }
}
