/* Preloaded into a server: flushes to disk do not return while the file named by STALLED exists, as on a disk that does not
 * answer. Calls through the C library are seen, io_uring's are not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void stall(void) {
  const char *path = getenv("STALLED");
  while (path && !access(path, F_OK)) usleep(1000);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd) {
  stall();
  return REAL(fsync)(fd);
}

int fdatasync(int fd) {
  stall();
  return REAL(fdatasync)(fd);
}

int msync(void *at, size_t len, int flags) {
  stall();
  return REAL(msync)(at, len, flags);
}
