// A time line of what ran when, in Chrome's trace format (chrome://tracing, Perfetto): one process
// a rank, one line a thread.
//
//   Trace trace;                                  // a rank's
//   const Trace::Use here(&trace, "main");        // this thread records into it
//   trace.record(true);
//   { const TraceScope scope("step", "forward"); … }
//   write_file_atomic(path, chrome_trace({trace_events(trace.take(), {.rank = 0})}));
//
// While nothing is recorded a scope costs a thread-local load. Recording costs two clock readings,
// a lock and a few dozen bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace weft::observe {

struct Span {
  std::string category, name;
  int thread = 0;          // index of its thread's line
  std::int64_t begin = 0;  // nanoseconds of std::chrono::steady_clock
  std::int64_t end = 0;
  std::int64_t bytes = -1;  // moved; -1: does not apply
};

class Trace {
 public:
  struct Recorded {
    std::vector<Span> spans;           // in the order in which they ended
    std::vector<std::string> threads;  // names of the lines
  };

  // Any thread.
  void record(bool on) noexcept { recording_.store(on, std::memory_order_relaxed); }
  bool recording() const noexcept { return recording_.load(std::memory_order_relaxed); }
  void add(Span span);
  // What was recorded so far, and forgets it.
  Recorded take();

  // The calling thread's; null where it has none.
  static Trace* current() noexcept;
  // The calling thread records into `trace` (null: nowhere) on the line of that name, until this
  // goes. `trace` outlives it.
  class Use {
   public:
    Use(Trace* trace, const char* thread);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Trace* outer_;
    int outer_thread_;
  };

 private:
  int line(const char* thread);

  std::atomic<bool> recording_{false};
  std::mutex mutex_;  // guards what follows
  Recorded recorded_;
};

// Records the time from its making to its end. `category` and `name` are kept only while something
// is recorded.
class TraceScope {
 public:
  TraceScope(const char* category, const char* name, std::int64_t bytes = -1)
      : trace_(Trace::current()) {
    if (trace_ != nullptr && trace_->recording()) {
      begin(category, name, bytes);
    } else {
      trace_ = nullptr;
    }
  }
  ~TraceScope() {
    if (trace_ != nullptr) end();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  void begin(const char* category, const char* name, std::int64_t bytes);
  void end();

  Trace* trace_;
  Span span_;
};

std::int64_t trace_now();

// How far a peer's clock is ahead, from messages there and back (Cristian 1989): the exchange that
// took least time says it best, with an error of at most half that time. `asked` and `answered` are
// of the own clock, `theirs` of the peer's in between; at least one.
struct ClockSample {
  std::int64_t asked = 0, theirs = 0, answered = 0;
};
std::int64_t clock_offset(const std::vector<ClockSample>& samples);

struct TraceTarget {
  int rank = 0;
  std::string label;        // beside the rank's number; may be empty
  std::int64_t offset = 0;  // nanoseconds to add to this rank's clock to get rank 0's
  std::int64_t origin = 0;  // of rank 0's clock: zero on the time line
};
// The events of one rank as JSON objects, separated by commas: text that chrome_trace() puts
// together.
std::string trace_events(const Trace::Recorded& recorded, const TraceTarget& target);
std::string chrome_trace(const std::vector<std::string>& events_of_ranks);

// Nanoseconds in which some thread was in a span of `category`; and in which, besides, some thread
// was in one of `other`. What communication took, and what of it was waited for.
std::int64_t busy(const std::vector<Span>& spans, const std::string& category);
std::int64_t busy_in_both(const std::vector<Span>& spans, const std::string& category,
                          const std::string& other);

}  // namespace weft::observe
