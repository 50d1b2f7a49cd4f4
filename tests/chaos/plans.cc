#include "tests/chaos/plans.h"

#include <algorithm>
#include <sstream>

#include "weft/base/error.h"

namespace weft::chaos {
namespace {

Plan images(std::string name, std::vector<std::string> settings) {
  return {std::move(name), std::move(settings), false};
}
Plan text(std::string name, std::vector<std::string> settings) {
  return {std::move(name), std::move(settings), true};
}

}  // namespace

const std::vector<Plan>& all_plans() {
  static const std::vector<Plan> plans{
      images("dp", {"parallel.dp=4"}),
      images("dp-private", {"parallel.dp=4", "parallel.weights=private"}),
      images("zero1", {"parallel.dp=1", "parallel.fsdp=4", "parallel.zero_stage=1"}),
      images("zero2", {"parallel.dp=1", "parallel.fsdp=4", "parallel.zero_stage=2"}),
      images("zero3", {"parallel.dp=1", "parallel.fsdp=4", "parallel.zero_stage=3"}),
      images("dp-zero3", {"parallel.dp=2", "parallel.fsdp=2", "parallel.zero_stage=3"}),
      images("reproducible", {"parallel.dp=4", "train.reproducible=true"}),
      images("tcp", {"parallel.dp=4", "comm.transport=tcp"}),
      images("zero3-tcp",
             {"parallel.dp=1", "parallel.fsdp=4", "parallel.zero_stage=3", "comm.transport=tcp"}),
      images("int8-tcp", {"parallel.dp=4", "parallel.codec=int8:64", "comm.transport=tcp"}),
      text("tp", {"parallel.tp=2", "parallel.dp=2"}),
      text("pp",
           {"parallel.pp=2", "parallel.dp=2", "parallel.cuts=[2]", "parallel.micro_batches=4"}),
      text("cp", {"parallel.cp=2", "parallel.dp=2"}),
      text("ep", {"model.experts=4", "parallel.ep=2", "parallel.dp=2"}),
      text("tp-pp", {"parallel.tp=2", "parallel.pp=2", "parallel.dp=1", "parallel.cuts=[2]",
                     "parallel.micro_batches=4"}),
      text("tp-zero3",
           {"parallel.tp=2", "parallel.dp=1", "parallel.fsdp=2", "parallel.zero_stage=3"}),
      text("pp-zero1", {"parallel.pp=2", "parallel.dp=1", "parallel.fsdp=2",
                        "parallel.zero_stage=1", "parallel.cuts=[2]", "parallel.micro_batches=4"}),
  };
  return plans;
}

std::vector<Plan> parse_plans(const std::string& names) {
  if (names == "all") return all_plans();
  std::vector<Plan> plans;
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    const auto found = std::find_if(all_plans().begin(), all_plans().end(),
                                    [&](const Plan& plan) { return plan.name == word; });
    if (found == all_plans().end()) {
      std::string known = "all";
      for (const Plan& plan : all_plans()) known += ", " + plan.name;
      throw Error(Errc::kInvalidArgument,
                  "--plans " + names + ": there is no \"" + word + "\"; there are " + known);
    }
    plans.push_back(*found);
  }
  WEFT_REQUIRE(!plans.empty(), "--plans needs at least one plan, or all");
  return plans;
}

std::vector<std::string> workload_of(const Plan& plan, const std::string& text, int faults) {
  // Some steps are done again after each fault.
  std::vector<std::string> settings{"train.max_steps=" + std::to_string(60 + 20 * faults),
                                    "train.epochs=1000000", "train.eval_every=0",
                                    "train.log_every=20"};
  const std::vector<std::string> of_text{
      "model.name=gpt",    "model.layers=2",       "model.width=32",    "model.heads=2",
      "model.sequence=32", "data.name=text",       "data.file=" + text, "data.tokenizer=bytes",
      "train.batch=8",     "optimizer.name=adamw",
  };
  // Large enough that each rank updates a part.
  const std::vector<std::string> of_images{"model.name=mlp", "model.hidden=[512,256]",
                                           "data.name=shapes", "train.batch=64"};
  const auto& more = plan.is_text ? of_text : of_images;
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

}  // namespace weft::chaos
