#include "tests/chaos/internal/injector.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <thread>

namespace weft::chaos::internal {
namespace {

constexpr auto kTick = std::chrono::milliseconds(2);
// A slow rank runs for a fifth of the time.
constexpr auto kRun = std::chrono::milliseconds(20), kHalt = std::chrono::milliseconds(80);
// Until a signal has had its effect.
constexpr auto kEffect = std::chrono::seconds(2);

Clock::duration of_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

template <class Condition>
bool soon(const Condition& condition) {
  const auto deadline = Clock::now() + kEffect;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace

void Trigger::on_step(const observe::StepTime& step, int job, Clock::time_point at) {
  const Group group{job, step.group};
  group_ = std::max(group_, group);
  if (lost_in_ && group > *lost_in_ && !step.ready && ++done_[step.step] == step.ranks) {
    lost_in_.reset();
    settled_at_ = at;
  }
  if (step.ready) return;
  if (!first_at_) first_at_ = at;
  if (step.step <= newest_ && !reached_.empty()) return;
  newest_ = step.step;
  reached_.resize(static_cast<std::size_t>(newest_) + 1, at);
}

void Trigger::on_loss() {
  lost_in_ = group_;
  done_.clear();
}

std::optional<Clock::time_point> Trigger::due(const Fault& fault) const {
  if (!first_at_ || (lost_in_ && !overlap_)) return std::nullopt;
  Clock::time_point from = fault_at_.value_or(*first_at_);
  if (fault.after_step >= 0) {
    if (newest_ < fault.after_step) return std::nullopt;
    from = reached_[static_cast<std::size_t>(fault.after_step)];
    if (settled_at_ && !overlap_) from = std::max(from, *settled_at_);
  }
  return from + of_seconds(fault.delay_s);
}

Injector::Injector(Options options) : options_(std::move(options)), trigger_(options_.overlap) {
  std::erase_if(options_.faults, [this](const Fault& fault) {
    if (fault.kind != FaultKind::kFailpoint) return false;
    failpoints_.push_back(fault);
    return true;
  });
}

// "weft: failpoint update.middle: process 77, rank 1, step 31"
void Injector::on_output(const Job::Output& line) {
  const std::string mark = "failpoint ";
  const auto begin = line.text.find("weft: " + mark);
  if (begin == std::string::npos) return;
  for (auto it = failpoints_.begin(); it != failpoints_.end(); ++it) {
    const std::string place = it->failpoint.substr(0, it->failpoint.find(':'));
    const bool same_place = line.text.find(mark + place + ":", begin) != std::string::npos;
    const bool same_rank =
        line.text.find(", rank " + std::to_string(it->victim) + ",", begin) != std::string::npos;
    if (!same_place || !same_rank) continue;
    applied_.push_back(
        {.fault = *it, .at_s = seconds(line.at), .step = trigger_.newest_step(), .reached = true});
    failpoints_.erase(it);
    trigger_.on_loss();
    trigger_.on_fault(line.at);
    return;
  }
}

void Injector::on_step(const observe::StepTime& step, int job) {
  trigger_.on_step(step, job, Clock::time_point(std::chrono::nanoseconds(step.ns)));
}

void Injector::tick(const Job& job, Clock::time_point now) {
  if (active_) return go_on(now);
  if (next_ == options_.faults.size()) return;
  const Fault& fault = options_.faults[next_];
  const auto due = trigger_.due(fault);
  if (!due || now < *due) return;
  ++next_;
  apply(fault, job, now);
}

Clock::time_point Injector::next(Clock::time_point now) const {
  Clock::time_point at = now + kTick;
  if (active_) return std::min(at, active_->toggle);
  if (next_ == options_.faults.size()) return now + 10 * kTick;
  if (const auto due = trigger_.due(options_.faults[next_])) at = std::min(at, *due);
  return at;
}

std::string Injector::failpoints() const {
  std::string text;
  for (const Fault& fault : failpoints_) text += (text.empty() ? "" : ";") + fault.failpoint;
  return text;
}

std::vector<Applied> Injector::applied(bool ended) const {
  std::vector<Applied> all = applied_;
  if (!ended) return all;
  for (std::size_t i = next_; i < options_.faults.size(); ++i) {
    // Those at random times happen as long as there is time.
    if (options_.faults[i].after_step >= 0)
      all.push_back({.fault = options_.faults[i], .why_not = "the job ended before it"});
  }
  for (const Fault& fault : failpoints_)
    all.push_back(
        {.fault = fault, .why_not = "the job did not reach the place " + fault.failpoint});
  return all;
}

void Injector::apply(const Fault& fault, const Job& job, Clock::time_point now) {
  trigger_.on_fault(now);
  applied_.push_back({.fault = fault, .at_s = seconds(now), .step = trigger_.newest_step()});
  active_ = Active{.at = applied_.size() - 1, .until = now + of_seconds(fault.lasts_s)};
  active_->toggle = active_->until;
  Applied& applied = applied_.back();
  switch (fault.kind) {
    case FaultKind::kDiskFull:
      applied.reached = options_.disk->fill();
      if (!applied.reached) applied.why_not = "writes to the disk did not fail";
      return;
    case FaultKind::kPartition:
      options_.hosts->cut(fault.victim);
      applied.reached = options_.hosts->is_cut(fault.victim);
      if (!applied.reached) applied.why_not = "the host was still answered";
      return;
    default: apply_to_rank(job, now);
  }
}

void Injector::apply_to_rank(const Job& job, Clock::time_point now) {
  Applied& applied = applied_[active_->at];
  const FaultKind kind = applied.fault.kind;
  // A rank that was lost has a new process in a moment.
  soon([&] { return (active_->victim = job.rank(applied.fault.victim)).has_value(); });
  if (!active_->victim) {
    applied.why_not = "the rank had no process";
    active_.reset();
    return;
  }
  const Victim& victim = *active_->victim;
  applied.pid = victim.pid();
  const auto stopped = [&] { return victim.state() == 'T'; };
  const bool halts = kind != FaultKind::kKill && kind != FaultKind::kTerm;
  const int number = halts ? SIGSTOP : kind == FaultKind::kKill ? SIGKILL : SIGTERM;
  if (loses_a_rank(kind) || kind == FaultKind::kTerm) trigger_.on_loss();
  now = Clock::now();
  applied.at_s = seconds(now);
  const bool sent = victim.send(number);
  // The effect of SIGTERM shows in the job's output; the verdict asks for it.
  applied.reached = sent && (kind == FaultKind::kTerm ||
                             (halts ? soon(stopped) : soon([&] { return victim.has_ended(); })));
  if (!applied.reached) applied.why_not = "the signal had no effect";
  if (!has_a_duration(kind)) active_.reset();
  if (kind == FaultKind::kSlow) active_->toggle = now + kHalt;
}

void Injector::go_on(Clock::time_point now) {
  if (now >= active_->until) return end_active(now);
  if (applied_[active_->at].fault.kind != FaultKind::kSlow || now < active_->toggle) return;
  const Victim& victim = *active_->victim;
  if (active_->is_stopped && victim.state() == 'T') ++active_->stops_seen;
  victim.send(active_->is_stopped ? SIGCONT : SIGSTOP);
  active_->is_stopped = !active_->is_stopped;
  active_->toggle = now + (active_->is_stopped ? kHalt : kRun);
}

void Injector::end_active(Clock::time_point now) {
  Applied& applied = applied_[active_->at];
  const auto complain = [&](const char* why) {
    if (!applied.reached) return;
    applied.reached = false;
    applied.why_not = why;
  };
  switch (applied.fault.kind) {
    case FaultKind::kDiskFull: options_.disk->free(); break;
    case FaultKind::kPartition:
      if (!options_.hosts->is_cut(applied.fault.victim)) complain("the host was answered");
      options_.hosts->join(applied.fault.victim);
      break;
    case FaultKind::kSlow:
      if (active_->stops_seen < 2) complain("the rank was not seen stopped");
      [[fallthrough]];
    default: active_->victim->send(SIGCONT);
  }
  trigger_.on_fault(now);
  active_.reset();
}

}  // namespace weft::chaos::internal
