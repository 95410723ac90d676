/* Preloaded into the server under test: makes I/O on files of one directory fail as a control file says.
 *
 * AFTERGLOW_SHIM_DIR names the directory. AFTERGLOW_SHIM_CONTROL names a file of at least 64 bytes, which both sides map or
 * write. It has words of 32 bits, little endian:
 * - 0, 1, 2: how many reads, writes and syncs fail with EIO, in millionths;
 * - 3: if not 0, writes and new files fail with ENOSPC;
 * - 8, 9, 10, 11: how many did.
 *
 * Only calls through the C library are seen: the standard library's file operations and msync, not io_uring and not raw system calls.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { READS, WRITES, SYNCS, FULL, COUNTED = 8, WORDS = 16, FILES = 4096 };

static volatile uint32_t nothing[WORDS];
static volatile uint32_t *control = nothing;
static char ours[FILES];
static const char *directory;
static uint64_t state = 88172645463325252ULL;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("AFTERGLOW_SHIM_CONTROL");
  directory = getenv("AFTERGLOW_SHIM_DIR");
  if (!path || !directory) return;
  int fd = REAL(open64)(path, O_RDWR);
  void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || map == MAP_FAILED) _exit(113);
  control = map;
  close(fd);
  state ^= (uint64_t)getpid() << 20;
}

static int is_ours(int fd) { return fd >= 0 && fd < FILES && ours[fd]; }

static int fails(int what) {
  uint32_t share = control[what];
  if (!share) return 0;
  uint64_t x = __atomic_add_fetch(&state, 0x9E3779B97F4A7C15ULL, __ATOMIC_RELAXED);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  if ((x ^ (x >> 31)) % 1000000 >= share) return 0;
  __atomic_add_fetch(&control[COUNTED + what], 1, __ATOMIC_RELAXED);
  errno = EIO;
  return 1;
}

static int is_full(void) {
  if (!control[FULL]) return 0;
  __atomic_add_fetch(&control[COUNTED + FULL], 1, __ATOMIC_RELAXED);
  errno = ENOSPC;
  return 1;
}

static int opened(const char *path, int fd) {
  if (fd >= 0 && fd < FILES) ours[fd] = directory && !strncmp(path, directory, strlen(directory));
  return fd;
}

#define OPEN(name)                                                                          \
  int name(const char *path, int flags, ...) {                                              \
    va_list rest;                                                                           \
    va_start(rest, flags);                                                                  \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;               \
    va_end(rest);                                                                           \
    int is_new = (flags & O_CREAT) && directory && !strncmp(path, directory, strlen(directory)) && access(path, F_OK); \
    if (is_new && is_full()) return -1;                                                     \
    return opened(path, REAL(name)(path, flags, mode));                                     \
  }
OPEN(open)
OPEN(open64)

int close(int fd) {
  if (fd >= 0 && fd < FILES) ours[fd] = 0;
  return REAL(close)(fd);
}

int dup2(int from, int to) {
  if (to >= 0 && to < FILES) ours[to] = is_ours(from);
  return REAL(dup2)(from, to);
}

#define PREAD(name, off)                                            \
  ssize_t name(int fd, void *to, size_t len, off at) {              \
    return is_ours(fd) && fails(READS) ? -1 : REAL(name)(fd, to, len, at); \
  }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define PWRITE(name, off)                                           \
  ssize_t name(int fd, const void *from, size_t len, off at) {      \
    return is_ours(fd) && fails(WRITES) ? -1 : REAL(name)(fd, from, len, at); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int fd, const void *from, size_t len) {
  return is_ours(fd) && (is_full() || fails(WRITES)) ? -1 : REAL(write)(fd, from, len);
}

int fsync(int fd) { return is_ours(fd) && fails(SYNCS) ? -1 : REAL(fsync)(fd); }

int fdatasync(int fd) { return is_ours(fd) && fails(SYNCS) ? -1 : REAL(fdatasync)(fd); }

int msync(void *at, size_t len, int flags) { return fails(SYNCS) ? -1 : REAL(msync)(at, len, flags); }
