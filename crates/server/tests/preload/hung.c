/* Preloaded into a server: reads, writes and flushes of the file named by HUNG do not return while the file named by STALLED
 * exists, as on a device that does not answer. Calls through the C library are seen, io_uring's are not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static void hang(int fd) {
  const char *hung = getenv("HUNG"), *stalled = getenv("STALLED");
  struct stat mine, its;
  if (!hung || !stalled || access(stalled, F_OK)) return;
  if (fstat(fd, &mine) || stat(hung, &its) || mine.st_ino != its.st_ino || mine.st_dev != its.st_dev) return;
  while (!access(stalled, F_OK)) usleep(1000);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pread(int fd, void *data, size_t len, off_t at) {
  hang(fd);
  return REAL(pread)(fd, data, len, at);
}

ssize_t pread64(int fd, void *data, size_t len, off64_t at) {
  hang(fd);
  return REAL(pread64)(fd, data, len, at);
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t at) {
  hang(fd);
  return REAL(pwrite64)(fd, data, len, at);
}

int fdatasync(int fd) {
  hang(fd);
  return REAL(fdatasync)(fd);
}
