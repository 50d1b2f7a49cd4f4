#include "weft/train/internal/train_batches.h"

#include <algorithm>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/observe/position/position.h"

namespace weft::train::internal {

using observe::Phase;

TrainBatches::TrainBatches(Group world, const data::Source& source, const RankData& rank_data,
                           Settings settings)
    : world_(std::move(world)),
      samples_(source.size),
      batch_(settings.sampling.batch),
      shared_(std::move(settings.shared)),
      loader_(make_loader(source, rank_data, settings)) {}

// Number n stands for the part of worker n % workers in batch n / workers, whoever takes it. A
// batch that is made ahead is already taken, so only one is.
data::Loader TrainBatches::make_loader(const data::Source& source, const RankData& rank_data,
                                       const Settings& settings) const {
  data::SamplerOptions sampling = settings.sampling;
  if (!shared_) return rank_data.load(source, sampling, settings.prefetch);
  sampling.draw = [shared = shared_.get(),
                   rank_data]() -> std::optional<data::SamplerOptions::Draw> {
    const auto number = shared->take();
    if (!number) return std::nullopt;
    const auto worker = static_cast<int>(*number % shared->workers());
    return data::SamplerOptions::Draw{*number / shared->workers(), rank_data.replica_of(worker)};
  };
  return rank_data.load(source, sampling, std::min(settings.prefetch, 1));
}

data::Batch TrainBatches::next(observe::StepTimer& timer) {
  std::optional<data::Batch> batch;
  if (shared_) {
    timer.add(Phase::kData, taking_);
    batch = std::exchange(taken_, std::nullopt);
  } else {
    const auto scope = timer.time(Phase::kData);
    const observe::ActivityScope activity(observe::Activity::kData);
    batch = loader_.next(Deadline::in(world_.timeout()));
  }
  WEFT_CHECK(batch.has_value(), "the data ended before the epoch");
  return std::move(*batch);
}

void TrainBatches::end_epoch() {
  if (shared_) {
    position_ = {position_.epoch + 1, 0};
    return;
  }
  WEFT_CHECK(!loader_.next(Deadline::in(world_.timeout())),
             "the epoch has more batches than steps");
}

void TrainBatches::give_out(std::int64_t begin, std::int64_t end) {
  begun_ = begin;
  shared_->begin((end - begin) * shared_->workers());
}

std::optional<std::int64_t> TrainBatches::take() {
  const auto start = std::chrono::steady_clock::now();
  taken_ = loader_.next(Deadline::in(world_.timeout()));
  taking_ = std::chrono::steady_clock::now() - start;
  if (!taken_) return std::nullopt;
  return begun_ + (taken_->share.first - position_.position) / batch_;
}

std::int64_t TrainBatches::meet() {
  shared_->meet();
  const std::int64_t batches = shared_->end() / shared_->workers();
  position_.position = std::min(position_.position + batches * batch_, samples_);
  return begun_ + batches;
}

}  // namespace weft::train::internal
