// The wall clock of a job under test: preloaded into its processes (wall_clock.py). It is off by
// the nanoseconds in the file FAULTS_CLOCK, and a test may change them at any time.
//
// A wait until a time of the wall clock ends when this clock says so. Without a jump, all is as
// before. The monotonic clock stays.
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A wait looks at the clock so often.
constexpr std::int64_t kSlice = kSecond / 50;

struct Page {
  std::atomic<std::int64_t> offset;    // nanoseconds
  std::atomic<std::int64_t> readings;  // how often a process has read the clock
};

Page* map_page() {
  static Page right{};  // for a process without the variable
  const char* const path = std::getenv("FAULTS_CLOCK");
  const int fd = path != nullptr ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return &right;
  void* const at = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return at == MAP_FAILED ? &right : static_cast<Page*>(at);
}

Page& page() {
  static Page* const mapped = map_page();
  return *mapped;
}

std::int64_t time_of(clockid_t clock) {
  timespec now{};
  ::syscall(SYS_clock_gettime, clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

std::int64_t wall_time(clockid_t clock = CLOCK_REALTIME) {
  page().readings.fetch_add(1, std::memory_order_relaxed);
  return time_of(clock) + page().offset.load(std::memory_order_relaxed);
}

timespec to_timespec(std::int64_t time) { return {time / kSecond, time % kSecond}; }

// Waits in slices by the monotonic clock, until `end` of this wall clock.
template <typename Wait>
int wait_until(const timespec& end, const Wait& wait) {
  const std::int64_t limit = end.tv_sec * kSecond + end.tv_nsec;
  for (;;) {
    const std::int64_t left = limit - wall_time();
    const timespec until =
        to_timespec(time_of(CLOCK_MONOTONIC) + std::clamp<std::int64_t>(left, 0, kSlice));
    const int result = wait(until);
    if (result != ETIMEDOUT || left <= 0) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) noexcept {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
    return static_cast<int>(::syscall(SYS_clock_gettime, clock, out));
  *out = to_timespec(wall_time(clock));
  return 0;
}

int gettimeofday(timeval* out, void*) noexcept {
  const std::int64_t now = wall_time();
  *out = {now / kSecond, now % kSecond / 1000};
  return 0;
}

time_t time(time_t* out) noexcept {
  const time_t now = wall_time() / kSecond;
  if (out != nullptr) *out = now;
  return now;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* end) {
  // Bit 1 of glibc's word: the condition variable uses the monotonic clock.
  const bool monotonic = (condition->__data.__wrefs & 2) != 0;
  if (monotonic) return ::pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, end);
  return wait_until(*end, [&](const timespec& until) {
    return ::pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &until);
  });
}

int sem_timedwait(sem_t* semaphore, const timespec* end) {
  const int result = wait_until(*end, [&](const timespec& until) {
    return ::sem_clockwait(semaphore, CLOCK_MONOTONIC, &until) == 0 ? 0 : errno;
  });
  if (result != 0) errno = result;
  return result == 0 ? 0 : -1;
}
}
