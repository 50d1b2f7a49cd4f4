#include "weft/plan/search/sensitivity.h"

#include <functional>

#include "weft/base/error.h"

namespace weft::plan {
namespace {

struct Knob {
  const char* name;
  std::function<void(Job&, double)> turn;
};

void scale_accelerators(Job& job, double factor, double Accelerator::*field) {
  for (Accelerator& a : job.cluster.accelerators) a.*field *= factor;
}

void scale_rates(Job& job, double factor) {
  for (Accelerator& a : job.cluster.accelerators) {
    for (double& one : a.peaks) one *= factor;
    a.achievable *= factor;
    for (MatmulRate& rate : a.rates) rate.seconds /= factor;
  }
}

std::vector<Knob> knobs(const Job& job) {
  std::vector<Knob> all = {{"matrix units", [](Job& j, double f) { scale_rates(j, f); }},
                           {"memory bandwidth", [](Job& j, double f) {
                              scale_accelerators(j, f, &Accelerator::bandwidth);
                            }}};
  if (job.cluster.nodes[0].devices > 1) {
    all.push_back({"links inside a node", [](Job& j, double f) {
                     for (NodeType& type : j.cluster.nodes) type.intra.bandwidth *= f;
                   }});
  }
  if (num_nodes(job.cluster) > 1) {
    all.push_back({"links between nodes", [](Job& j, double f) {
                     for (NodeType& type : j.cluster.nodes) type.inter.bandwidth *= f;
                   }});
  }
  all.push_back({"samples of a step", [](Job& j, double f) {
                   j.layout.global_batch =
                       static_cast<std::int64_t>(static_cast<double>(j.layout.global_batch) * f);
                 }});
  return all;
}

}  // namespace

std::vector<Change> sensitivity(const Job& job) {
  const double now = simulate_step(job).samples_per_s;
  std::vector<Change> changes;
  for (const Knob& knob : knobs(job)) {
    for (const double factor : {2.0, 0.5}) {
      Job changed = job;
      knob.turn(changed, factor);
      try {
        const double then = simulate_step(changed).samples_per_s;
        changes.push_back({std::string(knob.name) + (factor > 1 ? " x 2" : " / 2"), then / now});
      } catch (const Error&) {
        // Half of the batch may be less than one sample for each replica.
      }
    }
  }
  return changes;
}

}  // namespace weft::plan
