#include "weft/launch/internal/autoscaler.h"

#include <algorithm>

namespace weft::launch::internal {

Autoscaler::Autoscaler(Node& node)
    : node_(node),
      discovery_(node.options.scaling.discovery_script, node.options.scaling.discovery_interval) {}

void Autoscaler::add_throughput(double samples_per_s) {
  throughputs_.add(node_.size, samples_per_s, std::chrono::steady_clock::now());
}

void Autoscaler::look_at_discovery() {
  const auto result = discovery_.look(std::chrono::steady_clock::now());
  if (!result) return;
  std::string wrong;
  if (result->timed_out || !result->status.ok()) {
    wrong = result->describe();
  } else {
    const Discovered found = slots_of(result->output, names_of_this_host());
    if (found.slots)
      offered_ = std::clamp(*found.slots, node_.least_ranks(), node_.policy.max_ranks);
    if (!found.slots) wrong = "\"" + found.wrong.substr(0, 80) + "\" is not host:slots";
  }
  if (!wrong.empty() && !is_broken_)
    node_.note("--discovery-script: " + wrong +
               "; the number of ranks stays, and this is said once");
  is_broken_ = !wrong.empty();
}

void Autoscaler::look(bool is_calm) {
  look_at_discovery();
  if (!node_.situation.trained || node_.situation.stop_sent || !is_calm || node_.size == 0) return;
  const int most = offered_.value_or(node_.policy.max_ranks);
  if (node_.options.scaling.efficiency > 0) {
    const auto next =
        throughputs_.next({node_.options.scaling.efficiency, node_.least_ranks(), most},
                          std::chrono::steady_clock::now());
    if (next) node_.want_ranks(*next, " (--scale-efficiency)");
  } else if (offered_ && *offered_ != applied_) {
    applied_ = *offered_;
    if (node_.size != applied_) node_.want_ranks(applied_, " (--discovery-script)");
  }
}

}  // namespace weft::launch::internal
