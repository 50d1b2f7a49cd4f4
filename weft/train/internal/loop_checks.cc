// What the loop watches: numbers that are not finite, wrong gradients, slow ranks, replicas that
// differ.
#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/base/error.h"
#include "weft/observe/position/position.h"
#include "weft/train/internal/loop.h"

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

}  // namespace

// Logs an error when the loss or a gradient becomes NaN or infinite, and ends the run when it stays
// so. No checkpoint is saved meanwhile, so that the good ones are kept. If such steps are skipped,
// save() saves what good steps have left, and the run ends with such a checkpoint.
void Loop::watch_numbers(const StepLog::Seen::NotFinite& now) {
  const bool was_finite = std::exchange(is_finite_, now.steps == 0);
  if (is_finite_) return;
  const bool skips = options_.plan.skip_not_finite;
  const std::string where = std::string(now.is_loss ? "the loss is" : "gradients are") +
                            " NaN or infinite since step " + std::to_string(now.first_step) +
                            (now.rank < 0 ? "" : ", first on rank " + std::to_string(now.rank));
  if (was_finite) {
    log_error(where + (skips ? "; these steps are skipped"
                             : "; no checkpoint is saved until it is finite again"));
  }
  if (options_.max_not_finite == 0 || now.steps < options_.max_not_finite) return;
  if (skips && saves()) {
    if (saved_step_ != step_) save_now();
    saver_->finish();
  }
  throw Error(Errc::kBadConfig,
              where + ", " + std::to_string(now.steps) +
                  " steps in a row: the run ends; lower the learning rate, clip gradients "
                  "(optimizer.max_grad_norm), or raise train.max_not_finite, and resume from the "
                  "last checkpoint" +
                  (skips && saves() ? ", which has the weights of the last good step" : ""));
}

// A rank that is found twice would be found again.
void Loop::watch_verification() {
  for (const auto& wrong : learner_->model().wrong_gradients()) {
    std::string ranks;
    for (const int rank : wrong.ranks)
      ranks += (ranks.empty() ? "" : " or ") + std::to_string(rank);
    const std::string what = "rank " + ranks + " has computed a wrong gradient of " +
                             wrong.parameter + " in step " + std::to_string(step_ + 1) +
                             ": another rank gets other bits for the same batch and weights";
    if (world_.rank() == 0) log_error(what);
    if (++found_wrong_[wrong.ranks] < 2) continue;
    if (saves()) {
      if (saved_step_ != step_) save();
      saver_->finish();
    }
    throw Error(Errc::kCorrupt, what + ", for the second time: take its host out and resume");
  }
}

void Loop::name_skipped_step() const {
  std::int64_t named = 1;
  while (named < skipped_in_a_row_) named *= 10;
  if (named != skipped_in_a_row_) return;
  if (!learner_->model().wrong_gradients().empty())
    return log_warn("step " + std::to_string(step_ + 1) + " is skipped");
  const auto& bad = learner_->model().not_finite();
  std::string where;
  for (const auto& [rank, parameter] : bad) {
    if (where.empty())
      where = "the gradient of " + parameter + " is NaN or infinite on rank " +
              std::to_string(learner_->world_rank(rank));
  }
  if (where.empty()) where = "the sum of the gradients over the ranks is NaN or infinite";
  if (bad.size() > 1) where += " and " + std::to_string(bad.size() - 1) + " more";
  if (named > 1) where += "; " + std::to_string(named) + " steps in a row";
  log_warn("step " + std::to_string(step_ + 1) + " is skipped: " + where);
}

// All ranks get the same answer.
void Loop::watch_stragglers(const StepLog::Seen& seen) {
  const auto slow = stragglers_.add(seen.steps, seen.awaited);
  if (!slow) return;
  if (world_.rank() == 0) log_warn(straggler_line(*slow, stragglers_));
  if (options_.on_straggler == OnStraggler::kRebalance && !slow->empty())
    learner_->start_balancing();
  const bool is_slow = std::find(slow->begin(), slow->end(), world_.rank()) != slow->end();
  if (options_.on_straggler == OnStraggler::kReplace && is_slow) observe::ask_for_replacement();
}

// Before a checkpoint of this step is saved.
void Loop::compare_replicas() {
  if (options_.compare_steps == 0) return;
  if (learner_->shared() == nullptr && step_ % options_.compare_steps != 0) return;
  const auto found = learner_->model().compare_replicas();
  if (found.empty()) return;
  const auto lost = std::find_if(found.begin(), found.end(),
                                 [](const auto& difference) { return !difference.is_healed; });
  const auto& named = lost != found.end() ? *lost : found.front();
  std::string ranks;
  for (const int rank : named.ranks)
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(learner_->world_rank(rank));
  const std::string more =
      found.size() > 1 ? " and " + std::to_string(found.size() - 1) + " more tensors" : "";
  const std::string what = "replicas differ after step " + std::to_string(step_) + ": " +
                           named.tensor + more +
                           (named.ranks.size() > 1 ? ", on ranks " : ", on rank ") + ranks +
                           ": a bit has flipped in memory, or a processor has computed wrongly";
  if (lost == found.end()) {
    if (learner_->is_first_of_worker()) log_warn(what + "; it has got the values of the majority");
    return;
  }
  throw Error(Errc::kCorrupt, what + "; there is no majority, so resume from a checkpoint before " +
                                  "step " + std::to_string(step_ - options_.compare_steps + 1));
}

}  // namespace weft::train::internal
