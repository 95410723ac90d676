//! Opening files and block devices: created, preallocated with real blocks, locked, `O_DIRECT`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, FallocateFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::format::superblock::{Found, RESERVED, Superblock};

use super::answer::within;
use super::buf::{AlignedBuf, BUF_ALIGN};
use super::claim::{LETTING_GO, lock, open_direct};
use super::disk::{DeviceConfig, DeviceId, DeviceInfo, DeviceSet, Truncated, check};
use super::error::DeviceError;
use super::patient::PATIENCE;

/// Alignment assumed where the kernel (before 6.1) or the file system does not tell: right for
/// every common device.
const DEFAULT_ALIGNMENT: u32 = 4096;
/// A device smaller than this cannot hold a cache.
const MIN_SIZE: u64 = 4096;
/// Where devices are.
const DEVICES: &str = "/dev";

/// The open devices; descriptors are closed, and locks released, when the last owner drops it.
pub(super) struct Files {
    /// `None` for a device that could not be opened: all I/O to it fails.
    files: Vec<Option<File>>,
    infos: Vec<DeviceInfo>,
    truncated: Vec<Truncated>,
}

impl Files {
    /// Opens all devices or none. With `without`, those that fail or are missing are left out, as
    /// long as another can be opened; what is somebody else's, or configured wrongly, is refused.
    /// Those that are `silent` fail without being touched.
    pub(super) fn open(
        devices: &[DeviceConfig],
        without: bool,
        silent: &[PathBuf],
    ) -> Result<Self, DeviceError> {
        let mut opened = Self { files: Vec::new(), infos: Vec::new(), truncated: Vec::new() };
        let found = each_that_can(devices, without, silent, open_device)?;
        for (device, found) in devices.iter().zip(found) {
            let (file, info, left) = match found {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, "the cache is opened without a device");
                    let path = device.path.clone();
                    opened.files.push(None);
                    opened.infos.push(DeviceInfo { size: 0, alignment: DEFAULT_ALIGNMENT, path });
                    continue;
                }
            };
            opened.files.push(Some(file));
            if (1..info.size).contains(&left) {
                opened.truncated.push(Truncated { path: info.path.clone(), left, size: info.size });
            }
            opened.infos.push(info);
        }
        Ok(opened)
    }

    /// Files that had to be made longer although something was in them.
    pub(super) fn truncated(&self) -> &[Truncated] {
        &self.truncated
    }

    /// The descriptor of a device that [`check`] has accepted.
    pub(super) fn file(&self, device: DeviceId) -> &File {
        let file = self.files[usize::from(device.0)].as_ref();
        file.expect("a device without a file has no bytes")
    }
}

impl DeviceSet for Files {
    fn infos(&self) -> &[DeviceInfo] {
        &self.infos
    }

    fn read_at(&self, device: DeviceId, offset: u64, len: u32) -> io::Result<AlignedBuf> {
        check(&self.infos, device, offset, u64::from(len))?;
        let mut buf = AlignedBuf::for_read(len as usize);
        read_full(
            self.file(device),
            &mut buf,
            offset,
            self.infos[usize::from(device.0)].alignment,
        )?;
        Ok(buf)
    }

    fn raw_fd(&self, device: DeviceId) -> Option<RawFd> {
        self.files.get(usize::from(device.0))?.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// Looks at each device, or at none. With `without`, those that fail or are missing are among what
/// is found, as long as there is another. Those that are `silent` fail without being touched.
fn each_that_can<T: Send + 'static>(
    devices: &[DeviceConfig],
    without: bool,
    silent: &[PathBuf],
    look: fn(&DeviceConfig) -> Result<T, DeviceError>,
) -> Result<Vec<Result<T, DeviceError>>, DeviceError> {
    let mut all = Vec::new();
    for device in devices {
        let hangs = || Err(DeviceError::Silent { path: device.path.clone() });
        let found = match silent.contains(&device.path) {
            true => hangs(),
            // A block device may have begun to hang since it was asked.
            false if matches!(kind_of(device), Ok(Kind::Block)) => {
                let device = device.clone();
                let looked = within(PATIENCE, move || look(&device));
                let threads = |source| DeviceError::Threads { source };
                looked.map_err(threads)?.unwrap_or_else(hangs)
            }
            false => look(device),
        };
        match found {
            Err(error) if !without || !error.is_of_device() => return Err(error),
            found => all.push(found),
        }
    }
    match all.iter().all(Result::is_err) {
        true => all.into_iter().next().map_or(Ok(Vec::new()), |first| first.map(|_| Vec::new())),
        false => Ok(all),
    }
}

/// Opens devices for looking at them only: no lock, no creation, no `O_DIRECT`, size as found.
///
/// # Errors
/// [`DeviceError`] when a path cannot be opened or is neither file nor block device.
pub fn open_read_only(paths: &[PathBuf]) -> Result<Arc<dyn DeviceSet>, DeviceError> {
    let mut set = Files { files: Vec::new(), infos: Vec::new(), truncated: Vec::new() };
    for path in paths {
        let file = File::open(path).map_err(|e| DeviceError::from_io("open", path, 0, e))?;
        let kind =
            file.metadata().map_err(|e| DeviceError::from_io("inspect", path, 0, e))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DeviceError::NotAFile { path: path.clone() });
        }
        let size =
            end_of(&file).map_err(|e| DeviceError::from_io("measure", path, 0, e))? / 512 * 512;
        set.infos.push(DeviceInfo { size, alignment: 512, path: path.clone() });
        set.files.push(Some(file));
    }
    Ok(Arc::new(set))
}

/// Bytes that each device would have, without opening it, or why it would be left out, as
/// [`open_with`](super::open_with) does that. What opening would refuse is refused, as far as that
/// can be seen without a lock.
pub(crate) fn examine(
    devices: &[DeviceConfig],
    without: bool,
    silent: &[PathBuf],
) -> Result<Vec<Result<u64, DeviceError>>, DeviceError> {
    each_that_can(devices, without, silent, examine_device)
}

fn examine_device(config: &DeviceConfig) -> Result<u64, DeviceError> {
    let path = &config.path;
    let fail = |doing| move |e| DeviceError::from_io(doing, path, config.size, e);
    let kind = kind_of(config)?;
    if kind == Kind::Missing {
        let parent =
            path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let room = rustix::fs::statvfs(parent).map_err(|e| fail("inspect")(e.into()))?;
        refuse_too_large(config, 0, &room)?;
        let may = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::access(parent, may).map_err(|e| fail("create")(e.into()))?;
        return Ok(config.size);
    }
    rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK)
        .map_err(|e| fail("open")(e.into()))?;
    let file = File::open(path).map_err(fail("open"))?;
    if is_foreign(path).map_err(fail("read"))? {
        return Err(DeviceError::Foreign { path: path.clone() });
    }
    if kind == Kind::File {
        let taken = file.metadata().map_err(fail("inspect"))?.blocks() * 512;
        refuse_too_large(
            config,
            taken,
            &rustix::fs::fstatvfs(&file).map_err(|e| fail("inspect")(e.into()))?,
        )?;
        return Ok(config.size);
    }
    let whole = end_of(&file).map_err(fail("measure"))? / MIN_SIZE * MIN_SIZE;
    match config.size {
        _ if whole == 0 => Err(DeviceError::NoMedium { path: path.clone() }),
        0 => Ok(whole),
        size if size.is_multiple_of(MIN_SIZE) && (1..=whole).contains(&size) => Ok(size),
        size => Err(DeviceError::BadSize { path: path.clone(), size }),
    }
}

/// Refuses a file for which its file system has no room, `taken` bytes of it being there already.
fn refuse_too_large(
    config: &DeviceConfig,
    taken: u64,
    room: &rustix::fs::StatVfs,
) -> Result<(), DeviceError> {
    if config.size.saturating_sub(taken) > room.f_bfree.saturating_mul(room.f_frsize) {
        return Err(DeviceError::NoSpace { path: config.path.clone(), needed: config.size });
    }
    Ok(())
}

/// Opens, locks and sizes one device. With it, how long it was before.
fn open_device(config: &DeviceConfig) -> Result<(File, DeviceInfo, u64), DeviceError> {
    let path = &config.path;
    let fail = |doing| move |e| DeviceError::from_io(doing, path, config.size, e);
    let kind = kind_of(config)?;
    let (is_block, is_new) = (kind == Kind::Block, kind == Kind::Missing);
    let file = open_direct(path, is_block, LETTING_GO).map_err(fail("open"))?;
    // Before anything is changed: the lock is what makes changing it ours to do.
    lock(&file, LETTING_GO).map_err(|e| fail("lock")(e.into()))?;
    let size = if is_block {
        let whole = end_of(&file).map_err(fail("measure"))? / MIN_SIZE * MIN_SIZE;
        if whole == 0 {
            return Err(DeviceError::NoMedium { path: path.clone() });
        }
        if config.size == 0 { whole } else { config.size.min(whole + 1) }
    } else {
        config.size
    };
    if size % MIN_SIZE != 0 || size == 0 {
        return Err(DeviceError::BadSize { path: path.clone(), size: config.size });
    }
    if !is_new && is_foreign(path).map_err(fail("read"))? {
        return Err(DeviceError::Foreign { path: path.clone() });
    }
    let before = if is_block { size } else { file.metadata().map_err(fail("inspect"))?.len() };
    if !is_block {
        keep_private(&file).map_err(fail("restrict"))?;
        preallocate(&file, size).map_err(|e| {
            if is_new {
                // An empty file would only puzzle; the error to report is the one that came first.
                let _ = std::fs::remove_file(path);
            }
            fail("preallocate")(e)
        })?;
    }
    let alignment = alignment_of(&file);
    if alignment as usize > BUF_ALIGN {
        return Err(DeviceError::Alignment { path: path.clone(), alignment });
    }
    Ok((file, DeviceInfo { size, alignment, path: path.clone() }, before))
}

/// What a path is before it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Block,
    File,
    Missing,
}

/// What a device is, refused where it cannot be one: before a file is made, for one that is refused
/// would stay.
fn kind_of(config: &DeviceConfig) -> Result<Kind, DeviceError> {
    let path = &config.path;
    let kind = match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => return Ok(Kind::Block),
        Ok(found) if found.is_file() => Kind::File,
        Ok(_) => return Err(DeviceError::NotAFile { path: path.clone() }),
        // A file would be made where the link points to, wherever that is.
        Err(e) if e.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            return Err(DeviceError::NoDevice { path: path.clone() });
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Kind::Missing,
        Err(e) => return Err(DeviceError::from_io("inspect", path, config.size, e)),
    };
    if is_among_devices(path) {
        return Err(DeviceError::NoDevice { path: path.clone() });
    }
    if !config.size.is_multiple_of(MIN_SIZE) || config.size == 0 {
        return Err(DeviceError::BadSize { path: path.clone(), size: config.size });
    }
    Ok(kind)
}

/// Whether a path is below `/dev` and on its file system, whose files are in memory. What is
/// mounted below it (`/dev/shm`) is as good as any other place.
fn is_among_devices(path: &Path) -> bool {
    let Some(Ok(parent)) = path.parent().map(Path::canonicalize) else { return false };
    let file_system = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    parent.starts_with(DEVICES) && file_system(&parent) == file_system(Path::new(DEVICES))
}

/// Whether a file or device has a content that no version of ours wrote: then it is not ours to
/// change.
fn is_foreign(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let mut head = Vec::new();
    (&file).take(RESERVED).read_to_end(&mut head)?;
    head.resize(RESERVED as usize, 0);
    Ok(match Superblock::decode(&head) {
        Found::Foreign => true,
        Found::Blank => !is_blank(&file)?,
        _ => false,
    })
}

/// Whether only zeros are found at the beginning, at the end, and at places spread in between. Many
/// formats leave the first kilobytes free, so the beginning is not enough.
fn is_blank(file: &File) -> io::Result<bool> {
    const EDGE: u64 = 1 << 20;
    const SAMPLE: u64 = 4096;
    const SAMPLES: u64 = 64;
    let len = end_of(file)?;
    let mut places = vec![(0, EDGE), (len.saturating_sub(EDGE), EDGE)];
    places.extend((1..SAMPLES).map(|n| (len / SAMPLES * n, SAMPLE)));
    let mut bytes = Vec::new();
    for (at, want) in places {
        bytes.resize(want.min(len - at) as usize, 0);
        file.read_exact_at(&mut bytes, at)?;
        if bytes.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes group and others off a file that already existed with a wider mode.
fn keep_private(file: &File) -> io::Result<()> {
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Gives the file exactly `size` bytes backed by real blocks, so that no later write meets a full
/// disk. Content within `size` stays.
fn preallocate(file: &File, size: u64) -> io::Result<()> {
    let before = file.metadata()?.len();
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, before, size)?,
        Err(e) => {
            // Give back what a failed attempt took: the user is about to be told that the disk is
            // full.
            if before < size {
                file.set_len(before)?;
            }
            return Err(e.into());
        }
    }
    if before > size {
        file.set_len(size)?;
    }
    file.sync_all()
}

/// Preallocation where the file system has none: zeros from the end of the content on.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    const STEP: u64 = 1 << 20;
    let zeros = AlignedBuf::zeroed(STEP as usize);
    // O_DIRECT wants whole blocks; a last partial block is written again from its start only if it
    // never was whole.
    let mut at = from.next_multiple_of(u64::from(DEFAULT_ALIGNMENT)).min(to);
    if at != from {
        file.set_len(at)?;
    }
    while at < to {
        let step = STEP.min(to - at);
        file.write_all_at(&zeros[..step as usize], at)?;
        at += step;
    }
    Ok(())
}

/// What `O_DIRECT` wants of offsets, lengths and addresses.
fn alignment_of(file: &File) -> u32 {
    match rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(found)
            if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN) =>
        {
            // Both zero: no direct I/O here, so any step would do; keep to whole pages.
            match found.stx_dio_offset_align.max(found.stx_dio_mem_align) {
                0 => DEFAULT_ALIGNMENT,
                step => step.max(512),
            }
        }
        _ => DEFAULT_ALIGNMENT,
    }
}

/// Size of a file or block device (whose metadata says 0).
fn end_of(file: &File) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}

/// Reads until `buf` is full. A transfer cut short goes on from the last whole step, as `O_DIRECT`
/// demands.
pub(super) fn read_full(
    file: &File,
    buf: &mut [u8],
    offset: u64,
    alignment: u32,
) -> io::Result<()> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(n) => {
                filled = advance(filled, n, buf.len(), alignment, io::ErrorKind::UnexpectedEof)?
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `data`, going on after a short write as [`read_full`] does.
pub(super) fn write_full(file: &File, data: &[u8], offset: u64, alignment: u32) -> io::Result<()> {
    let mut written = 0;
    while written < data.len() {
        match file.write_at(&data[written..], offset + written as u64) {
            Ok(n) => {
                written = advance(written, n, data.len(), alignment, io::ErrorKind::WriteZero)?
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Progress after a transfer of `n` bytes from `from` on: whole steps only, except at the very end.
/// No progress at all is an error of kind `stuck`, so that no loop over this runs forever.
pub(super) fn advance(
    from: usize,
    n: usize,
    total: usize,
    alignment: u32,
    stuck: io::ErrorKind,
) -> io::Result<usize> {
    let coverage_mark = from + n;
    if coverage_mark >= total {
        return Ok(total);
    }
    let step = alignment as usize;
    let whole = coverage_mark / step * step;
    if whole <= from {
        return Err(io::Error::new(
            stuck,
            format!("the device stopped {coverage_mark} bytes into a transfer of {total}"),
        ));
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    #[test]
    fn a_transfer_goes_on_from_whole_steps_and_never_in_circles() {
        let stuck = io::ErrorKind::UnexpectedEof;
        let kind = |result: io::Result<usize>| result.map_err(|e| e.kind());
        assert_eq!(kind(advance(0, 8192, 8192, 512, stuck)), Ok(8192));
        assert_eq!(
            kind(advance(0, 700, 8192, 512, stuck)),
            Ok(512),
            "the partial step is transferred again"
        );
        assert_eq!(kind(advance(512, 512, 8192, 512, stuck)), Ok(1024));
        assert_eq!(kind(advance(512, 0, 8192, 512, stuck)), Err(stuck));
        assert_eq!(kind(advance(512, 100, 8192, 512, stuck)), Err(stuck));
    }

    #[test]
    fn somebody_elses_file_keeps_its_size() {
        let path = std::env::temp_dir().join(format!("afterglow-foreign-{}", std::process::id()));
        std::fs::write(&path, b"precious".repeat(1000)).unwrap();
        let opened = open_device(&DeviceConfig { path: path.clone(), size: 1 << 20 });
        assert!(matches!(opened, Err(DeviceError::Foreign { .. })), "{opened:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious".repeat(1000));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_begins_with_zeros_only_is_somebody_elses_too() {
        let dir = crate::testing::TempDir::new();
        let path = dir.path().join("flash");
        for at in [9000, 700_000, (3 << 20) - 1] {
            let mut content = vec![0; 3 << 20];
            content[at..].iter_mut().take(1000).for_each(|byte| *byte = 7);
            if at == 700_000 {
                content.resize(1 << 20, 0);
            }
            std::fs::write(&path, &content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
            // Also when it has just the size that is asked for.
            for size in [content.len() as u64, 2 << 20] {
                let opened = open_device(&DeviceConfig { path: path.clone(), size });
                assert!(matches!(opened, Err(DeviceError::Foreign { .. })), "{at}: {opened:?}");
            }
            assert_eq!(std::fs::read(&path).unwrap(), content);
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        }
        std::fs::write(&path, vec![0; 3 << 20]).unwrap();
        assert!(
            open_device(&DeviceConfig { path, size: 2 << 20 }).is_ok(),
            "a blank file is anybody's"
        );
    }

    #[test]
    fn without_fallocate_files_are_filled_with_zeros() {
        let dir = crate::testing::TempDir::new();
        let path = dir.path().join("flash");
        std::fs::write(&path, [7; 100]).expect("written");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        write_zeros(&file, 100, 3 << 20).expect("filled");
        let content = std::fs::read(&path).expect("readable");
        assert_eq!(content.len(), 3 << 20);
        assert!(
            content[..100].iter().all(|&byte| byte == 7)
                && content[100..].iter().all(|&byte| byte == 0)
        );
    }
}
