// Records a timeline in Chrome's trace format (chrome://tracing, Perfetto). Each rank is shown as a
// process, each thread as a line.
//
//   Trace trace;                                  // one for each rank
//   const Trace::Use here(&trace, "main");        // this thread records into it
//   trace.record(true);
//   { const TraceScope scope("step", "forward"); … }
//   write_file_atomic(path, chrome_trace({trace_events(trace.take(), {.rank = 0})}));
//
// A scope costs a thread-local load while recording is off. While it is on, a scope costs two clock
// readings, a lock and a few dozen bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace weft::observe {

struct Span {
  std::string category, name;
  int thread = 0;          // index of its thread's line
  std::int64_t begin = 0;  // nanoseconds of std::chrono::steady_clock
  std::int64_t end = 0;
  std::int64_t bytes = -1;  // bytes moved; -1: does not apply
};

class Trace {
 public:
  struct Recorded {
    std::vector<Span> spans;           // in the order in which they ended
    std::vector<std::string> threads;  // names of the lines
  };

  // Any thread may call these.
  void record(bool on) noexcept { recording_.store(on, std::memory_order_relaxed); }
  bool recording() const noexcept { return recording_.load(std::memory_order_relaxed); }
  void add(Span span);
  // Returns the recorded spans and removes them from the trace.
  Recorded take();

  // The trace of the calling thread; null if it has none.
  static Trace* current() noexcept;
  // The same, for another thread that works for this one. Expires with the trace.
  static std::weak_ptr<Trace> current_for_others() noexcept;
  // While this object lives, the calling thread records into `trace` (null: not at all), on the
  // line named `thread`. `trace` must outlive it.
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

  const std::shared_ptr<Trace> self_{this, [](Trace*) {}};  // does not own it
  std::atomic<bool> recording_{false};
  std::mutex mutex_;  // guards recorded_
  Recorded recorded_;
};

// Records its lifetime as a span, if the trace is recording when it is created. `category` and
// `name` are copied only in that case.
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

// Returns how far a peer's clock is ahead of this one (Cristian 1989). Uses the exchange of
// messages with the shortest round trip; the error is at most half of that round trip. `asked` and
// `answered` are times of the own clock at the start and the end of an exchange. `theirs` is the
// time of the peer's clock in between. Needs at least one sample.
struct ClockSample {
  std::int64_t asked = 0, theirs = 0, answered = 0;
};
std::int64_t clock_offset(const std::vector<ClockSample>& samples);

struct TraceTarget {
  int rank = 0;
  std::string label;        // shown beside the rank's number; may be empty
  std::int64_t offset = 0;  // nanoseconds to add to this rank's clock to get rank 0's
  std::int64_t origin = 0;  // time of rank 0's clock that is zero on the timeline
};
// The events of one rank as JSON objects, separated by commas. chrome_trace() joins the events of
// all ranks into a file.
std::string trace_events(const Trace::Recorded& recorded, const TraceTarget& target);
std::string chrome_trace(const std::vector<std::string>& events_of_ranks);

// busy(): nanoseconds in which at least one thread was in a span of `category`. busy_in_both(): the
// part of them in which at least one thread was also in a span of `other`. With communication and
// waiting as the two categories, the second number is exposed communication.
std::int64_t busy(const std::vector<Span>& spans, const std::string& category);
std::int64_t busy_in_both(const std::vector<Span>& spans, const std::string& category,
                          const std::string& other);

}  // namespace weft::observe
