// Preloaded into a server to slow its fsync down and to change its time of day. The file that CHAOS_SHIM names has two
// int64, the delay in microseconds and the difference in seconds, which may change at any time.
//
// A change acts like setting the machine's clock: only CLOCK_REALTIME moves, together with waits for a time of that
// clock, including those that have already begun.
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

// Computes the next part of the wait until `end`, in the kernel's time. Returns 1 if it is the last part.
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

// After each part the waiter wakes up without its condition, as waiters must expect, and checks it again.
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
