#include "weft/train/trainer.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "weft/parallel/batch_norm/sync_batch_norm.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/loop.h"
#include "weft/train/internal/seeded.h"
#include "weft/train/internal/speeds.h"
#include "weft/train/internal/step.h"

namespace weft::train {
namespace {

using observe::Phase;

// The source, with each batch that it makes on the time line.
data::Source traced(data::Source source, observe::Trace* trace) {
  if (trace == nullptr) return source;
  source.fill = [fill = std::move(source.fill), trace](const data::Share& share, float* images, std::int64_t* targets) {
    const observe::Trace::Use here(trace, "batches");
    const observe::TraceScope scope("data", "make batch");
    fill(share, images, targets);
  };
  return source;
}

}  // namespace

class Trainer::Impl : internal::Task {
 public:
  Impl(const Config& config, Group world, TrainerOptions options)
      : config_(config),
        world_(world),
        train_set_(options.train_images),
        test_set_(options.test_images),
        recipe_(options.recipe),
        loop_(config, std::move(world), std::move(options)) {
    internal::settle_order(config_, world_);
    load_data();
    loop_.open();
    make_model();
    loop_.start(*this, {train_set_->size(), batches_, internal::learning_rate(config_, batches_)});
  }

  TrainResult run() { return loop_.run(); }
  torch::nn::Module& module() const { return *model_.module; }
  std::string run_folder() const { return loop_.run_folder(); }

 private:
  void load_data();
  void make_model();
  std::vector<double> forward_backward(const data::Batch& batch, observe::StepTimer& timer);

  Step step(double lr, observe::StepTimer& timer) override;
  void looked() override;
  void end_epoch() override;
  Evaluation evaluate() override;
  void settle() override { parallel_->wait_for_weights(); }
  checkpoint::Checkpoint pack(const internal::Progressed& progressed) override;
  void restore(const checkpoint::Checkpoint& checkpoint, const data::SamplerState& position) override;
  data::SamplerState position() const override { return loader_->state(); }
  std::vector<LogField> epoch_fields(const Evaluation& /*evaluation*/, double samples_per_s) const override {
    return {{"samples_per_s", std::round(samples_per_s)}};
  }

  const Config config_;
  const Group world_;
  std::shared_ptr<const data::ImageSet> train_set_, test_set_;
  const std::string recipe_;
  internal::Loop loop_;  // whose trace outlives the loader's thread
  Batches batches_;
  data::AugmentOptions augment_;
  models::Model model_;
  std::optional<internal::Parallel> parallel_;
  std::optional<parallel::Optimizer> optimizer_;
  std::optional<data::Loader> loader_;
  std::optional<internal::Speeds> speeds_;  // with train.balance = "speed"
};

void Trainer::Impl::load_data() {
  if (!train_set_) {
    train_set_ = std::make_shared<const data::ImageSet>(data::load_images(internal::set_options(config_), data::Part::kTrain));
  }
  augment_ = internal::augment_options(config_, *train_set_);
  batches_ = plan_batches(config_, world_.size(), train_set_->size());
  data::SamplerOptions sampling;
  sampling.size = train_set_->size();
  sampling.batch = batches_.global;
  sampling.seed = static_cast<std::uint64_t>(config_.get_int("train.seed"));
  sampling.rank = world_.rank();
  sampling.world = world_.size();
  loader_.emplace(traced(data::image_source(train_set_, data::Augment(augment_)), loop_.trace()), data::Sampler(sampling),
                  static_cast<int>(config_.get_int("data.prefetch")));
  if (config_.get_string("train.balance") == "speed" && world_.size() > 1) speeds_.emplace(world_);
}

void Trainer::Impl::make_model() {
  model_ = internal::seeded(static_cast<std::uint64_t>(config_.get_int("train.seed")),
                            [&] { return models::make_model(internal::model_options(config_, *train_set_)); });
  if (loop_.resumed()) internal::unpack_module(*loop_.resumed(), *model_.module);
  if (config_.get_bool("model.sync_batch_norm")) {
    const int layers = parallel::convert_sync_batch_norm(model_.module, world_);
    if (layers == 0)
      throw Error(Errc::kBadConfig, "model.sync_batch_norm: the model " + config_.get_string("model.name") + " has no batch norm");
  }
  parallel_.emplace(parallel::data_parallel(model_.module, world_, internal::parallel_options(config_)));
  optimizer_.emplace(parallel_->optimizer(internal::optimizer_choice(config_, *model_.module)));
  log_info("training " + recipe_, {{"ranks", world_.size()},
                                   {"batch", batches_.global},
                                   {"steps_per_epoch", batches_.per_epoch},
                                   {"threads", at::get_num_threads()},
                                   {"gradients", parallel_->describe()},
                                   {"run", run_folder()}});
}

void Trainer::Impl::restore(const checkpoint::Checkpoint& checkpoint, const data::SamplerState& position) {
  internal::unpack_optimizer(checkpoint, *optimizer_);
  parallel_->load_codec_state(internal::unpack_codec(checkpoint));
  loader_->restore(position);
}

internal::Task::Step Trainer::Impl::step(double lr, observe::StepTimer& timer) {
  std::optional<data::Batch> batch;
  {
    const auto scope = timer.time(Phase::kData);
    batch = loader_->next(Deadline::in(world_.timeout()));
  }
  WEFT_CHECK(batch.has_value(), "the loader ended before the epoch");
  optimizer_->set_lr(lr);
  std::vector<double> losses = forward_backward(*batch, timer);
  internal::count_exchange({*parallel_, timer}, Phase::kBackward);
  {
    const auto scope = timer.time(Phase::kOptimizer);
    optimizer_->step();
    optimizer_->zero_grad();
  }
  internal::count_exchange({*parallel_, timer}, Phase::kOptimizer);
  if (speeds_) speeds_->add(batch->images.size(0), (timer.ms(Phase::kForward) + timer.ms(Phase::kBackward)) / 1e3);
  return {static_cast<double>(batch->share.global_size), std::move(losses)};
}

std::vector<double> Trainer::Impl::forward_backward(const data::Batch& batch, observe::StepTimer& timer) {
  const internal::StepParts parts{model_, *parallel_, internal::loss_options(config_), config_.get_string("train.precision") == "bf16",
                                  timer};
  if (!config_.get_bool("train.reproducible")) return {internal::plain_step(parts, batch)};
  return internal::reproducible_step(parts, batch, static_cast<int>(config_.get_int("train.micro_shards")));
}

void Trainer::Impl::looked() {
  if (!speeds_) return;
  const auto weights = speeds_->rebalance();
  if (!weights) return;
  loader_->set_weights(*weights);
  std::string shares;
  for (const double weight : *weights)
    shares.append(shares.empty() ? "" : " ").append(std::to_string(std::lround(100 * weight))).append("%");
  log_debug("shares of the batches to come, by speed", {{"shares", shares}});
}

void Trainer::Impl::end_epoch() { WEFT_CHECK(!loader_->next(Deadline::in(world_.timeout())), "the epoch has more batches than steps"); }

Evaluation Trainer::Impl::evaluate() {
  if (!test_set_) {
    test_set_ = std::make_shared<const data::ImageSet>(data::load_images(internal::set_options(config_), data::Part::kTest));
  }
  auto plain = augment_;
  plain.crop_padding = 0;
  plain.flip = false;
  const EvaluationOptions options{test_set_, data::Augment(plain), config_.get_int("train.eval_batch"), internal::loss_options(config_),
                                  config_.get_string("train.precision") == "bf16"};
  return train::evaluate(model_, world_, options);
}

checkpoint::Checkpoint Trainer::Impl::pack(const internal::Progressed& progressed) {
  const auto codec_state = parallel_->codec_state();
  if (world_.rank() != 0) return {};
  auto packed = internal::pack(*model_.module, *optimizer_, progressed);
  internal::pack_codec(codec_state, packed);
  return packed;
}

std::string to_json(const TrainResult& result) {
  return "{\"ranks\": " + std::to_string(result.ranks) + ", \"epochs\": " + std::to_string(result.epochs) +
         ", \"accuracy\": " + json_number(result.accuracy) + ", \"loss\": " + json_number(result.loss) +
         ", \"samples_per_s\": " + json_number(std::round(result.samples_per_s)) +
         ", \"seconds\": " + json_number(std::round(result.seconds * 100) / 100) + "}";
}

Trainer::Trainer(const Config& config, Group world, TrainerOptions options)
    : impl_(std::make_unique<Impl>(config, std::move(world), std::move(options))) {}
Trainer::~Trainer() = default;
TrainResult Trainer::run() { return impl_->run(); }
torch::nn::Module& Trainer::module() const { return impl_->module(); }
std::string Trainer::run_folder() const { return impl_->run_folder(); }

}  // namespace weft::train
