#include "weft/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <optional>

#include "weft/base/log.h"
#include "weft/observe/run_folder.h"
#include "weft/parallel/data/sync_batch_norm.h"
#include "weft/train/evaluate.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/newest_run.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/speeds.h"
#include "weft/train/internal/step.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/tracing.h"

namespace weft::train {
namespace {

using observe::Phase;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Libtorch initialises weights from one generator of the process, which ranks that are threads share.
models::Model make_seeded_model(const models::ModelOptions& options, std::uint64_t seed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  at::manual_seed(seed);
  return models::make_model(options);
}

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

class Trainer::Impl {
 public:
  Impl(const Config& config, Group world, TrainerOptions options)
      : config_(config),
        world_(std::move(world)),
        options_(std::move(options)),
        started_(Clock::now()),
        tracing_(world_, options_.trace.empty() ? internal::TraceSteps{} : internal::parse_trace(options_.trace)) {
    if (config_.get_bool("train.reproducible")) at::set_num_threads(1);
    load_data();
    open_run();
    make_model();
    restore();
  }

  TrainResult run();
  torch::nn::Module& module() const { return *model_.module; }
  std::string run_folder() const { return folder_ ? folder_->path() : ""; }

 private:
  void load_data();
  void open_run();
  void make_model();
  void restore();
  void go_on();

  void run_epoch();
  void train_step();
  std::vector<double> forward_backward(const data::Batch& batch);
  internal::StepParts parts();
  void look();
  void rebalance();
  void end_of_epoch();
  void evaluate_within();
  void evaluate_now();
  void save();
  bool at_end() const { return stop_ || (max_steps_ > 0 && step_ >= max_steps_); }

  const Config config_;
  const Group world_;
  const TrainerOptions options_;
  const Clock::time_point started_;

  internal::Tracing tracing_;  // outlives the loader's thread
  Batches batches_;
  std::shared_ptr<const data::ImageSet> train_set_, test_set_;
  data::AugmentOptions augment_;
  std::unique_ptr<observe::RunFolder> folder_;     // rank 0's
  std::unique_ptr<observe::Metrics> metrics_;      // rank 0's
  std::optional<checkpoint::Checkpoint> resumed_;  // until everything is restored
  models::Model model_;
  std::optional<internal::Parallel> parallel_;
  std::optional<parallel::Optimizer> optimizer_;
  std::optional<data::Loader> loader_;
  std::optional<internal::StepLog> log_;
  std::optional<internal::Speeds> speeds_;  // with train.balance = "speed"
  std::optional<observe::Progress> progress_;
  kernels::LearningRate rate_;
  observe::StepTimer timer_;

  std::int64_t step_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t in_epoch_ = 0;  // steps of this epoch
  std::int64_t max_steps_ = 0;
  std::int64_t saved_step_ = -1, evaluated_step_ = -1;
  double epoch_loss_ = 0;
  double last_loss_ = 0;
  double training_s_ = 0, trained_samples_ = 0;  // of this run
  bool stop_ = false;
  Evaluation evaluation_;
};

void Trainer::Impl::load_data() {
  train_set_ = options_.train_images;
  test_set_ = options_.test_images;
  if (!train_set_) {
    train_set_ = std::make_shared<const data::ImageSet>(data::load_images(internal::set_options(config_), data::Part::kTrain));
  }
  augment_ = internal::augment_options(config_, *train_set_);
  batches_ = plan_batches(config_, world_.size(), train_set_->size());
  max_steps_ = config_.get_int("train.max_steps");
  data::SamplerOptions sampling;
  sampling.size = train_set_->size();
  sampling.batch = batches_.global;
  sampling.seed = static_cast<std::uint64_t>(config_.get_int("train.seed"));
  sampling.rank = world_.rank();
  sampling.world = world_.size();
  loader_.emplace(traced(data::image_source(train_set_, data::Augment(augment_)), tracing_.trace()), data::Sampler(sampling),
                  static_cast<int>(config_.get_int("data.prefetch")));
  if (config_.get_string("train.balance") == "speed" && world_.size() > 1) speeds_.emplace(world_);
}

void Trainer::Impl::open_run() {
  progress_.emplace(observe::Progress::Options{.mode = options_.progress, .rank = world_.rank()});
  if (world_.rank() == 0) {
    observe::RunFolderOptions run{config_.get_string("run.dir"), config_.get_string("run.name"), options_.recipe, options_.resume};
    if (run.resume && run.name.empty()) run.name = internal::newest_run(run.parent, options_.recipe);
    folder_ = std::make_unique<observe::RunFolder>(run, config_);
  }
  if (folder_) tracing_.write_to(folder_->path() + "/trace.json");
  if (options_.resume) {
    resumed_ = internal::load_latest(world_, folder_ ? folder_->checkpoint_path() : "");
    if (!resumed_) log_warn("the run has no checkpoint yet: starting from the beginning");
  }
}

void Trainer::Impl::make_model() {
  model_ = make_seeded_model(internal::model_options(config_, *train_set_), static_cast<std::uint64_t>(config_.get_int("train.seed")));
  if (resumed_) internal::unpack_module(*resumed_, *model_.module);
  if (config_.get_bool("model.sync_batch_norm")) {
    const int layers = parallel::convert_sync_batch_norm(model_.module, world_);
    if (layers == 0)
      throw Error(Errc::kBadConfig, "model.sync_batch_norm: the model " + config_.get_string("model.name") + " has no batch norm");
  }
  parallel_.emplace(parallel::data_parallel(model_.module, world_, internal::parallel_options(config_)));
  optimizer_.emplace(parallel_->optimizer(internal::optimizer_choice(config_, *model_.module)));
  rate_ = internal::learning_rate(config_, batches_);
  log_info("training " + options_.recipe, {{"ranks", world_.size()},
                                           {"batch", batches_.global},
                                           {"steps_per_epoch", batches_.per_epoch},
                                           {"threads", at::get_num_threads()},
                                           {"gradients", parallel_->describe()},
                                           {"run", run_folder()}});
}

void Trainer::Impl::restore() {
  if (resumed_) go_on();
  if (folder_) metrics_ = std::make_unique<observe::Metrics>(folder_->path(), step_ + 1);
  log_.emplace(world_, metrics_.get());
}

void Trainer::Impl::go_on() {
  const auto progressed = internal::unpack_progress(*resumed_, static_cast<std::uint64_t>(config_.get_int("train.seed")), batches_.global);
  internal::unpack_optimizer(*resumed_, *optimizer_);
  parallel_->load_codec_state(internal::unpack_codec(*resumed_));
  loader_->restore(progressed.sampler);
  step_ = saved_step_ = progressed.step;
  epoch_ = progressed.sampler.epoch;
  in_epoch_ = (progressed.sampler.position + batches_.global - 1) / batches_.global;
  epoch_loss_ = progressed.epoch_loss;
  resumed_.reset();
  log_info("resuming", {{"step", step_}, {"epoch", epoch_}});
}

TrainResult Trainer::Impl::run() {
  const observe::Trace::Use here(tracing_.trace(), "main");
  const auto epochs = config_.get_int("train.epochs");
  while (epoch_ < epochs && !at_end()) run_epoch();
  if (!stop_ && evaluated_step_ != step_) evaluate_now();
  if (saved_step_ != step_ && config_.get_int("train.checkpoint_every") > 0) save();
  parallel_->wait_for_weights();
  tracing_.finish();
  if (metrics_) metrics_->flush();
  world_.barrier();  // nobody leaves before all have what they need
  TrainResult result;
  result.ranks = world_.size();
  result.epochs = epoch_;
  result.steps = step_;
  result.accuracy = evaluation_.accuracy;
  result.loss = evaluation_.loss;
  result.samples_per_s = training_s_ > 0 ? trained_samples_ / training_s_ : 0;
  result.seconds = seconds_since(started_);
  result.stopped = stop_;
  return result;
}

void Trainer::Impl::run_epoch() {
  progress_->start("epoch " + std::to_string(epoch_ + 1), batches_.per_epoch, in_epoch_);
  const auto start = Clock::now();
  const auto every = config_.get_int("train.log_every");
  while (in_epoch_ < batches_.per_epoch && !at_end()) {
    tracing_.before(step_ + 1);
    train_step();
    tracing_.after(step_);
    if (step_ % every == 0 || in_epoch_ == batches_.per_epoch || at_end()) look();
    progress_->update(in_epoch_, {{"loss", last_loss_}});
    if (in_epoch_ < batches_.per_epoch && !at_end()) evaluate_within();
  }
  training_s_ += seconds_since(start);
  progress_->finish();
  if (in_epoch_ == batches_.per_epoch) end_of_epoch();
}

void Trainer::Impl::train_step() {
  const auto start = Clock::now();
  const observe::TraceScope whole("step", "step");
  timer_.reset();
  std::optional<data::Batch> batch;
  {
    const auto scope = timer_.time(Phase::kData);
    batch = loader_->next(Deadline::in(world_.timeout()));
  }
  WEFT_CHECK(batch.has_value(), "the loader ended before the epoch");
  optimizer_->set_lr(rate_.at(static_cast<double>(step_) / static_cast<double>(batches_.per_epoch)));
  std::vector<double> losses = forward_backward(*batch);
  internal::count_exchange({*parallel_, timer_}, Phase::kBackward);
  {
    const auto scope = timer_.time(Phase::kOptimizer);
    optimizer_->step();
    optimizer_->zero_grad();
  }
  internal::count_exchange({*parallel_, timer_}, Phase::kOptimizer);
  const auto samples = static_cast<double>(batch->share.global_size);
  internal::StepLog::Step record{step_ + 1, epoch_, optimizer_->lr(), samples, seconds_since(start), {}, std::move(losses)};
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase) record.ms[phase] = timer_.ms(static_cast<Phase>(phase));
  if (speeds_) speeds_->add(batch->images.size(0), (timer_.ms(Phase::kForward) + timer_.ms(Phase::kBackward)) / 1e3);
  log_->add(std::move(record));
  trained_samples_ += samples;
  ++step_;
  ++in_epoch_;
}

internal::StepParts Trainer::Impl::parts() {
  return {model_, *parallel_, internal::loss_options(config_), config_.get_string("train.precision") == "bf16", timer_};
}

std::vector<double> Trainer::Impl::forward_backward(const data::Batch& batch) {
  if (!config_.get_bool("train.reproducible")) return {internal::plain_step(parts(), batch)};
  return internal::reproducible_step(parts(), batch, static_cast<int>(config_.get_int("train.micro_shards")));
}

// Takes the losses of the last steps together over the ranks, and agrees on stopping.
void Trainer::Impl::look() {
  const auto seen = log_->reduce(epoch_loss_, options_.should_stop && options_.should_stop());
  epoch_loss_ = seen.sum;
  last_loss_ = seen.loss;
  stop_ = seen.stop;
  if (speeds_) rebalance();
}

void Trainer::Impl::rebalance() {
  const auto weights = speeds_->rebalance();
  if (!weights) return;
  loader_->set_weights(*weights);
  std::string shares;
  for (const double weight : *weights)
    shares.append(shares.empty() ? "" : " ").append(std::to_string(std::lround(100 * weight))).append("%");
  log_debug("shares of the batches to come, by speed", {{"shares", shares}});
}

void Trainer::Impl::end_of_epoch() {
  WEFT_CHECK(!loader_->next(Deadline::in(world_.timeout())), "the epoch has more batches than steps");
  const double loss = epoch_loss_ / static_cast<double>(train_set_->size());
  ++epoch_;
  in_epoch_ = 0;
  epoch_loss_ = 0;
  const bool last = epoch_ == config_.get_int("train.epochs");
  const auto due = [&](const char* key) {
    const auto every = config_.get_int(key);
    return every > 0 && (last || epoch_ % every == 0);
  };
  if (due("train.eval_every") || last) evaluate_now();
  if (due("train.checkpoint_every")) save();
  log_info("epoch done", {{"epoch", epoch_},
                          {"train_loss", std::round(loss * 1e4) / 1e4},
                          {"test_loss", std::round(evaluation_.loss * 1e4) / 1e4},
                          {"accuracy", evaluation_.accuracy},
                          {"samples_per_s", std::round(trained_samples_ / training_s_)}});
}

// Its time is no part of the training's.
void Trainer::Impl::evaluate_within() {
  const auto every = config_.get_int("train.eval_steps");
  if (every == 0 || step_ % every != 0) return;
  const auto start = Clock::now();
  evaluate_now();
  training_s_ -= seconds_since(start);
}

void Trainer::Impl::evaluate_now() {
  if (!test_set_) {
    test_set_ = std::make_shared<const data::ImageSet>(data::load_images(internal::set_options(config_), data::Part::kTest));
  }
  auto plain = augment_;
  plain.crop_padding = 0;
  plain.flip = false;
  EvaluationOptions options{test_set_, data::Augment(plain), config_.get_int("train.eval_batch"), internal::loss_options(config_),
                            config_.get_string("train.precision") == "bf16"};
  evaluation_ = evaluate(model_, world_, options);
  evaluated_step_ = step_;
  if (metrics_) metrics_->add("test", step_, epoch_, {{"accuracy", evaluation_.accuracy}, {"test_loss", evaluation_.loss}});
}

void Trainer::Impl::save() {
  saved_step_ = step_;
  parallel_->wait_for_weights();
  const auto codec_state = parallel_->codec_state();
  if (!folder_) return;  // rank 0 writes; the others meet it at the next step
  const internal::Progressed progressed{step_, loader_->state(), epoch_loss_, static_cast<std::uint64_t>(config_.get_int("train.seed")),
                                        batches_.global};
  auto packed = internal::pack(*model_.module, *optimizer_, progressed);
  internal::pack_codec(codec_state, packed);
  const auto saved = checkpoint::save(folder_->checkpoint_path(), packed, {static_cast<int>(config_.get_int("train.keep"))});
  log_debug("checkpoint", {{"folder", saved}});
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
