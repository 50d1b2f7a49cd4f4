#include "tests/chaos/internal/run.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <thread>

namespace weft::chaos::internal {
namespace {

// Time for a job to end after it was told to.
constexpr auto kToEnd = std::chrono::seconds(60);

class Run {
 public:
  explicit Run(const RunOptions& options)
      : options_(options),
        began_(Clock::now()),
        limit_(began_ + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(options.limit_s))),
        injector_({.faults = options.faults,
                   .overlap = options.overlap,
                   .disk = options.disk,
                   .hosts = options.hosts,
                   .origin = began_}) {}

  JobRecord record() {
    do {
      watch();
    } while (!record_.timed_out && must_resume());
    record_.ended_s = seconds(Clock::now());
    record_.faults = injector_.applied(true);
    if (told_ && record_.exit_code == 128 + SIGTERM) record_.exit_code = 0;
    if (!record_.timed_out) record_.digest = digest_of(options_.checkpoints);
    return std::move(record_);
  }

 private:
  double seconds(Clock::time_point at) const {
    return std::chrono::duration<double>(at - began_).count();
  }

  void watch() {
    Job job(options_.job(jobs_ > 0, injector_.failpoints()));
    std::optional<int> code;
    while (!(code = job.exit_code())) {
      const auto now = Clock::now();
      if (now > limit_) return give_up(job);
      if (!told_) injector_.tick(job, now);
      tell_to_stop(job, now);
      job.pump(injector_.next(Clock::now()));
      collect(job);
    }
    job.pump(Clock::now());
    collect(job);
    record_.exit_code = *code;
    record_.leftovers = job.leftovers(options_.own_dev_shm);
    ++jobs_;
  }

  void collect(Job& job) {
    for (const observe::StepTime& one : job.take_steps()) {
      const Clock::time_point at{std::chrono::nanoseconds(one.ns)};
      injector_.on_step(one, jobs_);
      if (!one.ready && !first_step_) first_step_ = at;
      record_.steps.push_back({.at_s = seconds(at),
                               .rank = one.rank,
                               .ranks = one.ranks,
                               .job = jobs_,
                               .group = one.group,
                               .step = one.step,
                               .epoch = one.epoch,
                               .position = one.position,
                               .ready = one.ready});
    }
    for (const Job::Output& line : job.take_output()) {
      injector_.on_output(line);
      record_.lines.push_back({seconds(line.at), line.text});
    }
  }

  void tell_to_stop(Job& job, Clock::time_point now) {
    if (options_.stop_after_s <= 0 || !first_step_ || told_ || !injector_.is_settled()) return;
    if (std::chrono::duration<double>(now - *first_step_).count() < options_.stop_after_s) return;
    told_ = true;
    job.signal(SIGTERM);
  }

  // SIGTERM to a rank ends the job in order. Another fault may happen before it has ended.
  bool must_resume() const {
    if (told_ || record_.exit_code != 128 + SIGTERM) return false;
    const auto applied = injector_.applied(false);
    return jobs_ <= std::count_if(applied.begin(), applied.end(), [](const Applied& one) {
             return one.fault.kind == FaultKind::kTerm;
           });
  }

  void give_up(Job& job) {
    record_.timed_out = true;
    record_.positions = job.positions();
    job.signal(SIGKILL);
    const auto until = Clock::now() + kToEnd;
    while (!job.exit_code() && Clock::now() < until) {
      job.pump(Clock::now() + std::chrono::milliseconds(20));
      collect(job);
    }
    record_.exit_code = job.exit_code().value_or(128 + SIGKILL);
    record_.leftovers = job.leftovers(options_.own_dev_shm);
  }

  const RunOptions& options_;
  const Clock::time_point began_, limit_;
  Injector injector_;
  JobRecord record_;
  std::optional<Clock::time_point> first_step_;
  int jobs_ = 0;
  bool told_ = false;
};

}  // namespace

JobRecord run(const RunOptions& options) { return Run(options).record(); }

}  // namespace weft::chaos::internal
