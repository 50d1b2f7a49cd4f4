#include "weft/data/loader.h"

#include <ATen/ops/empty.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/data/internal/own_draws.h"

namespace weft::data {
namespace {

// Keeps the memory of batches and uses it again when no other tensor holds it. Each call returns a
// new tensor, so that a consumer's changes to its tensor (requires_grad, a resize) have no effect
// on later batches.
class Pool {
 public:
  at::Tensor take(std::vector<std::int64_t> shape, at::ScalarType type) {
    for (const at::Tensor& mine : tensors_) {
      if (mine.storage().use_count() == 1 && mine.scalar_type() == type && mine.sizes() == shape)
        return mine.detach();
    }
    // The pool stays small: memory of batches that a consumer keeps leaves the pool.
    if (tensors_.size() == kMost) tensors_.erase(tensors_.begin());
    tensors_.push_back(at::empty(shape, at::TensorOptions().dtype(type)));
    return tensors_.back().detach();
  }

 private:
  static constexpr std::size_t kMost = 16;
  std::vector<at::Tensor> tensors_;
};

struct Item {
  std::optional<Batch> batch;  // None at the end of an epoch.
  SamplerState after;
};

}  // namespace

Source image_source(std::shared_ptr<const ImageSet> set, Augment augment) {
  WEFT_REQUIRE(set != nullptr, "image_source: no data set");
  const std::int64_t size = set->size();
  const auto make = [set = std::move(set), augment = std::move(augment),
                     pool = std::make_shared<Pool>()](const Share& share) {
    const auto count = static_cast<std::int64_t>(share.indices.size());
    Batch batch{{pool->take({count, set->channels, set->height, set->width}, at::kFloat)},
                {pool->take({count}, at::kLong)},
                {}};
    augment.apply(*set, share.indices, share.epoch, batch.inputs[0].data_ptr<float>());
    auto* targets = batch.targets[0].data_ptr<std::int64_t>();
    for (const std::int64_t index : share.indices)
      *targets++ = set->labels[static_cast<std::size_t>(index)];
    return batch;
  };
  return {size, make};
}

class Loader::Worker {
 public:
  Worker(Source source, Sampler sampler, int prefetch)
      : source_(std::move(source)),
        sampler_(std::move(sampler)),
        prefetch_(prefetch),
        state_(sampler_.state()) {
    WEFT_REQUIRE(prefetch >= 0,
                 "Loader: prefetch must be at least 0, got " + std::to_string(prefetch));
    WEFT_REQUIRE(source_.make != nullptr, "Loader: the source has no function `make`");
  }
  ~Worker() { stop(); }

  std::optional<Batch> next(Deadline deadline) {
    Item item = prefetch_ > 0 && has_thread() ? wait_for_item(deadline) : make_now();
    state_ = item.after;
    return std::move(item.batch);
  }

  void restore(SamplerState state) {
    stop();
    try {
      sampler_.set_state(state);
    } catch (...) {
      go_on_from(state_);
      throw;
    }
    go_on_from(state);
  }

  void set_weights(std::vector<double> weights) {
    stop();
    try {
      sampler_.set_weights(std::move(weights));
    } catch (...) {
      go_on_from(state_);
      throw;
    }
    go_on_from(state_);
  }

  SamplerState state() const { return state_; }
  std::int64_t batches() const { return sampler_.batches(); }

 private:
  Item make() {
    std::optional<Share> share = sampler_.next();
    if (!share) return {std::nullopt, sampler_.state()};
    const internal::OwnDraws draws(seed_of(*share));
    Batch batch = source_.make(*share);
    batch.share = std::move(*share);
    return {std::move(batch), sampler_.state()};
  }

  // Depends on the samples alone, not on what was drawn before, so that a resumed run, and each
  // rank that reads the same samples, draws the same numbers.
  std::uint64_t seed_of(const Share& share) const {
    constexpr std::uint32_t kStream = 0x64617461;  // "data"
    const auto epoch = static_cast<std::uint64_t>(share.epoch);
    return Random(sampler_.options().seed, kStream,
                  (epoch << 40) + static_cast<std::uint64_t>(share.first))
        .next_u64();
  }

  Item make_now() {
    if (error_) std::rethrow_exception(error_);
    try {
      return make();
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  // Starts the thread that makes batches ahead. Where the system has none for a while, the caller
  // makes them, and the next call tries again.
  bool has_thread() {
    if (thread_.joinable()) return true;
    if (error_) return false;
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      static std::atomic<bool> said = false;  // each evaluation has its own loader
      if (!said.exchange(true)) {
        log_warn("batches are made between the steps: " + describe(error) +
                 "; it is tried again, and this is said once");
      }
      return false;
    }
    return true;
  }

  Item wait_for_item(Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.when(), [this] { return !queue_.empty() || error_; })) {
      throw Error(Errc::kTimeout,
                  "the next batch was not ready before the deadline; check whether the disk of the "
                  "data is slow or prefetch is too small",
                  {.operation = "load"});
    }
    // Batches made before the error are returned first.
    if (queue_.empty()) std::rethrow_exception(error_);
    Item item = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
    return item;
  }

  void run() {
    try {
      for (;;) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [this] {
            return stopping_ || queue_.size() < static_cast<std::size_t>(prefetch_);
          });
          if (stopping_) return;
        }
        Item item = make();
        std::lock_guard lock(mutex_);
        queue_.push_back(std::move(item));
        changed_.notify_all();
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  // After stop(). The sampler is ahead by the batches in the queue.
  void go_on_from(SamplerState state) {
    sampler_.set_state(state);
    state_ = state;
    queue_.clear();
    error_ = nullptr;
    stopping_ = false;
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Used by the thread that makes batches. If prefetch_ is 0, this is the caller's thread.
  Source source_;
  Sampler sampler_;

  const int prefetch_;
  SamplerState state_;  // Used by the caller's thread only.
  std::thread thread_;

  std::mutex mutex_;  // Guards the members below.
  std::condition_variable changed_;
  std::deque<Item> queue_;
  std::exception_ptr error_;
  bool stopping_ = false;
};

Loader::Loader(Source source, Sampler sampler, int prefetch)
    : worker_(std::make_unique<Worker>(std::move(source), std::move(sampler), prefetch)) {}
Loader::~Loader() = default;
std::optional<Batch> Loader::next(Deadline deadline) { return worker_->next(deadline); }
SamplerState Loader::state() const { return worker_->state(); }
void Loader::restore(SamplerState state) { worker_->restore(state); }
void Loader::set_weights(std::vector<double> weights) { worker_->set_weights(std::move(weights)); }
std::int64_t Loader::batches() const { return worker_->batches(); }

}  // namespace weft::data
