#include "weft/train/internal/resumption.h"

#include <algorithm>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/fault/failpoint.h"
#include "weft/base/log.h"
#include "weft/train/internal/resizing.h"

namespace weft::train::internal {

void Resumption::open(std::optional<Saved> state, const std::string& folder) {
  if (!options_.resume) return;
  recovers_ = state.has_value();
  saved_ = std::move(state);
  if (!saved_) saved_ = load_latest(world_, folder);
  if (saved_) damaged_ = saved_->damaged();
  if (!saved_) log_warn("the run has no checkpoint yet: starting from the beginning");
}

// True if the batch of the checkpoint depends on the numbers of ranks that the run has had.
// Checkpoints of older versions do not say enough.
bool Resumption::resizes() const {
  return !saved_->asked_batch().empty() &&
         (options_.on_resize == OnResize::kScale || options_.batch_per_rank > 0);
}

// True if a replica has as many ranks as in the checkpoint. Another form of parallelism has other
// passes.
bool Resumption::keeps_form(int replicas) const {
  const BatchDivision before = saved_->batch();
  return before.first_replicas > 0 &&
         before.first_ranks * replicas == before.first_replicas * world_.size();
}

Options Resumption::learner_options(int replicas, bool is_planned) const {
  if (!saved_ || recovers_) return options_;
  if (!resizes()) {
    const bool limits_passes = !is_planned && options_.batch_per_rank == 0 && keeps_form(replicas);
    return limits_passes ? with_passes(options_, saved_->batch(), replicas, world_.size())
                         : options_;
  }
  const std::string then = saved_->asked_batch(), now = asked_batch(config_);
  WEFT_REQUIRE(then == now, "cannot resume: the run began with " + then + ", and now has " + now +
                                "; leave it as it was: the run goes on with the batch that its "
                                "number of ranks has given it");
  Options with = resized(options_, saved_->batch(), replicas, world_.size());
  if (options_.reference_batch > 0) {
    with.reference_batch = options_.reference_batch;
  } else if (with.reference_batch == with.batch) {
    with.reference_batch = 0;  // as in a run that was not resized, to the last bit
  }
  return with;
}

std::optional<Resumption::At> Resumption::restore(Learner& learner) {
  if (!saved_) return std::nullopt;
  const std::int64_t batch = learner.batches().global;
  Progressed progressed =
      saved_->progress(options_.plan.seed, recovers_ || resizes() ? saved_->batch().global : batch,
                       learner.samples());
  if (recovers_ && is_broken("recovery.restored")) {  // loses a step, which tests must find
    ++progressed.step;
    progressed.sampler.position += batch;
  }
  saved_->restore(learner.model(), world_, learner.workers());
  learner.set_position(progressed.sampler);
  RunCount count;
  count.step = progressed.step;
  count.epoch = progressed.sampler.epoch;
  count.in_epoch = (progressed.sampler.position + batch - 1) / batch;
  const std::int64_t left = learner.samples() - progressed.sampler.position;
  count.epoch_steps = count.in_epoch + (left + batch - 1) / batch;
  count.epoch_loss = progressed.epoch_loss;
  count.epoch_samples = progressed.epoch_samples;
  count.passes = std::min(progressed.passes, learner.max_passes());
  saved_.reset();
  return At{count,
            progressed.noise,
            progressed.best,
            progressed.evaluated_step,
            progressed.left_out,
            progressed.asked};
}

}  // namespace weft::train::internal
