#include "weft/train/internal/run_health.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/observe/position/position.h"

namespace weft::train::internal {
namespace {

// "rank 1 is slow: the others wait for it 40 % of a step".
std::string straggler_line(const std::vector<int>& slow, const StragglerWatch& watch) {
  std::string text;
  for (const int rank : slow) {
    text += (text.empty() ? "" : "; ") + std::string("rank ") + std::to_string(rank) +
            " is slow: the others wait for it " +
            std::to_string(std::lround(100 * watch.share(rank))) + " % of a step";
  }
  return text.empty() ? "no rank is slower than the others any more" : text;
}

// "the gradient of 0.weight is NaN or infinite on rank 1 and 2 more".
std::string bad_gradient(Learner& learner) {
  const auto& bad = learner.model().not_finite();
  std::string where;
  for (const auto& [rank, parameter] : bad) {
    if (where.empty())
      where = "the gradient of " + parameter + " is NaN or infinite on rank " +
              std::to_string(learner.world_rank(rank));
  }
  if (where.empty()) where = "the sum of the gradients over the ranks is NaN or infinite";
  if (bad.size() > 1) where += " and " + std::to_string(bad.size() - 1) + " more";
  return where;
}

}  // namespace

// No checkpoint is saved meanwhile, so that the good ones are kept. If such steps are skipped, the
// loop saves what good steps have left, and the run ends with such a checkpoint.
std::optional<Error> RunHealth::watch_numbers(const StepLog::Seen::NotFinite& now) {
  const bool was_finite = std::exchange(is_finite_, now.steps == 0);
  if (is_finite_) return std::nullopt;
  const bool skips = options_.plan.skip_not_finite;
  const std::string where = std::string(now.is_loss ? "the loss is" : "gradients are") +
                            " NaN or infinite since step " + std::to_string(now.first_step) +
                            (now.rank < 0 ? "" : ", first on rank " + std::to_string(now.rank));
  if (was_finite) {
    log_error(where + (skips ? "; these steps are skipped"
                             : "; no checkpoint is saved until it is finite again"));
  }
  if (options_.max_not_finite == 0 || now.steps < options_.max_not_finite) return std::nullopt;
  return Error(
      Errc::kBadConfig,
      where + ", " + std::to_string(now.steps) +
          " steps in a row: the run ends; lower the learning rate, clip gradients "
          "(optimizer.max_grad_norm), or raise train.max_not_finite, and resume from the "
          "last checkpoint" +
          (skips && saves_checkpoints(options_) ? ", which has the weights of the last good step"
                                                : ""));
}

// Names the first, the tenth, the hundredth … in a row.
void RunHealth::count_skipped(Learner& learner, std::int64_t step, bool is_bad) {
  skipped_in_a_row_ = is_bad ? skipped_in_a_row_ + 1 : 0;
  if (!is_bad || !learner.is_first_of_worker()) return;
  std::int64_t named = 1;
  while (named < skipped_in_a_row_) named *= 10;
  if (named != skipped_in_a_row_) return;
  const std::string skipped = "step " + std::to_string(step) + " is skipped";
  if (!learner.model().wrong_gradients().empty()) return log_warn(skipped);
  log_warn(skipped + ": " + bad_gradient(learner) +
           (named > 1 ? "; " + std::to_string(named) + " steps in a row" : ""));
}

// A rank that is found twice would be found again.
std::optional<Error> RunHealth::watch_gradients(Learner& learner, std::int64_t step) {
  for (const auto& wrong : learner.model().wrong_gradients()) {
    std::string ranks;
    for (const int rank : wrong.ranks)
      ranks += (ranks.empty() ? "" : " or ") + std::to_string(rank);
    const std::string what = "rank " + ranks + " has computed a wrong gradient of " +
                             wrong.parameter + " in step " + std::to_string(step) +
                             ": another rank gets other bits for the same batch and weights";
    if (world_.rank() == 0) log_error(what);
    if (++found_wrong_[wrong.ranks] < 2) continue;
    return Error(Errc::kCorrupt, what + ", for the second time: take its host out and resume");
  }
  return std::nullopt;
}

std::optional<std::vector<int>> RunHealth::watch_stragglers(const StepLog::Seen& seen) {
  auto slow = stragglers_.add(seen.steps, seen.awaited);
  if (!slow) return slow;
  if (world_.rank() == 0) log_warn(straggler_line(*slow, stragglers_));
  const bool is_slow = std::find(slow->begin(), slow->end(), world_.rank()) != slow->end();
  if (options_.on_straggler == OnStraggler::kReplace && is_slow) observe::ask_for_replacement();
  return slow;
}

void RunHealth::compare_replicas(Learner& learner, std::int64_t step) const {
  if (options_.compare_steps == 0) return;
  if (learner.shared() == nullptr && step % options_.compare_steps != 0) return;
  const auto found = learner.model().compare_replicas();
  if (found.empty()) return;
  const auto lost = std::find_if(found.begin(), found.end(),
                                 [](const auto& difference) { return !difference.is_healed; });
  const auto& named = lost != found.end() ? *lost : found.front();
  std::string ranks;
  for (const int rank : named.ranks)
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(learner.world_rank(rank));
  const std::string more =
      found.size() > 1 ? " and " + counted(found.size() - 1, "more tensor") : "";
  const std::string what = "replicas differ after step " + std::to_string(step) + ": " +
                           named.tensor + more +
                           (named.ranks.size() > 1 ? ", on ranks " : ", on rank ") + ranks +
                           ": a bit has flipped in memory, or a processor has computed wrongly";
  if (lost == found.end()) {
    if (learner.is_first_of_worker()) log_warn(what + "; it has got the values of the majority");
    return;
  }
  throw Error(Errc::kCorrupt, what + "; there is no majority, so resume from a checkpoint before " +
                                  "step " + std::to_string(step - options_.compare_steps + 1));
}

}  // namespace weft::train::internal
