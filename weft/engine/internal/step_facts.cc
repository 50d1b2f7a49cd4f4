#include "weft/engine/internal/step_facts.h"

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "weft/engine/internal/company.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/internal/stopwatch.h"

namespace weft::engine::internal {
namespace {

// A rank's row of the exchanged tensor.
enum Fact : std::size_t { kSamples, kDigest, kCompany, kModel, kFacts };

}  // namespace

void StepFacts::send() {
  mine_ = at::tensor(
      {context_.samples->value(), static_cast<double>(context_.digest()),
       static_cast<double>(context_.company_value()), static_cast<double>(context_.name.number)},
      at::kDouble);
  all_ = at::empty({context_.group.size(), static_cast<std::int64_t>(kFacts)}, at::kDouble);
  work_ = context_.group.all_gather_async(all_, mine_);
}

double StepFacts::factor(double& waited) {
  if (work_) {
    const Stopwatch watch(waited, "wait", "peers");
    work_->wait();
    work_ = nullptr;
    take();
  }
  return factor_;
}

void StepFacts::take() {
  const auto* const values = all_.const_data_ptr<double>();
  std::vector<double> samples;
  std::vector<std::uint64_t> companies;
  alike_ = true;
  for (std::size_t rank = 0; rank < index(context_.group.size()); ++rank) {
    const double* const of_rank = values + kFacts * rank;
    if (of_rank[kModel] != static_cast<double>(context_.name.number))
      refuse_other_model(static_cast<int>(rank));
    samples.push_back(of_rank[kSamples]);
    alike_ = alike_ && of_rank[kDigest] == values[kDigest];
    companies.push_back(static_cast<std::uint64_t>(of_rank[kCompany]));
  }
  apart_ = first_apart(companies);
  factor_ = weigh(context_.options.average, samples).of(context_.group.rank());
}

// Models of a group exchange gradients in one order on all ranks.
void StepFacts::refuse_other_model(int peer) const {
  throw Error(Errc::kInvalidArgument,
              "rank " + std::to_string(context_.group.rank()) + " exchanges gradients of model " +
                  std::to_string(context_.name.number) + " with '" + context_.name.parameter +
                  "', and rank " + std::to_string(peer) +
                  " those of another model; let backward() reach the same models on all "
                  "ranks, and step their optimizers in the same order: a rank without a batch runs "
                  "forward() on any sample, calls set_samples(0), and goes backward from zero "
                  "times the output",
              {"step", context_.group.rank(), peer});
}

}  // namespace weft::engine::internal
