#include "weft/train/text_trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/data/text/tokenize_file.h"
#include "weft/data/text/windows.h"
#include "weft/observe/run_folder.h"
#include "weft/parallel/mesh/mesh.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/train/evaluate.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/newest_run.h"
#include "weft/train/internal/step.h"
#include "weft/train/internal/step_log.h"
#include "weft/train/internal/text.h"

namespace weft::train {
namespace {

namespace text = data::text;
using observe::Phase;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

at::Tensor rows_of(std::vector<std::int64_t>& values, const text::TokenBatch& batch) {
  return at::from_blob(values.data(), {batch.rows, batch.length}, at::kLong);
}

Mesh make_mesh(const Config& config, const Group& world) {
  const auto size = [&](const char* key) { return static_cast<int>(config.get_int(key)); };
  return Mesh(world, {{"dp", size("parallel.dp")}, {"tp", size("parallel.tp")}});
}

// Whole documents at the end of the text; where these are too few, or there is but one, the end of the last one.
text::TokenSplit held_out(const text::TokenFile& file, double part, std::int64_t length) {
  const auto whole = text::split_tokens(file, part);
  if (whole.validation.size() > length) return whole;
  const auto cut = std::min(static_cast<std::int64_t>(static_cast<double>(file.size()) * (1 - part)), file.size() - length - 1);
  WEFT_REQUIRE(cut > 0,
               "the text has " + std::to_string(file.size()) + " tokens, too few to hold out a window of " + std::to_string(length));
  return {{0, cut}, {cut, file.size()}};
}

}  // namespace

bool is_text(const Config& config) { return config.get_string("data.name") == "text"; }

class TextTrainer::Impl {
 public:
  Impl(const Config& config, Group world, TrainerOptions options)
      : config_(config), mesh_(make_mesh(config, world)), options_(std::move(options)), started_(Clock::now()) {
    refuse_what_is_not_there();
    if (this->world().rank() == 0) read_text();
    open_run();
    open_text();
    make_model();
    restore();
  }

  TrainResult run();
  std::string run_folder() const { return folder_ ? folder_->path() : ""; }

 private:
  void refuse_what_is_not_there() const;
  void read_text();
  void open_run();
  void open_text();
  void make_model();
  void restore();
  void run_epoch();
  void train_step();
  at::Tensor logits(const at::Tensor& tokens);
  double forward_backward(text::TokenBatch& batch);
  internal::ExchangeTimes exchange() { return {*model_, timer_}; }
  void look();
  void end_of_epoch();
  void evaluate_within();
  void evaluate_now();
  void save();
  bool at_end() const { return stop_ || (max_steps_ > 0 && step_ >= max_steps_); }
  const Group& world() const { return mesh_.world(); }
  bool first_of_replicas() const { return mesh_.coordinate("dp") == 0; }

  const Config config_;
  const Mesh mesh_;
  const TrainerOptions options_;
  const Clock::time_point started_;

  std::unique_ptr<observe::RunFolder> folder_;  // rank 0's, as are the metrics
  std::unique_ptr<observe::Metrics> metrics_;
  std::optional<checkpoint::Checkpoint> resumed_;
  std::vector<std::string> files_;  // of the text, and the tokenizer.json that the recipe means: rank 0's
  std::string json_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::shared_ptr<const text::Windows> train_, held_out_;
  std::optional<text::Batches> batches_;
  Batches plan_;
  models::Gpt gpt_{nullptr};
  std::optional<parallel::DataParallel<models::GptImpl>> model_;
  std::optional<parallel::Optimizer> optimizer_;
  std::optional<internal::StepLog> log_;
  std::optional<observe::Progress> progress_;
  kernels::LearningRate rate_;
  observe::StepTimer timer_;

  std::int64_t step_ = 0, epoch_ = 0, in_epoch_ = 0, max_steps_ = 0;
  std::int64_t saved_step_ = -1, evaluated_step_ = -1;
  double epoch_loss_ = 0, last_loss_ = 0, training_s_ = 0, trained_samples_ = 0;
  bool stop_ = false;
  Evaluation evaluation_;
};

void TextTrainer::Impl::refuse_what_is_not_there() const {
  const auto refuse = [&](const char* key, bool set, const char* why) {
    if (set) throw Error(Errc::kBadConfig, std::string(key) + " (" + config_.origin(key) + ") " + why);
  };
  refuse("train.reproducible", config_.get_bool("train.reproducible"), "is for images; leave it false with data.name = \"text\"");
  refuse("train.balance", config_.get_string("train.balance") != "even", "is for images; leave it \"even\" with data.name = \"text\"");
  refuse("optimizer.max_grad_norm", config_.get_double("optimizer.max_grad_norm") > 0 && mesh_.size("tp") > 1,
         "would be the norm of one rank's part of the layers; leave it 0 with parallel.tp above 1");
  if (!options_.trace.empty()) throw Error(Errc::kBadConfig, "--trace is for recipes of images; leave it out with data.name = \"text\"");
}

// Before there is a run folder, so that a recipe's mistakes leave none.
void TextTrainer::Impl::read_text() {
  files_ = internal::text_files(config_);
  if (!options_.resume) json_ = internal::tokenizer_text(config_, files_);
}

void TextTrainer::Impl::open_run() {
  progress_.emplace(observe::Progress::Options{.mode = options_.progress, .rank = world().rank()});
  if (world().rank() == 0) {
    observe::RunFolderOptions run{config_.get_string("run.dir"), config_.get_string("run.name"), options_.recipe, options_.resume};
    if (run.resume && run.name.empty()) run.name = internal::newest_run(run.parent, options_.recipe);
    folder_ = std::make_unique<observe::RunFolder>(run, config_);
  }
  if (!options_.resume) return;
  resumed_ = internal::load_latest(world(), folder_ ? folder_->checkpoint_path() : "");
  if (!resumed_) log_warn("the run has no checkpoint yet: starting from the beginning");
}

// Rank 0 reads the text; the others map its tokens.
void TextTrainer::Impl::open_text() {
  std::string tokens;
  if (folder_) {
    tokens = std::filesystem::absolute(folder_->path() + "/tokens.bin").string();
    const std::string kept = folder_->path() + "/tokenizer.json";
    if (options_.resume && std::filesystem::exists(kept)) json_ = read_file(kept, std::size_t{128} << 20);
    if (!json_.empty()) write_file_atomic(kept, json_);
    const auto tokenizer = internal::make_tokenizer(json_);
    const auto report = text::tokenize_files(files_, tokens, *tokenizer, {.end_token = internal::end_token(*tokenizer)});
    log_info("text", {{"files", report.documents}, {"bytes", report.bytes}, {"tokens", report.tokens}});
  }
  tokenizer_ = internal::make_tokenizer(internal::broadcast_text(world(), json_));
  const auto file = text::TokenFile::open(internal::broadcast_text(world(), tokens));
  const auto length = config_.get_int("model.sequence");
  const auto split = held_out(file, config_.get_double("data.validation"), length);
  const auto seed = static_cast<std::uint64_t>(config_.get_int("train.seed"));
  train_ = std::make_shared<const text::Windows>(
      file, text::WindowOptions{.length = length, .range = split.train, .start = text::WindowOptions::Start::kShifted, .seed = seed});
  held_out_ = std::make_shared<const text::Windows>(file, text::WindowOptions{.length = length, .range = split.validation});
  plan_ = plan_batches(config_, mesh_.size("dp"), train_->size());
  max_steps_ = config_.get_int("train.max_steps");
  batches_.emplace(train_,
                   data::SamplerOptions{.batch = plan_.global, .seed = seed, .rank = mesh_.coordinate("dp"), .world = mesh_.size("dp")});
}

void TextTrainer::Impl::make_model() {
  const auto seed = static_cast<std::uint64_t>(config_.get_int("train.seed"));
  const parallel::TensorParallel tp(mesh_["tp"], seed);
  tp.seed_dropout(seed + static_cast<std::uint64_t>(mesh_.coordinate("dp")));
  gpt_ = models::Gpt(internal::gpt_options(config_, tokenizer_->vocab_size()), tp);
  if (resumed_) internal::set_whole_tensors(*gpt_, resumed_->parts.at("model"));
  model_.emplace(parallel::data_parallel(gpt_, mesh_["dp"], internal::parallel_options(config_)));
  optimizer_.emplace(model_->optimizer(internal::optimizer_choice(config_, *gpt_)));
  rate_ = internal::learning_rate(config_, plan_);
  log_info("training " + options_.recipe, {{"ranks", world().size()},
                                           {"mesh", mesh_.layout().describe()},
                                           {"batch", plan_.global},
                                           {"steps_per_epoch", plan_.per_epoch},
                                           {"vocabulary", gpt_->options.vocabulary},
                                           {"threads", at::get_num_threads()},
                                           {"gradients", model_->describe()},
                                           {"run", run_folder()}});
}

void TextTrainer::Impl::restore() {
  if (resumed_) {
    const auto progressed = internal::unpack_progress(*resumed_, static_cast<std::uint64_t>(config_.get_int("train.seed")), plan_.global);
    optimizer_->load_state(internal::part_of_state(*gpt_, resumed_->parts.at("optimizer")));
    batches_->set_state(progressed.sampler);
    step_ = saved_step_ = progressed.step;
    epoch_ = progressed.sampler.epoch;
    in_epoch_ = (progressed.sampler.position + plan_.global - 1) / plan_.global;
    epoch_loss_ = progressed.epoch_loss;
    resumed_.reset();
    log_info("resuming", {{"step", step_}, {"epoch", epoch_}});
  }
  if (folder_) metrics_ = std::make_unique<observe::Metrics>(folder_->path(), step_ + 1);
  log_.emplace(world(), metrics_.get());
}

TrainResult TextTrainer::Impl::run() {
  const auto epochs = config_.get_int("train.epochs");
  while (epoch_ < epochs && !at_end()) run_epoch();
  if (!stop_ && evaluated_step_ != step_) evaluate_now();
  if (saved_step_ != step_ && config_.get_int("train.checkpoint_every") > 0) save();
  model_->wait_for_weights();
  if (metrics_) metrics_->flush();
  world().barrier();  // nobody leaves before all have what they need
  TrainResult result;
  result.ranks = world().size();
  result.epochs = epoch_;
  result.steps = step_;
  result.accuracy = evaluation_.accuracy;
  result.loss = evaluation_.loss;
  result.samples_per_s = training_s_ > 0 ? trained_samples_ / training_s_ : 0;
  result.seconds = seconds_since(started_);
  result.stopped = stop_;
  return result;
}

void TextTrainer::Impl::run_epoch() {
  progress_->start("epoch " + std::to_string(epoch_ + 1), plan_.per_epoch, in_epoch_);
  const auto start = Clock::now();
  const auto every = config_.get_int("train.log_every");
  while (in_epoch_ < plan_.per_epoch && !at_end()) {
    train_step();
    if (step_ % every == 0 || in_epoch_ == plan_.per_epoch || at_end()) look();
    progress_->update(in_epoch_, {{"loss", last_loss_}});
    if (in_epoch_ < plan_.per_epoch && !at_end()) evaluate_within();
  }
  training_s_ += seconds_since(start);
  progress_->finish();
  if (in_epoch_ == plan_.per_epoch) end_of_epoch();
}

void TextTrainer::Impl::train_step() {
  const auto start = Clock::now();
  timer_.reset();
  std::optional<text::TokenBatch> batch;
  {
    const auto scope = timer_.time(Phase::kData);
    batch = batches_->next();
  }
  WEFT_CHECK(batch.has_value(), "the text ended before the epoch");
  optimizer_->set_lr(rate_.at(static_cast<double>(step_) / static_cast<double>(plan_.per_epoch)));
  const double loss = forward_backward(*batch);
  internal::count_exchange(exchange(), Phase::kBackward);
  {
    const auto scope = timer_.time(Phase::kOptimizer);
    optimizer_->step();
    optimizer_->zero_grad();
  }
  internal::count_exchange(exchange(), Phase::kOptimizer);
  const auto samples = static_cast<double>(batch->share.global_size);
  // The ranks of a tensor-parallel group all have the same loss.
  internal::StepLog::Step record{step_ + 1, epoch_, optimizer_->lr(), samples, seconds_since(start), {}, {loss / mesh_.size("tp")}};
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase) record.ms[phase] = timer_.ms(static_cast<Phase>(phase));
  log_->add(std::move(record));
  trained_samples_ += samples;
  ++step_;
  ++in_epoch_;
}

at::Tensor TextTrainer::Impl::logits(const at::Tensor& tokens) {
  if (config_.get_string("train.recompute") == "none") return gpt_->forward(tokens);
  const bool bf16 = config_.get_string("train.precision") == "bf16";
  const parallel::KeepState draws = [tp = gpt_->tp] { return [tp, draw = tp.draw()] { tp.set_draw(draw); }; };
  at::Tensor x = tokens;
  for (const auto& part : gpt_->parts()) {
    const auto forward = [part, bf16](const at::Tensor& in) {
      const internal::Autocast autocast(bf16);
      return part->forward(in);
    };
    x = part == gpt_->head ? part->forward(x) : parallel::recompute_with({.random = false, .keep = {draws}}, forward, x);
  }
  return x;
}

// The loss summed over this replica's windows.
double TextTrainer::Impl::forward_backward(text::TokenBatch& batch) {
  model_->set_samples(static_cast<double>(batch.rows));
  if (batch.rows == 0) return 0;
  at::Tensor loss;
  {
    const auto scope = timer_.time(Phase::kForward);
    const internal::Autocast autocast(config_.get_string("train.precision") == "bf16");
    loss = gpt_->loss(logits(rows_of(batch.inputs, batch)), rows_of(batch.targets, batch));
  }
  internal::count_exchange(exchange(), Phase::kForward);
  const auto scope = timer_.time(Phase::kBackward);
  loss.backward();
  return loss.item<double>() * static_cast<double>(batch.rows);
}

void TextTrainer::Impl::look() {
  const auto seen = log_->reduce(epoch_loss_, options_.should_stop && options_.should_stop());
  epoch_loss_ = seen.sum;
  last_loss_ = seen.loss;
  stop_ = seen.stop;
}

void TextTrainer::Impl::end_of_epoch() {
  WEFT_CHECK(!batches_->next(), "the epoch has more batches than steps");
  const double loss = epoch_loss_ / static_cast<double>(train_->size());
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
                          {"perplexity", std::round(std::exp(evaluation_.loss) * 100) / 100},
                          {"accuracy", std::round(evaluation_.accuracy * 1e4) / 1e4},
                          {"tokens_per_s", std::round(trained_samples_ * static_cast<double>(train_->length()) / training_s_)}});
}

// Its time is no part of the training's.
void TextTrainer::Impl::evaluate_within() {
  const auto every = config_.get_int("train.eval_steps");
  if (every == 0 || step_ % every != 0) return;
  const auto start = Clock::now();
  evaluate_now();
  training_s_ -= seconds_since(start);
}

// Each replica takes some of the held-out windows.
void TextTrainer::Impl::evaluate_now() {
  evaluated_step_ = step_;
  const at::NoGradGuard no_grad;
  model_->wait_for_weights();
  gpt_->eval();
  text::Batches blocks(held_out_, {.batch = std::max<std::int64_t>(1, plan_.global / mesh_.size("dp")),
                                   .order = data::Order::kSequential,
                                   .rank = mesh_.coordinate("dp"),
                                   .world = mesh_.size("dp")});
  at::Tensor sums = at::zeros({3}, at::kDouble);  // loss, hits, tokens
  while (auto batch = blocks.next()) {
    const at::Tensor targets = rows_of(batch->targets, *batch), counted = targets.ne(text::kNoTarget);
    const at::Tensor logits = gpt_->forward(rows_of(batch->inputs, *batch));
    const double tokens = counted.sum().item<double>();
    sums[0] += gpt_->loss(logits, targets).to(at::kDouble) * tokens;
    sums[1] += internal::likeliest(*gpt_, logits).eq(targets).logical_and(counted).sum().to(at::kDouble);
    sums[2] += tokens;
  }
  gpt_->train();
  mesh_["dp"].all_reduce(sums);
  const auto* const values = sums.const_data_ptr<double>();
  evaluation_ = {static_cast<std::int64_t>(values[2]), values[1] / values[2], values[0] / values[2]};
  if (metrics_) metrics_->add("test", step_, epoch_, {{"accuracy", evaluation_.accuracy}, {"test_loss", evaluation_.loss}});
}

void TextTrainer::Impl::save() {
  saved_step_ = step_;
  model_->wait_for_weights();
  const auto state = optimizer_->state();
  if (!first_of_replicas()) return;  // they meet the others at the next step
  const internal::Progressed progressed{step_, batches_->state(), epoch_loss_, static_cast<std::uint64_t>(config_.get_int("train.seed")),
                                        plan_.global};
  const auto packed = internal::pack(internal::whole_tensors(*gpt_), internal::whole_state(*gpt_, state), progressed);
  if (!folder_) return;
  const auto saved = checkpoint::save(folder_->checkpoint_path(), packed, {static_cast<int>(config_.get_int("train.keep"))});
  log_debug("checkpoint", {{"folder", saved}});
}

TextTrainer::TextTrainer(const Config& config, Group world, TrainerOptions options)
    : impl_(std::make_unique<Impl>(config, std::move(world), std::move(options))) {}
TextTrainer::~TextTrainer() = default;
TrainResult TextTrainer::run() { return impl_->run(); }
std::string TextTrainer::run_folder() const { return impl_->run_folder(); }

}  // namespace weft::train
