//! Entry points for `io.afterglow.cassandra.Native`. Everything is passed as numbers and addresses,
//! so nothing here calls back into the virtual machine. A call costs some nanoseconds. A thread
//! that waits for flash holds up no garbage collection.
//!
//! A *front end* is an open cache with its one namespace; handles of front ends and listings are
//! addresses. A failed call returns a negative number, the [`aglow_status`], and leaves its message
//! in the log.

use std::cell::Cell;
use std::ffi::c_void;
use std::time::Duration;

use afterglow_engine::{Cache, Config, DeviceConfig, Hit, Namespace, PutOptions, PutOutcome};

use crate::cache::{close, open, options};
use crate::error::{Failure, aglow_status, catch};
use crate::keys::aglow_keys;
use crate::memory::{bytes, copy_out, free, reference};
use crate::reads::Reads;
use crate::{log, stats};

/// Nothing was found.
const MISS: i64 = -100;

/// An open cache with its one namespace.
pub struct OpenCache {
    cache: Cache,
    ns: Namespace,
    reads: Reads,
}

/// What a front end is opened with.
struct Settings {
    config: Config,
    namespace: String,
    flags: u32,
    /// The longest that a read of flash is waited for.
    timeout: Duration,
}

thread_local! {
    /// What the last `get` found and had no room for.
    static REST: Cell<Option<Hit>> = const { Cell::new(None) };
}

/// Outcome of an entry point; failures go to the log.
fn enter(body: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    catch(body).unwrap_or_else(|failure| {
        tracing::error!("{}", failure.message);
        failure.status as i64
    })
}

fn address<T>(address: i64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn len(len: i64) -> Result<usize, Failure> {
    usize::try_from(len).map_err(|_| Failure::argument(format!("a length of {len}")))
}

/// # Safety
/// `opened` is a handle from `open`.
unsafe fn opened<'a>(opened: i64) -> Result<&'a OpenCache, Failure> {
    // SAFETY: front ends are never freed, see `close`.
    unsafe { reference(address::<OpenCache>(opened), "cache") }
}

/// # Safety
/// `at` is the address of `length` bytes that nobody changes during the call.
unsafe fn input<'a>(at: i64, length: i64, what: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's promise.
    unsafe { bytes(address(at), len(length)?, what) }
}

/// What `open` is told: lines of `name=value`; `device` may come several times as `PATH:BYTES`.
fn parse(text: &str) -> Result<Settings, Failure> {
    let (mut config, mut namespace, mut flags) =
        (Config::new("", Vec::new()), "rows".to_owned(), 0);
    let mut timeout = Duration::from_millis(250);
    config.mapped_journal = false;
    for line in text.lines() {
        let wrong = || Failure::argument(format!("cannot understand {line:?}"));
        let (name, value) = line.split_once('=').ok_or_else(wrong)?;
        let number = || value.parse::<u64>().map_err(|_| wrong());
        match name {
            "namespace" => namespace = value.to_owned(),
            "data_dir" => config.data_dir = value.into(),
            "device" => {
                let (path, size) = value.rsplit_once(':').ok_or_else(wrong)?;
                let size = size.parse().map_err(|_| wrong())?;
                config.devices.push(DeviceConfig { path: path.into(), size });
            }
            "memory" => config.memory = number()?,
            "journal" => config.journal_size = number()?,
            "segment" => config.segment_size = Some(number()?.try_into().map_err(|_| wrong())?),
            "write_budget" => config.write_budget = Some(number()?),
            "reads" => config.max_blocking_reads = number()?.try_into().map_err(|_| wrong())?,
            "timeout" => timeout = Duration::from_millis(number()?),
            "flags" => flags = number()?.try_into().map_err(|_| wrong())?,
            _ => return Err(wrong()),
        }
    }
    Ok(Settings { config, namespace, flags, timeout })
}

/// Which form of these entry points this is; the Java side refuses another.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_afterglow_cassandra_Native_abi(
    _: *mut c_void,
    _: *mut c_void,
) -> i32 {
    crate::AGLOW_ABI as i32
}

/// Opens a front end as the text at `config` says: its handle, or a negative status with the
/// message at `message`.
///
/// # Safety
/// The addresses are those of so many bytes that stay valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_open(
    _: *mut c_void,
    _: *mut c_void,
    config: i64,
    config_len: i64,
    message: i64,
    message_capacity: i64,
) -> i64 {
    log::start();
    let opened = catch(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { input(config, config_len, "configuration")? };
        let text = std::str::from_utf8(text)
            .map_err(|_| Failure::argument("the configuration is not UTF-8"))?;
        let Settings { config, namespace, flags, timeout } = parse(text)?;
        let options = options(flags)?;
        let reads = Reads::new(config.max_blocking_reads, timeout);
        let cache = open(config)?;
        let ns = cache.namespace(&namespace, options);
        let ns = ns.map_err(|e| Failure::new(aglow_status::AGLOW_E_OPEN, e.to_string()))?;
        Ok(Box::into_raw(Box::new(OpenCache { cache, ns, reads })).expose_provenance() as i64)
    });
    opened.unwrap_or_else(|failure| {
        let room = usize::try_from(message_capacity).unwrap_or(0).saturating_sub(1);
        let mut text =
            failure.message.as_bytes()[..failure.message.floor_char_boundary(room)].to_vec();
        text.push(0);
        // SAFETY: the caller's promise; cut to the room there is.
        unsafe { copy_out(&text, address(message), room + 1) };
        failure.status as i64
    })
}

/// Looks a key up, with one read on this thread if need be, which is waited for no longer than the
/// front end's limit. The length of the value, which is copied if it fits; or -100 for a miss. What
/// does not fit is kept for this thread's `rest`, until its next `get`.
///
/// # Safety
/// The handle is a front end's, the addresses are those of so many bytes that stay valid during the
/// call.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_get(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
    key: i64,
    key_len: i64,
    buffer: i64,
    capacity: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        let (opened, key) = unsafe { (opened(handle)?, input(key, key_len, "key")?) };
        REST.take();
        let Some(hit) = opened.reads.get(&opened.cache, &opened.ns, key) else { return Ok(MISS) };
        let length = hit.value.len() as i64;
        // SAFETY: the caller's promise.
        if !unsafe { copy_out(&hit.value, address(buffer), len(capacity)?) } {
            REST.set(Some(hit));
        }
        Ok(length)
    })
}

/// What this thread's last `get` had no room for, if it fits now: its length; or -100 if there is
/// nothing. It is as old as that `get`, so only the caller of that may have it.
///
/// # Safety
/// As for `get`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_rest(
    _: *mut c_void,
    _: *mut c_void,
    buffer: i64,
    capacity: i64,
) -> i64 {
    enter(|| {
        let Some(hit) = REST.take() else { return Ok(MISS) };
        // SAFETY: the caller's promise.
        unsafe { copy_out(&hit.value, address(buffer), len(capacity)?) };
        Ok(hit.value.len() as i64)
    })
}

/// Looks two keys of one length up, whose bytes follow each other at `keys`; if both are on flash
/// they are read at once. The length of the first value, which is copied if it fits, or -100 for a
/// miss; that of the second goes to `second_len`.
///
/// # Safety
/// As for `get`; `second_len` is the address of 8 bytes that nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_getTwo(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
    keys: i64,
    key_len: i64,
    buffer: i64,
    capacity: i64,
    second: i64,
    second_capacity: i64,
    second_len: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        let (opened, keys) = unsafe { (opened(handle)?, input(keys, 2 * key_len, "keys")?) };
        let (one, two) = keys.split_at(keys.len() / 2);
        let [one, two] = opened.reads.get_two(&opened.cache, &opened.ns, [one, two]);
        let give = |hit: Option<Hit>, to: i64, room: i64| {
            let Some(hit) = hit else { return Ok(MISS) };
            // SAFETY: the caller's promise.
            unsafe { copy_out(&hit.value, address(to), len(room)?) };
            Ok(hit.value.len() as i64)
        };
        let found = give(two, second, second_capacity)?;
        // SAFETY: the caller's promise.
        unsafe { copy_out(&found.to_ne_bytes(), address(second_len), size_of::<i64>()) };
        give(one, buffer, capacity)
    })
}

/// Puts an object into a group: 0, or 1 + the number of the reason why it was refused.
///
/// # Safety
/// As for `get`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_put(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
    key: i64,
    key_len: i64,
    value: i64,
    value_len: i64,
    group: i32,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        let (opened, key) = unsafe { (opened(handle)?, input(key, key_len, "key")?) };
        // SAFETY: the caller's promise.
        let value = unsafe { input(value, value_len, "value")? };
        let options = PutOptions { group: group as u32, ..PutOptions::default() };
        match opened.ns.put(key, value, options) {
            PutOutcome::Stored { .. } => Ok(0),
            PutOutcome::Refused(reason) => Ok(1 + reason as i64),
        }
    })
}

/// Removes an object: 0.
///
/// # Safety
/// As for `get`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_remove(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
    key: i64,
    key_len: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        let (opened, key) = unsafe { (opened(handle)?, input(key, key_len, "key")?) };
        opened.ns.remove(key);
        Ok(0)
    })
}

/// Removes all objects of a group: 0.
///
/// # Safety
/// The handle is a front end's.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_removeGroup(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
    group: i32,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { opened(handle)? }.ns.remove_group(group as u32);
        Ok(0)
    })
}

/// Removes everything: 0.
///
/// # Safety
/// The handle is a front end's.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_clear(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { opened(handle)? }.ns.clear();
        Ok(0)
    })
}

/// The clean stop: 0 when everything is on flash, and -6 when the next opening is as after a crash.
/// The front end stays valid, puts are refused; it is never freed, since a thread may still be in
/// it.
///
/// # Safety
/// The handle is a front end's.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_close(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        close(&unsafe { opened(handle)? }.cache)?;
        Ok(0)
    })
}

/// The counters as text, one `name value` a line: its length; copied if it fits.
///
/// # Safety
/// As for `get`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_stats(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
    buffer: i64,
    capacity: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        let text = stats::text(&unsafe { opened(handle)? }.cache);
        // SAFETY: the caller's promise.
        unsafe { copy_out(text.as_bytes(), address(buffer), len(capacity)?) };
        Ok(text.len() as i64)
    })
}

/// The oldest line of the engine's log not yet fetched: its length, or -100.
///
/// # Safety
/// As for `get`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_log(
    _: *mut c_void,
    _: *mut c_void,
    buffer: i64,
    capacity: i64,
) -> i64 {
    enter(|| {
        let Some(line) = log::next() else { return Ok(MISS) };
        let line = &line[..line.floor_char_boundary(len(capacity)?)];
        // SAFETY: the caller's promise; cut to the room there is.
        unsafe { copy_out(line.as_bytes(), address(buffer), line.len()) };
        Ok(line.len() as i64)
    })
}

/// Begins to list keys: a handle.
///
/// # Safety
/// The handle is a front end's.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_keysOpen(
    _: *mut c_void,
    _: *mut c_void,
    handle: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        let keys = aglow_keys::new(&unsafe { opened(handle)? }.ns);
        Ok(Box::into_raw(Box::new(keys)).expose_provenance() as i64)
    })
}

/// The next key: its length, or -100 at the end. What does not fit is not copied, and not passed.
///
/// # Safety
/// The handle is a listing's, which no other thread uses; the address is that of so many bytes that
/// stay valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_keysNext(
    _: *mut c_void,
    _: *mut c_void,
    keys: i64,
    buffer: i64,
    capacity: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        let keys = unsafe { address::<aglow_keys>(keys).as_mut() };
        let keys = keys.ok_or_else(|| Failure::argument("the listing is a null pointer"))?;
        let Some(key) = keys.peek()? else { return Ok(MISS) };
        let length = key.len() as i64;
        // SAFETY: the caller's promise.
        if unsafe { copy_out(key, address(buffer), len(capacity)?) } {
            keys.skip();
        }
        Ok(length)
    })
}

/// Ends a listing: 0.
///
/// # Safety
/// The handle is a listing's, used by nobody from now on.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn Java_io_afterglow_cassandra_Native_keysClose(
    _: *mut c_void,
    _: *mut c_void,
    keys: i64,
) -> i64 {
    enter(|| {
        // SAFETY: the caller's promise.
        unsafe { free(address::<aglow_keys>(keys)) };
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::ptr::null_mut;

    use super::*;

    fn at(bytes: &[u8]) -> i64 {
        bytes.as_ptr().expose_provenance() as i64
    }

    /// Opens a front end whose data directory is below `dir`.
    fn front_end(dir: &Path) -> i64 {
        let (data, flash) = (dir.join("data"), dir.join("flash"));
        let config = format!(
            "data_dir={}\ndevice={}:{}\nmemory={}\njournal={}\nsegment={}\n",
            data.display(),
            flash.display(),
            64 << 20,
            16 << 20,
            1 << 20,
            4 << 20
        );
        // SAFETY: so many bytes, which live longer than the call.
        let handle = unsafe {
            let (at, len) = (at(config.as_bytes()), config.len() as i64);
            Java_io_afterglow_cassandra_Native_open(null_mut(), null_mut(), at, len, 0, 0)
        };
        assert!(handle > 0, "it does not open: {handle}");
        handle
    }

    fn the_open<'a>(handle: i64) -> &'a OpenCache {
        // SAFETY: the handle is a front end's.
        unsafe { opened(handle) }.unwrap_or_else(|failure| panic!("{}", failure.message))
    }

    fn close_front_end(handle: i64) -> i64 {
        // SAFETY: the handle is a front end's.
        unsafe { Java_io_afterglow_cassandra_Native_close(null_mut(), null_mut(), handle) }
    }

    #[test]
    fn a_stop_that_cannot_be_marked_is_not_said_to_be_clean() {
        for fails in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let handle = front_end(dir.path());
            if fails {
                std::fs::rename(dir.path().join("data"), dir.path().join("gone")).expect("renamed");
            }
            let expected = if fails { aglow_status::AGLOW_E_NOT_CLEAN as i64 } else { 0 };
            assert_eq!(close_front_end(handle), expected);
            assert_eq!(close_front_end(handle), expected, "it says the same again");
        }
    }

    fn get(handle: i64, key: &[u8], buffer: &mut [u8]) -> i64 {
        let room = buffer.len() as i64;
        let buffer = buffer.as_mut_ptr().expose_provenance() as i64;
        // SAFETY: the handle is a front end's, and so many bytes are at the addresses.
        unsafe {
            let (key, len) = (at(key), key.len() as i64);
            Java_io_afterglow_cassandra_Native_get(
                null_mut(),
                null_mut(),
                handle,
                key,
                len,
                buffer,
                room,
            )
        }
    }

    fn rest(buffer: &mut [u8]) -> i64 {
        let room = buffer.len() as i64;
        let buffer = buffer.as_mut_ptr().expose_provenance() as i64;
        // SAFETY: so many bytes are at the address.
        unsafe { Java_io_afterglow_cassandra_Native_rest(null_mut(), null_mut(), buffer, room) }
    }

    #[test]
    fn a_value_that_finds_no_room_is_read_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let large: Vec<u8> = (0..1_000_000u32).map(|n| n as u8 ^ (n >> 8) as u8).collect();
        let handle = front_end(dir.path());
        let ns = &the_open(handle).ns;
        assert!(ns.put(b"large", &large, PutOptions::default()).version().is_some());
        assert!(ns.put(b"small", b"value", PutOptions::default()).version().is_some());
        assert_eq!(close_front_end(handle), 0);
        // SAFETY: nobody uses it any more.
        unsafe { free(address::<OpenCache>(handle)) };

        let handle = front_end(dir.path());
        let cache = &the_open(handle).cache;
        while cache.stats().loading {
            std::thread::yield_now();
        }
        let (mut little, mut enough) = (vec![0; 64 << 10], vec![0; 1 << 20]);
        assert_eq!(rest(&mut enough), MISS, "nothing was asked for");
        assert_eq!(get(handle, b"large", &mut little), large.len() as i64);
        assert_eq!(rest(&mut enough), large.len() as i64);
        assert!(enough.starts_with(&large));
        assert_eq!(cache.stats().totals.device_reads, 1);
        assert_eq!(rest(&mut enough), MISS, "it is given once");

        assert_eq!(get(handle, b"large", &mut little), large.len() as i64);
        assert_eq!(get(handle, b"small", &mut little), 5);
        assert_eq!(rest(&mut enough), MISS, "another get came in between");
    }
}
