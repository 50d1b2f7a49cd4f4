#include "tests/chaos/judge.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

namespace weft::chaos {
namespace {

bool mentions(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

// "rank 1" in the text, but not "rank 12".
bool names_rank(const std::string& text, int rank) {
  const std::string name = "rank " + std::to_string(rank);
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const auto end = at + name.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

bool is_of_launcher(const std::string& text) { return text.starts_with("weft: "); }

// True if the line says that this rank is lost or held.
bool reports_loss(const std::string& text) {
  return is_of_launcher(text) && (mentions(text, "is lost") || mentions(text, "is stopped"));
}

// True if the line names the victim with what happened to it.
bool names(const std::string& text, const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kFailpoint:
      return is_of_launcher(text) && names_rank(text, fault.victim) && mentions(text, "is lost");
    case FaultKind::kStop:
      return is_of_launcher(text) && names_rank(text, fault.victim) &&
             (mentions(text, "stopped") || mentions(text, "SIGSTOP"));
    case FaultKind::kTerm: return names_rank(text, fault.victim) && mentions(text, "told to stop");
    case FaultKind::kDiskFull: return mentions(text, "No space left");
    case FaultKind::kPause:
    case FaultKind::kSlow:
    case FaultKind::kPartition: return false;
  }
  return false;
}

bool must_be_named(FaultKind kind) { return loses_a_rank(kind) || kind == FaultKind::kTerm; }

// Steps between faults.
struct Calm {
  const std::vector<GroupStep>& finished;
  double seconds = 0;
  std::int64_t steps = 0;
  void add(double from_s, double to_s) {
    const auto is_before = [](const GroupStep& one, double at_s) { return one.at_s < at_s; };
    const auto first = std::lower_bound(finished.begin(), finished.end(), from_s, is_before),
               end = std::lower_bound(finished.begin(), finished.end(), to_s, is_before);
    if (end - first < 2) return;
    seconds += (end - 1)->at_s - first->at_s;
    steps += end - first - 1;
  }
};

class Judge {
 public:
  Judge(const JobRecord& undisturbed, const JobRecord& disturbed, const Expected& expected)
      : reference_(undisturbed),
        job_(disturbed),
        expected_(expected),
        finished_(finished_steps(disturbed.steps)) {}

  Verdict verdict() {
    judge_end();
    judge_steps();
    for (const Applied& applied : job_.faults) judge_fault(applied);
    judge_alarms();
    judge_order_of_groups();
    measure();
    return std::move(verdict_);
  }

 private:
  void problem(const std::string& text) { verdict_.problems.push_back(text); }

  void judge_end() {
    if (job_.timed_out) {
      problem("the job did not end within its limit of time");
    } else if (job_.exit_code != 0) {
      problem("the job ended with exit code " + std::to_string(job_.exit_code) +
              (job_.lines.empty() ? "" : ": " + job_.lines.back().text));
    }
    if (job_.faults.empty()) {
      verdict_.faults_happened = false;
      problem("no fault was applied");
    }
    verdict_.same_digest = !job_.digest.empty() && job_.digest == reference_.digest;
    if (expected_.same_weights && !verdict_.same_digest) {
      problem(job_.digest.empty() ? "the job has left no checkpoint"
                                  : "the last checkpoint differs from the undisturbed job's");
    }
    for (const std::string& left : job_.leftovers) problem("left behind: " + left);
  }

  // Every step is there, and has used the same samples.
  void judge_steps() {
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> wanted, done;
    for (const GroupStep& one : finished_steps(reference_.steps))
      wanted[one.step] = {one.epoch, one.position};
    for (const GroupStep& one : finished_) done[one.step] = {one.epoch, one.position};
    verdict_.steps = static_cast<std::int64_t>(done.size());
    for (const auto& [step, place] : wanted) {
      const auto found = done.find(step);
      if (found != done.end() && found->second == place) continue;
      return problem("step " + std::to_string(step) +
                     (found == done.end() ? " was lost" : " used other samples"));
    }
  }

  void judge_fault(const Applied& applied) {
    FaultResult result;
    if (!applied.reached) {
      verdict_.faults_happened = false;
      result.problem = "it did not reach its victim: " + applied.why_not;
    }
    const Fault& fault = applied.fault;
    if (applied.reached) measure_recovery(applied, result);
    for (const Line& line : job_.lines) {
      if (!applied.reached || result.named_s || line.at_s < applied.at_s ||
          !names(line.text, fault))
        continue;
      result.named_s = line.at_s - applied.at_s;
    }
    if (result.problem.empty() && must_be_named(fault.kind) && !result.named_s)
      result.problem = "the job's output does not name the rank and the fault";
    if (result.problem.empty() && !result.next_step_s)
      result.problem = "no step was finished after it";
    if (result.problem.empty() && *result.next_step_s > expected_.slowest_s + fault.lasts_s)
      result.problem = "the next step took too long";
    if (!result.problem.empty())
      problem(std::string(to_string(fault.kind)) + " of " +
              (fault.kind == FaultKind::kPartition ? "host " : "rank ") +
              std::to_string(fault.victim) + " after step " + std::to_string(applied.step) + ": " +
              result.problem);
    verdict_.faults.push_back(std::move(result));
  }

  void measure_recovery(const Applied& applied, FaultResult& result) const {
    if (loses_a_rank(applied.fault.kind) || applied.fault.kind == FaultKind::kTerm) {
      measure_new_group(applied, result);
    } else {
      measure_longest_wait(applied, result);
    }
  }

  // The others may still finish the step in which a rank was lost, so the next step is one of a
  // later group, or of the job that was resumed.
  void measure_new_group(const Applied& applied, FaultResult& result) const {
    std::pair<int, std::int64_t> before{0, 0};
    for (const RankStep& one : job_.steps) {
      if (one.at_s <= applied.at_s) before = std::max(before, {one.job, one.group});
    }
    const auto is_after = [&](const auto& one) {
      return one.at_s > applied.at_s && std::pair<int, std::int64_t>(one.job, one.group) > before;
    };
    for (const GroupStep& one : finished_) {
      if (!is_after(one)) continue;
      if (!result.next_step_s) result.next_step_s = one.at_s - applied.at_s;
      if (!result.caught_up_s && one.step > applied.step)
        result.caught_up_s = one.at_s - applied.at_s;
    }
    for (const RankStep& one : job_.steps) {
      if (!one.ready || !is_after(one)) continue;
      result.redone = std::max<std::int64_t>(0, applied.step - one.step);
      return;
    }
  }

  // The longest time without a finished step, from the fault to its end.
  void measure_longest_wait(const Applied& applied, FaultResult& result) const {
    const double end = applied.at_s + applied.fault.lasts_s;
    double from = applied.at_s;
    for (const GroupStep& one : finished_) {
      if (one.at_s <= applied.at_s) continue;
      result.next_step_s = std::max(result.next_step_s.value_or(0), one.at_s - from);
      from = one.at_s;
      if (one.at_s >= end) break;
    }
    result.caught_up_s = result.next_step_s;
  }

  // No rank is reported as lost or stopped unless a fault explains it.
  void judge_alarms() {
    for (const Line& line : job_.lines) {
      if (!reports_loss(line.text)) continue;
      bool explained = false;
      for (std::size_t i = 0; i < job_.faults.size(); ++i) {
        const Applied& applied = job_.faults[i];
        const double until = applied.at_s + verdict_.faults[i].caught_up_s.value_or(1e9);
        explained = explained || (loses_a_rank(applied.fault.kind) &&
                                  names_rank(line.text, applied.fault.victim) &&
                                  line.at_s >= applied.at_s && line.at_s <= until);
      }
      if (!explained) problem("false alarm: " + line.text);
    }
  }

  // Two groups never train at the same time.
  void judge_order_of_groups() {
    std::pair<int, std::int64_t> newest{0, 0};
    for (const GroupStep& one : finished_) {
      const std::pair<int, std::int64_t> group{one.job, one.group};
      if (group < newest) {
        return problem("group " + std::to_string(one.group) + " finished step " +
                       std::to_string(one.step) + " after a later group had finished a step");
      }
      newest = group;
    }
  }

  void measure() {
    verdict_.redone = static_cast<std::int64_t>(finished_.size()) - verdict_.steps;
    const double step_s = expected_.step_s.value_or(seconds_per_step(reference_));
    if (finished_.size() < 2 || step_s <= 0) return;
    verdict_.wall_s = finished_.back().at_s - finished_.front().at_s;
    verdict_.useful_s = step_s * static_cast<double>(verdict_.steps - 1);
    verdict_.goodput = verdict_.wall_s > 0 ? verdict_.useful_s / verdict_.wall_s : 0;
    Calm calm{finished_};
    double lost = 0, until = 0;
    for (std::size_t i = 0; i < job_.faults.size(); ++i) {
      const double at_s = job_.faults[i].at_s;
      if (i > 0) calm.add(until + kCalm_s, at_s);
      const double begin = std::max(until, at_s);
      until = std::max(until, at_s + verdict_.faults[i].caught_up_s.value_or(0));
      lost += std::max(0.0, until - begin);
    }
    calm.add(until + kCalm_s, finished_.back().at_s);
    if (calm.steps > 0) verdict_.calm_step_s = calm.seconds / static_cast<double>(calm.steps);
    verdict_.interrupted = verdict_.wall_s > 0 ? lost / verdict_.wall_s : 0;
  }

  const JobRecord& reference_;
  const JobRecord& job_;
  const Expected expected_;
  const std::vector<GroupStep> finished_;
  Verdict verdict_;
};

}  // namespace

Verdict judge(const JobRecord& undisturbed, const JobRecord& disturbed, const Expected& expected) {
  return Judge(undisturbed, disturbed, expected).verdict();
}

double seconds_per_step(const JobRecord& job) {
  const auto all = finished_steps(job.steps);
  if (all.size() < 2) return 0;
  return (all.back().at_s - all.front().at_s) / static_cast<double>(all.size() - 1);
}

std::optional<double> percentile(std::vector<double> values, double share) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

}  // namespace weft::chaos
