// Applies the faults of a schedule to a job, and proves that each reached its victim.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/chaos/internal/full_disk.h"
#include "tests/chaos/internal/hosts.h"
#include "tests/chaos/internal/job.h"
#include "tests/chaos/record.h"

namespace weft::chaos::internal {

// When the next fault may happen: not before the job has recovered from the one before.
class Trigger {
 public:
  // `overlap`: faults may happen while the job recovers.
  explicit Trigger(bool overlap) : overlap_(overlap) {}

  void on_step(const observe::StepTime& step, int job, Clock::time_point at);
  // A rank is lost: the job has recovered when all ranks of a later group have finished a step.
  void on_loss();
  void on_fault(Clock::time_point at) { fault_at_ = at; }
  // The instant of the fault. nullopt: it is not known yet.
  std::optional<Clock::time_point> due(const Fault& fault) const;
  std::int64_t newest_step() const { return newest_; }
  bool is_settled() const { return !lost_in_; }

 private:
  using Group = std::pair<int, std::int64_t>;  // number of the job, epoch of the group

  const bool overlap_;
  std::int64_t newest_ = 0;
  std::vector<Clock::time_point> reached_;  // by step, from 0: when a rank had finished it
  std::optional<Clock::time_point> first_at_, settled_at_, fault_at_;
  Group group_{0, 0};
  std::optional<Group> lost_in_;
  std::map<std::int64_t, int> done_;  // by step of a later group: ranks that have finished it
};

class Injector {
 public:
  struct Options {
    std::vector<Fault> faults;
    bool overlap = false;
    FullDisk* disk = nullptr;
    Hosts* hosts = nullptr;
    Clock::time_point origin;  // 0 s of the record
  };
  explicit Injector(Options options);

  void on_output(const Job::Output& line);
  void on_step(const observe::StepTime& step, int job);
  // Does what is due. Call it every few milliseconds.
  void tick(const Job& job, Clock::time_point now);
  // Time of the next call of tick().
  Clock::time_point next(Clock::time_point now) const;
  // True if no fault lasts and the job has recovered from all.
  bool is_settled() const { return !active_ && trigger_.is_settled(); }
  // WEFT_FAIL's text for the failpoints that the job has not reached.
  std::string failpoints() const;
  // The faults so far. After the end of the job: also those after a step that did not happen.
  std::vector<Applied> applied(bool ended) const;

 private:
  struct Active {
    std::size_t at;  // in applied_
    std::optional<Victim> victim;
    Clock::time_point until, toggle;
    bool is_stopped = true;
    int stops_seen = 0;
  };

  void apply(const Fault& fault, const Job& job, Clock::time_point now);
  void apply_to_rank(const Job& job, Clock::time_point now);
  void go_on(Clock::time_point now);
  void end_active(Clock::time_point now);
  double seconds(Clock::time_point at) const {
    return std::chrono::duration<double>(at - options_.origin).count();
  }

  Options options_;
  std::vector<Fault> failpoints_;  // that the job has not reached yet
  std::size_t next_ = 0;           // in options_.faults
  std::vector<Applied> applied_;
  std::optional<Active> active_;
  Trigger trigger_;
};

}  // namespace weft::chaos::internal
