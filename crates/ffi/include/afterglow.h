// The Afterglow cache engine for C. Made by cbindgen from crates/ffi/src: change that, then
// `AFTERGLOW_BLESS=1 cargo test -p afterglow-ffi --test header`.
//
// Every function may be called from any thread, but for those of one aglow_keys; freeing a handle is its last use. A call that is
// refused or fails leaves a message for its thread: aglow_error().

#ifndef AFTERGLOW_H
#define AFTERGLOW_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Grows when a function or structure changes in a way that a caller built before would not
// survive.
#define AGLOW_ABI 1

// A key has one value for ever: puts need no journal.
#define AGLOW_IMMUTABLE 1

// Objects are served after a clean stop only, not after a crash: no journal at all.
#define AGLOW_SURVIVES_CLEAN_STOP_ONLY 2

// A put is acknowledged once it is on flash.
#define AGLOW_WRITE_THROUGH 4

// A put is acknowledged once it would survive power loss.
#define AGLOW_SYNCED 8

// How a call ended. Failures are negative.
typedef enum {
  // Done; a lookup has found the object.
  AGLOW_OK = 0,
  // A lookup found nothing, whatever the reason (the counters know it).
  AGLOW_MISS = 1,
  // A put was refused; the older object is gone all the same, unless the message says that
  // nothing was changed.
  AGLOW_REFUSED = 2,
  // A listing is over, and complete.
  AGLOW_END = 3,
  // An argument cannot be.
  AGLOW_E_ARGUMENT = -1,
  // The cache or namespace could not be opened: the message says why and what to do.
  AGLOW_E_OPEN = -2,
  // The buffer is too small; the length that is needed was told.
  AGLOW_E_TOO_SMALL = -3,
  // The listing ended before it was complete.
  AGLOW_E_INCOMPLETE = -4,
  // A bug in Afterglow. What was called may have been carried out or not: drop the cache.
  AGLOW_E_PANIC = -5,
  // The cache is closed, and the next opening is as after a crash.
  AGLOW_E_NOT_CLEAN = -6,
} aglow_status;

// An open cache.
typedef struct aglow_cache aglow_cache;

// A listing under way. Only one thread at a time may use it.
typedef struct aglow_keys aglow_keys;

// A namespace of an open cache.
typedef struct aglow_namespace aglow_namespace;

// A file or block device that holds objects.
typedef struct {
  // A regular file, created when missing, or a block device. UTF-8.
  const char *path;
  // Bytes to use, a multiple of 4096; 0 for all of a block device.
  uint64_t size;
} aglow_device;

// How to open a cache. Zero is the default of every number.
typedef struct {
  // `sizeof(aglow_config)`: the library knows by it which fields the caller knows.
  size_t struct_size;
  // Directory of journal, metadata and lock; created when missing. UTF-8.
  const char *data_dir;
  // The devices.
  const aglow_device *devices;
  // How many.
  size_t device_count;
  // Bytes of memory for everything; default 256 MiB, at least 16 MiB.
  uint64_t memory;
  // Bytes of journal; default 64 MiB. Fixed when the cache is created.
  uint64_t journal_size;
  // Bytes per second that may be written to flash, averaged over a day; default: no limit.
  uint64_t write_budget;
  // Bytes per segment, a power of two from 64 KiB to 16 MiB. An object may be a quarter of it.
  // Fixed when the cache is created.
  uint32_t segment_size;
  // Device reads in flight at once, more are misses; default 256.
  uint32_t max_blocking_reads;
  // Not 0: the journal is mapped into memory, which is faster, but a disk that fails may end the
  // process with SIGBUS.
  uint32_t mapped_journal;
} aglow_config;

// What a lookup tells of an object besides its value.
typedef struct {
  // Length of the value.
  size_t len;
  // Its version: larger for every later put of any key.
  uint64_t version;
  // Unix seconds when it expires, 0 for never.
  uint32_t expiry;
  // The group it was put into, 0 for none.
  uint32_t group;
  // Where it was found: 0 DRAM, 1 memory not yet written, 2 flash.
  uint32_t tier;
} aglow_hit;

// What a put carries besides key and value.
typedef struct {
  // Unix seconds when the object expires, 0 for never.
  uint32_t expiry;
  // Objects of one group die together by [`aglow_remove_group`]; 0 is no group.
  uint32_t group;
} aglow_put_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// [`AGLOW_ABI`] of the library that is loaded.
uint32_t aglow_abi(void);

// Opens a cache, creating it when there is none. What survived is served at once.
//
// # Safety
// `config` and what it points at are valid during the call, `cache` may be written.
aglow_status aglow_cache_open(const aglow_config *config, aglow_cache **cache);

// The clean stop: writes everything out, so that the next opening is warm. Returns when that is
// done; lookups go on to be answered, puts are refused. `AGLOW_E_NOT_CLEAN` if something could not
// be written: the next opening is then as after a crash. Calling it again does nothing but say the
// same.
//
// # Safety
// `cache` is a handle that was opened and not freed.
aglow_status aglow_cache_close(const aglow_cache *cache);

// Frees a cache. Without [`aglow_cache_close`] before, it is like the death of the process. Null
// is allowed.
//
// # Safety
// `cache` is null, or was opened, and nobody uses it any more; its namespaces are freed too, or
// not used any more.
aglow_status aglow_cache_free(aglow_cache *cache);

// Opens a namespace, creating it when there is none of that name. `flags` are the AGLOW_* bits for
// namespaces; with another mutability or survival than before it starts empty.
//
// # Safety
// `cache` is an open handle, `name` a text, `namespace_` may be written.
aglow_status aglow_namespace_open(const aglow_cache *cache,
                                  const char *name,
                                  uint32_t flags,
                                  aglow_namespace **namespace_);

// Frees a namespace handle. Null is allowed.
//
// # Safety
// `namespace_` is null, or was opened, and nobody uses it any more.
aglow_status aglow_namespace_free(aglow_namespace *namespace_);

// The message of the calling thread's last call that was refused or failed; empty if there was
// none. Valid until this thread's next such call. UTF-8.
const char *aglow_error(void);

// Begins to list the keys of a namespace. All that are there from now until the end are listed,
// and maybe some put or removed meanwhile; a key may come twice.
//
// # Safety
// `namespace_` is an open handle, `keys` may be written.
aglow_status aglow_keys_open(const aglow_namespace *namespace_, aglow_keys **keys);

// Copies the next key to `buffer`: `AGLOW_OK`, at the end `AGLOW_END`. With `AGLOW_E_TOO_SMALL` it
// is not passed: call again with room for `*len` bytes. After `AGLOW_E_INCOMPLETE` there are no
// more keys, and some were not listed.
//
// # Safety
// `keys` is an open listing that no other thread uses, `buffer` takes `capacity` bytes, `len` is
// null or may be written.
aglow_status aglow_keys_next(aglow_keys *keys, uint8_t *buffer, size_t capacity, size_t *len);

// Ends a listing. Null is allowed.
//
// # Safety
// `keys` is null or an open listing, which nobody uses any more.
aglow_status aglow_keys_free(aglow_keys *keys);

// Copies the oldest line of the engine's log that was not yet fetched: `AGLOW_OK`, or `AGLOW_MISS`
// if there is none. It begins with its level (`INFO`, `WARN`, `ERROR`). The last 256 lines are
// kept. A line longer than `capacity` is cut.
//
// # Safety
// `buffer` takes `capacity` bytes, `len` is null or may be written.
aglow_status aglow_log_next(uint8_t *buffer, size_t capacity, size_t *len);

// Looks a key up, with one read from flash on the calling thread if need be, and copies the value
// to `buffer`. A value that is larger than `capacity` is not copied: the call is
// `AGLOW_E_TOO_SMALL` and `hit` has the length.
//
// # Safety
// `namespace_` is an open handle, `key` has `key_len` bytes, `buffer` takes `capacity` bytes,
// `hit` is null or may be written.
aglow_status aglow_get(const aglow_namespace *namespace_,
                       const uint8_t *key,
                       size_t key_len,
                       uint8_t *buffer,
                       size_t capacity,
                       aglow_hit *hit);

// Puts an object. After this returns, no lookup returns an older value of the key, even if the put
// was refused. The exception is a closed cache, which changes nothing.
//
// # Safety
// `namespace_` is an open handle. `key` and `value` have so many bytes. `options` is null (no
// expiry, no group) or valid. `version` is null or may be written.
aglow_status aglow_put(const aglow_namespace *namespace_,
                       const uint8_t *key,
                       size_t key_len,
                       const uint8_t *value,
                       size_t value_len,
                       const aglow_put_options *options,
                       uint64_t *version);

// Puts an object if the key's version is `*expected`, or with `expected` null if there is no such
// object. Otherwise it is refused and nothing is changed, also when the object cannot be looked at
// now.
//
// # Safety
// As [`aglow_put`]; `expected` is null or valid.
aglow_status aglow_put_if(const aglow_namespace *namespace_,
                          const uint8_t *key,
                          size_t key_len,
                          const uint8_t *value,
                          size_t value_len,
                          const aglow_put_options *options,
                          const uint64_t *expected,
                          uint64_t *version);

// Removes an object. When this returns no lookup finds it.
//
// # Safety
// `namespace_` is an open handle, `key` has `key_len` bytes.
aglow_status aglow_remove(const aglow_namespace *namespace_, const uint8_t *key, size_t key_len);

// Removes all objects put into a group before, in constant time.
//
// # Safety
// `namespace_` is an open handle.
aglow_status aglow_remove_group(const aglow_namespace *namespace_, uint32_t group);

// Removes all objects of a namespace, in constant time.
//
// # Safety
// `namespace_` is an open handle.
aglow_status aglow_clear(const aglow_namespace *namespace_);

// Copies the counters to `buffer` as text: one line for each figure, `name value`. Those of a
// namespace begin with its name and a dot. `*len` is set to the length; there is no zero byte at
// the end.
//
// # Safety
// `cache` is an open handle, `buffer` takes `capacity` bytes, `len` is null or may be written.
aglow_status aglow_stats(const aglow_cache *cache, uint8_t *buffer, size_t capacity, size_t *len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AFTERGLOW_H */
