// Preloaded into a server: its fsync takes longer and its clock differs, as the file that CHAOS_SHIM names says: two
// int64, microseconds of delay and seconds of difference, which may be changed at any time.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* settings;

__attribute__((constructor)) static void Open(void) {
  const char* path = getenv("CHAOS_SHIM");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void* const found = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) settings = found;
  if (fd >= 0) close(fd);
}

static int Synced(const char* name, int fd) {
  int (*const real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
  if (settings != NULL && settings[0] > 0) usleep((useconds_t)settings[0]);
  return real(fd);
}

int fsync(int fd) { return Synced("fsync", fd); }
int fdatasync(int fd) { return Synced("fdatasync", fd); }

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == NULL) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int status = real(clock, now);
  if (status == 0 && clock == CLOCK_REALTIME && settings != NULL) now->tv_sec += settings[1];
  return status;
}
