// How a rank gets its batches: its part of each batch, or, with an asynchronous strategy, the next
// part when it is ready.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "weft/base/error.h"
#include "weft/observe/position/position.h"
#include "weft/train/internal/learner.h"

namespace weft::train::internal {

using observe::Phase;

// Null also on several hosts without a store of the job: workers then get even parts.
std::unique_ptr<strategy::SharedBatches> Learner::make_shared() const {
  if (!strategy::is_asynchronous(options_.strategy)) return nullptr;
  auto shared = strategy::make_shared_batches(
      mesh_.world(), {mesh_.coordinate("dp"), mesh_.size("dp"), worker_mesh_.world().rank() == 0},
      {.most_at_a_time = options_.strategy.staleness < 0 ? 4 : 1});
  if (!shared && mesh_.world().rank() == 0) {
    log_warn(
        "workers get even parts of each batch: they are on several hosts, and the job has no "
        "store; weft run starts one for several nodes, and a slow worker then takes fewer");
  }
  return shared;
}

// Number n stands for the part of worker n % workers in batch n / workers, whoever takes it. A
// batch that is made ahead is already taken, so only one is.
data::Loader Learner::make_train_loader() {
  data::SamplerOptions sampling{.batch = batches_.global, .seed = plan_.seed};
  // In one process, the last batch of an epoch has samples for its batch norms.
  if (has_batch_norms()) sampling.least = 2 * std::int64_t{plan_.micro_batches};
  if (!shared_) return make_loader(task_.train, sampling, options_.prefetch);
  const int replicas = model_.replicas(), replica = model_.replica();
  sampling.draw = [shared = shared_.get(), replicas,
                   replica]() -> std::optional<data::SamplerOptions::Draw> {
    const auto number = shared->take();
    if (!number) return std::nullopt;
    const auto worker = static_cast<int>(*number % shared->workers());
    return data::SamplerOptions::Draw{*number / shared->workers(), worker * replicas + replica};
  };
  return make_loader(task_.train, sampling, std::min(options_.prefetch, 1));
}

// Ranks of a pipeline have different blocks.
bool Learner::has_batch_norms() {
  if (plan_.sync_batch_norm || plan_.micro_shards > 0) return false;
  at::Tensor any = at::zeros({1}, at::kInt);
  for (const checkpoint::Slice& buffer : model_.held().buffers) {
    if (buffer.name.ends_with("running_var")) any.fill_(1);
  }
  if (mesh_.world().size() > 1) mesh_.world().all_reduce(any, ReduceOp::kMax);
  return any.item<int>() > 0;
}

void Learner::begin_batches(std::int64_t begin, std::int64_t end, std::int64_t done) {
  loader_.restore(position_);  // forgets that none was left
  workers_->begin(done);
  begun_ = begin;
  shared_->begin((end - begin) * shared_->workers());
}

std::optional<std::int64_t> Learner::take_batch() {
  const observe::ActivityScope activity(observe::Activity::kData);
  const auto start = std::chrono::steady_clock::now();
  taken_ = loader_.next(Deadline::in(mesh_.world().timeout()));
  taking_ = std::chrono::steady_clock::now() - start;
  if (taken_) return begun_ + (taken_->share.first - position_.position) / batches_.global;
  workers_->leave();
  return std::nullopt;
}

std::int64_t Learner::end_batches() {
  shared_->meet();
  const std::int64_t batches = shared_->end() / shared_->workers();
  position_.position = std::min(position_.position + batches * batches_.global, samples());
  return begun_ + batches;
}

data::Batch Learner::next_batch(observe::StepTimer& timer) {
  std::optional<data::Batch> batch;
  if (shared_) {
    timer.add(Phase::kData, taking_);
    batch = std::exchange(taken_, std::nullopt);
  } else {
    const auto scope = timer.time(Phase::kData);
    const observe::ActivityScope activity(observe::Activity::kData);
    batch = loader_.next(Deadline::in(mesh_.world().timeout()));
  }
  WEFT_CHECK(batch.has_value(), "the data ended before the epoch");
  return std::move(*batch);
}

}  // namespace weft::train::internal
