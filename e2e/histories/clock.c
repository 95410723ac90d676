/* Preloaded into a process under test. The file AFTERGLOW_CLOCK holds two signed bytes, and eight at
 * 8. Its wall clock is stepped by the seconds that the first one says. Its clocks that never step
 * run faster by so many parts of 10,000 as the second one says, from the nanosecond on that the
 * eight say: so a restart does not set them back, and the kernel's timers stay near. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { STEP, DRIFT, BASE = 8, BYTES = 16 };
static int (*real)(clockid_t, struct timespec *);
static volatile signed char *says;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("AFTERGLOW_CLOCK");
  real = dlsym(RTLD_NEXT, "clock_gettime");
  int file = path ? open(path, O_RDONLY) : -1;
  void *page = file < 0 ? MAP_FAILED : mmap(0, BYTES, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) says = page;
}

static void drift(struct timespec *time) {
  long long nanoseconds = time->tv_sec * 1000000000LL + time->tv_nsec;
  long long base = *(volatile long long *)(says + BASE);
  nanoseconds += (nanoseconds - base) / 10000 * says[DRIFT];
  time->tv_sec = nanoseconds / 1000000000;
  time->tv_nsec = nanoseconds % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int failed = real(clock, time);
  if (failed || !says) return failed;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) time->tv_sec += says[STEP];
  if (clock == CLOCK_BOOTTIME || clock == CLOCK_MONOTONIC) drift(time);
  return failed;
}
