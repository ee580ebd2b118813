// Preloaded into a server: its fsync takes longer and its time of day differs, as the file that CHAOS_SHIM names says:
// two int64, microseconds of delay and seconds of difference, which may be changed at any time.
//
// A change is what setting the machine's clock is: CLOCK_REALTIME alone moves, and with it the waits for a time of it,
// those that have begun too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static const long kPartOfWait = 20000000;  // ns

static const volatile int64_t* settings;

__attribute__((constructor)) static void Open(void) {
  const char* path = getenv("CHAOS_SHIM");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void* const found = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) settings = found;
  if (fd >= 0) close(fd);
}

static void Delay(void) {
  if (settings != NULL && settings[0] > 0) usleep((useconds_t)settings[0]);
}

int fsync(int fd) {
  Delay();
  return REAL(fsync)(fd);
}

int fdatasync(int fd) {
  Delay();
  return REAL(fdatasync)(fd);
}

static int Now(clockid_t clock, struct timespec* now) {
  static __typeof__(&clock_gettime) real;
  if (real == NULL) real = REAL(clock_gettime);
  return real(clock, now);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int status = Now(clock, now);
  if (status == 0 && clock == CLOCK_REALTIME && settings != NULL) now->tv_sec += settings[1];
  return status;
}

// A part of the wait until `end`, as the kernel has the time; 1 if it is the last one.
static int PartOf(const struct timespec* end, struct timespec* part) {
  Now(CLOCK_REALTIME, part);
  part->tv_nsec += kPartOfWait;
  part->tv_sec += part->tv_nsec / 1000000000;
  part->tv_nsec %= 1000000000;
  const int64_t seconds = end->tv_sec - settings[1];
  if (seconds > part->tv_sec || (seconds == part->tv_sec && end->tv_nsec > part->tv_nsec)) return 0;
  *part = (struct timespec){seconds < 0 ? 0 : seconds, end->tv_nsec};
  return 1;
}

// Waiters look again what they wait for when they wake for nothing, as they do here after each part.
long syscall(long number, ...) {
  static __typeof__(&syscall) real;
  if (real == NULL) real = REAL(syscall);
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  const int wait = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  const int waits = number == SYS_futex && ((int)a[1] & ~FUTEX_PRIVATE_FLAG) == wait && a[3] != 0;
  if (!waits || settings == NULL) return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  struct timespec part;
  const int last = PartOf((const struct timespec*)a[3], &part);
  const long status = real(number, a[0], a[1], a[2], &part, a[4], a[5]);
  if (status != 0 && errno == ETIMEDOUT && !last) errno = EINTR;
  return status;
}

int pthread_cond_timedwait(pthread_cond_t* cond, pthread_mutex_t* mutex, const struct timespec* end) {
  static __typeof__(&pthread_cond_timedwait) real;
  if (real == NULL) real = REAL(pthread_cond_timedwait);
  if (settings == NULL) return real(cond, mutex, end);
  struct timespec part;
  const int last = PartOf(end, &part);
  const int status = real(cond, mutex, &part);
  return status == ETIMEDOUT && !last ? 0 : status;
}
