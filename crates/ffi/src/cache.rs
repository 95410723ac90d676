//! Caches and namespaces.

use std::ffi::c_char;

use afterglow_engine::{
    Cache, Config, DeviceConfig, Durability, Mutability, Namespace, NamespaceOptions, Survives,
};

use crate::error::{Failure, aglow_status, guard};
use crate::memory::{free, reference, store, text};

/// A key has one value for ever: puts need no journal.
pub const AGLOW_IMMUTABLE: u32 = 1;
/// Objects are served after a clean stop only, not after a crash: no journal at all.
pub const AGLOW_SURVIVES_CLEAN_STOP_ONLY: u32 = 2;
/// A put is acknowledged once it is on flash.
pub const AGLOW_WRITE_THROUGH: u32 = 4;
/// A put is acknowledged once it would survive power loss.
pub const AGLOW_SYNCED: u32 = 8;

/// An open cache.
pub struct aglow_cache {
    pub(crate) cache: Cache,
}

/// A namespace of an open cache.
pub struct aglow_namespace {
    pub(crate) ns: Namespace,
}

/// A file or block device that holds objects.
#[repr(C)]
pub struct aglow_device {
    /// A regular file, created when missing, or a block device. UTF-8.
    pub path: *const c_char,
    /// Bytes to use, a multiple of 4096; 0 for all of a block device.
    pub size: u64,
}

/// How to open a cache. Zero is the default of every number.
#[repr(C)]
pub struct aglow_config {
    /// `sizeof(aglow_config)`: the library knows by it which fields the caller knows.
    pub struct_size: usize,
    /// Directory of journal, metadata and lock; created when missing. UTF-8.
    pub data_dir: *const c_char,
    /// The devices.
    pub devices: *const aglow_device,
    /// How many.
    pub device_count: usize,
    /// Bytes of memory for everything; default 256 MiB, at least 16 MiB.
    pub memory: u64,
    /// Bytes of journal; default 64 MiB. Fixed when the cache is created.
    pub journal_size: u64,
    /// Bytes per second that may be written to flash, averaged over a day; default: no limit.
    pub write_budget: u64,
    /// Bytes per segment, a power of two from 64 KiB to 16 MiB. An object may be a quarter of it.
    /// Fixed when the cache is created.
    pub segment_size: u32,
    /// Device reads in flight at once, more are misses; default 256.
    pub max_blocking_reads: u32,
    /// Not 0: the journal is mapped into memory, which is faster, but a disk that fails may end the
    /// process with SIGBUS.
    pub mapped_journal: u32,
}

/// Opens a cache, creating it when there is none. What survived is served at once.
///
/// # Safety
/// `config` and what it points at are valid during the call, `cache` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_cache_open(
    config: *const aglow_config,
    cache: *mut *mut aglow_cache,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let given = unsafe { reference(config, "configuration")? };
        if given.struct_size != size_of::<aglow_config>() {
            let (given, known) = (given.struct_size, size_of::<aglow_config>());
            return Err(Failure::argument(format!(
                "struct_size is {given}, this library knows {known}"
            )));
        }
        let mut devices = Vec::new();
        for n in 0..given.device_count {
            // SAFETY: the caller's promise: so many devices are there.
            let device = unsafe { reference(given.devices.wrapping_add(n), "device list")? };
            // SAFETY: the caller's promise.
            let path = unsafe { text(device.path, "device's path")? };
            devices.push(DeviceConfig { path: path.into(), size: device.size });
        }
        // SAFETY: the caller's promise.
        let mut config = Config::new(unsafe { text(given.data_dir, "data directory")? }, devices);
        let or_default = |value: u64, default: u64| if value == 0 { default } else { value };
        config.memory = or_default(given.memory, config.memory);
        config.journal_size = or_default(given.journal_size, config.journal_size);
        config.max_blocking_reads =
            or_default(given.max_blocking_reads.into(), config.max_blocking_reads.into()) as u32;
        config.write_budget = (given.write_budget != 0).then_some(given.write_budget);
        config.segment_size = (given.segment_size != 0).then_some(given.segment_size);
        config.mapped_journal = given.mapped_journal != 0;
        let opened = open(config)?;
        // SAFETY: the caller's promise.
        unsafe { store(cache, Box::into_raw(Box::new(aglow_cache { cache: opened }))) };
        Ok(aglow_status::AGLOW_OK)
    })
}

pub(crate) fn open(config: Config) -> Result<Cache, Failure> {
    Cache::open(config).map_err(|e| Failure::new(aglow_status::AGLOW_E_OPEN, e.to_string()))
}

/// The clean stop: writes everything out, so that the next opening is warm. Returns when that is
/// done; lookups go on to be answered, puts are refused. `AGLOW_E_NOT_CLEAN` if something could not
/// be written: the next opening is then as after a crash. Calling it again does nothing but say the
/// same.
///
/// # Safety
/// `cache` is a handle that was opened and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_cache_close(cache: *const aglow_cache) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        close(&unsafe { reference(cache, "cache")? }.cache)?;
        Ok(aglow_status::AGLOW_OK)
    })
}

pub(crate) fn close(cache: &Cache) -> Result<(), Failure> {
    let message = "not everything could be written: the next opening is as after a crash";
    let failure = || Failure::new(aglow_status::AGLOW_E_NOT_CLEAN, message);
    cache.close().then_some(()).ok_or_else(failure)
}

/// Frees a cache. Without [`aglow_cache_close`] before, it is like the death of the process. Null
/// is allowed.
///
/// # Safety
/// `cache` is null, or was opened, and nobody uses it any more; its namespaces are freed too, or
/// not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_cache_free(cache: *mut aglow_cache) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { free(cache) };
        Ok(aglow_status::AGLOW_OK)
    })
}

/// Opens a namespace, creating it when there is none of that name. `flags` are the AGLOW_* bits for
/// namespaces; with another mutability or survival than before it starts empty.
///
/// # Safety
/// `cache` is an open handle, `name` a text, `namespace_` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_namespace_open(
    cache: *const aglow_cache,
    name: *const c_char,
    flags: u32,
    namespace_: *mut *mut aglow_namespace,
) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (cache, name) =
            unsafe { (reference(cache, "cache")?, text(name, "namespace's name")?) };
        let ns = cache.cache.namespace(name, options(flags)?);
        let ns = ns.map_err(|e| Failure::new(aglow_status::AGLOW_E_OPEN, e.to_string()))?;
        // SAFETY: the caller's promise.
        unsafe { store(namespace_, Box::into_raw(Box::new(aglow_namespace { ns }))) };
        Ok(aglow_status::AGLOW_OK)
    })
}

pub(crate) fn options(flags: u32) -> Result<NamespaceOptions, Failure> {
    let known =
        AGLOW_IMMUTABLE | AGLOW_SURVIVES_CLEAN_STOP_ONLY | AGLOW_WRITE_THROUGH | AGLOW_SYNCED;
    if flags & !known != 0 {
        return Err(Failure::argument(format!("unknown flags {:#x}", flags & !known)));
    }
    let has = |flag: u32| flags & flag != 0;
    Ok(NamespaceOptions {
        mutability: if has(AGLOW_IMMUTABLE) { Mutability::Immutable } else { Mutability::Mutable },
        survives: if has(AGLOW_SURVIVES_CLEAN_STOP_ONLY) {
            Survives::CleanStop
        } else {
            Survives::Crash
        },
        durability: match (has(AGLOW_SYNCED), has(AGLOW_WRITE_THROUGH)) {
            (true, _) => Durability::Synced,
            (false, true) => Durability::WriteThrough,
            (false, false) => Durability::WriteBack,
        },
        partition_epochs: false,
    })
}

/// Frees a namespace handle. Null is allowed.
///
/// # Safety
/// `namespace_` is null, or was opened, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aglow_namespace_free(namespace_: *mut aglow_namespace) -> aglow_status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { free(namespace_) };
        Ok(aglow_status::AGLOW_OK)
    })
}
