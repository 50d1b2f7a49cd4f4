#include "weft/train/text_trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "weft/base/file.h"
#include "weft/data/text/tokenize_file.h"
#include "weft/data/text/windows.h"
#include "weft/train/internal/choices.h"
#include "weft/train/internal/loop.h"
#include "weft/train/internal/text.h"
#include "weft/train/internal/text_learner.h"

namespace weft::train {
namespace {

namespace text = data::text;
using observe::Phase;

at::Tensor rows_of(std::vector<std::int64_t>& values, const text::TokenBatch& batch) {
  return at::from_blob(values.data(), {batch.rows, batch.length}, at::kLong);
}

// The batch outlives it.
internal::TextLearner::Batch tensors_of(text::TokenBatch& batch) {
  return {rows_of(batch.inputs, batch), rows_of(batch.targets, batch), batch.share.global_size};
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

// Before there is a run folder, so that a recipe's mistakes leave none.
void refuse_what_is_not_there(const Config& config) {
  check_recipe(config);
  if (config.get_string("train.balance") == "even") return;
  throw Error(Errc::kBadConfig,
              "train.balance (" + config.origin("train.balance") + ") is for images; leave it \"even\" with data.name = \"text\"");
}

}  // namespace

bool is_text(const Config& config) { return config.get_string("data.name") == "text"; }

class TextTrainer::Impl : internal::Task {
 public:
  Impl(const Config& config, Group world, TrainerOptions options)
      : config_(config),
        mesh_(internal::text_mesh(config, world)),
        resume_(options.resume),
        recipe_(options.recipe),
        loop_(config, world, std::move(options)) {
    refuse_what_is_not_there(config_);
    internal::check_text_learner(config_, mesh_);
    internal::settle_order(config_, mesh_.world());
    if (mesh_.world().rank() == 0) read_text();
    loop_.open();
    open_text();
    make_model();
    loop_.start(*this, {train_->size(), batches_, internal::learning_rate(config_, batches_)});
  }

  TrainResult run() { return loop_.run(); }
  std::string run_folder() const { return loop_.run_folder(); }

 private:
  void read_text();
  void open_text();
  void make_model();
  // Ranks that share a batch, each with rows of its own.
  const Group& replicas() const { return mesh_.along({"dp", "fsdp", "ep"}); }

  Step step(double lr, observe::StepTimer& timer) override;
  void end_epoch() override {
    WEFT_CHECK(!rows_->next(), "the epoch has more batches than steps");
    experts_ = learner_->expert_use();
  }
  Evaluation evaluate() override;
  void settle() override { learner_->settle(); }
  checkpoint::Checkpoint pack(const internal::Progressed& progressed) override;
  void restore(const checkpoint::Checkpoint& checkpoint, const data::SamplerState& position) override;
  data::SamplerState position() const override { return rows_->state(); }
  observe::Values epoch_values() const override {
    if (!experts_) return {};
    return {{"expert_load_max", experts_->load_max}, {"expert_dropped", experts_->dropped}};
  }
  std::vector<LogField> epoch_fields(const Evaluation& evaluation, double samples_per_s) const override {
    return {{"perplexity", std::round(std::exp(evaluation.loss) * 100) / 100},
            {"tokens_per_s", std::round(samples_per_s * static_cast<double>(train_->length()))}};
  }

  const Config config_;
  const Mesh mesh_;
  const bool resume_;
  const std::string recipe_;
  internal::Loop loop_;
  std::vector<std::string> files_;  // of the text, and the tokenizer.json that the recipe means: rank 0's
  std::string json_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::shared_ptr<const text::Windows> train_, held_out_;
  std::optional<text::Batches> rows_;
  Batches batches_;
  std::unique_ptr<internal::TextLearner> learner_;
  std::optional<internal::TextLearner::ExpertUse> experts_;  // in the epoch that has ended
};

// Before there is a run folder, so that a recipe's mistakes leave none.
void TextTrainer::Impl::read_text() {
  files_ = internal::text_files(config_);
  if (!resume_) json_ = internal::tokenizer_text(config_, files_);
}

// Rank 0 reads the text; the others map its tokens.
void TextTrainer::Impl::open_text() {
  std::string tokens;
  if (const std::string folder = loop_.run_folder(); !folder.empty()) {
    tokens = std::filesystem::absolute(folder + "/tokens.bin").string();
    const std::string kept = folder + "/tokenizer.json";
    if (resume_ && std::filesystem::exists(kept)) json_ = read_file(kept, std::size_t{128} << 20);
    if (!json_.empty()) write_file_atomic(kept, json_);
    const auto tokenizer = internal::make_tokenizer(json_);
    const auto report = text::tokenize_files(files_, tokens, *tokenizer, {.end_token = internal::end_token(*tokenizer)});
    log_info("text", {{"files", report.documents}, {"bytes", report.bytes}, {"tokens", report.tokens}});
  }
  tokenizer_ = internal::make_tokenizer(internal::broadcast_text(mesh_.world(), json_));
  const auto file = text::TokenFile::open(internal::broadcast_text(mesh_.world(), tokens));
  const auto length = config_.get_int("model.sequence");
  const auto split = held_out(file, config_.get_double("data.validation"), length);
  const auto seed = static_cast<std::uint64_t>(config_.get_int("train.seed"));
  train_ = std::make_shared<const text::Windows>(
      file, text::WindowOptions{.length = length, .range = split.train, .start = text::WindowOptions::Start::kShifted, .seed = seed});
  held_out_ = std::make_shared<const text::Windows>(file, text::WindowOptions{.length = length, .range = split.validation});
  batches_ = plan_batches(config_, replicas().size(), train_->size());
  rows_.emplace(train_,
                data::SamplerOptions{.batch = batches_.global, .seed = seed, .rank = replicas().rank(), .world = replicas().size()});
}

void TextTrainer::Impl::make_model() {
  const auto& resumed = loop_.resumed();
  learner_ = internal::make_text_learner({.config = config_,
                                          .mesh = mesh_,
                                          .weights = resumed ? &resumed->parts.at("model") : nullptr,
                                          .vocabulary = tokenizer_->vocab_size(),
                                          .batch = batches_.global,
                                          .codec = resumed ? internal::unpack_codec(*resumed) : internal::NamedTensors{}});
  log_info("training " + recipe_, {{"ranks", mesh_.world().size()},
                                   {"mesh", mesh_.layout().describe()},
                                   {"batch", batches_.global},
                                   {"steps_per_epoch", batches_.per_epoch},
                                   {"vocabulary", tokenizer_->vocab_size()},
                                   {"threads", at::get_num_threads()},
                                   {"run", run_folder()}});
  for (const std::string& line : learner_->describe()) log_info(line);
}

void TextTrainer::Impl::restore(const checkpoint::Checkpoint& checkpoint, const data::SamplerState& position) {
  const auto part = [&](const char* name) {
    const auto found = checkpoint.parts.find(name);
    return found == checkpoint.parts.end() ? checkpoint::TensorMap{} : found->second;
  };
  learner_->load({part("model"), part("optimizer"), part("scaling"), internal::unpack_codec(checkpoint)});
  rows_->set_state(position);
}

internal::Task::Step TextTrainer::Impl::step(double lr, observe::StepTimer& timer) {
  std::optional<text::TokenBatch> batch;
  {
    const auto scope = timer.time(Phase::kData);
    batch = rows_->next();
  }
  WEFT_CHECK(batch.has_value(), "the text ended before the epoch");
  learner_->set_lr(lr);
  const double loss = learner_->train(tensors_of(*batch), timer);
  return {static_cast<double>(batch->share.global_size), {loss}};
}

// Blocks of the held-out windows go round the replicas, of which some may have none in the last round.
Evaluation TextTrainer::Impl::evaluate() {
  const int world = replicas().size();
  const std::int64_t block = std::max<std::int64_t>(1, batches_.global / world), blocks = (held_out_->size() + block - 1) / block;
  text::Batches mine(held_out_, {.batch = block, .order = data::Order::kSequential, .rank = replicas().rank(), .world = world});
  at::Tensor sums = at::zeros({3}, at::kDouble);
  for (std::int64_t round = 0; round * world < blocks; ++round) {
    text::TokenBatch nothing;
    nothing.length = held_out_->length();
    auto batch = round * world + replicas().rank() < blocks ? mine.next() : nothing;
    WEFT_CHECK(batch.has_value(), "the held-out text ended early");
    sums += learner_->score(tensors_of(*batch));
  }
  mesh_.world().all_reduce(sums);
  const auto* const values = sums.const_data_ptr<double>();
  return {static_cast<std::int64_t>(values[2]), values[1] / values[2], values[0] / values[2]};
}

checkpoint::Checkpoint TextTrainer::Impl::pack(const internal::Progressed& progressed) {
  internal::TextLearner::State state = learner_->state();
  if (mesh_.world().rank() != 0) return {};
  auto packed = internal::pack(std::move(state.model), {state.optimizer.begin(), state.optimizer.end()}, progressed);
  internal::pack_codec(state.codec, packed);
  if (!state.scaling.empty()) packed.parts["scaling"] = std::move(state.scaling);
  return packed;
}

TextTrainer::TextTrainer(const Config& config, Group world, TrainerOptions options)
    : impl_(std::make_unique<Impl>(config, std::move(world), std::move(options))) {}
TextTrainer::~TextTrainer() = default;
TrainResult TextTrainer::run() { return impl_->run(); }
std::string TextTrainer::run_folder() const { return impl_->run_folder(); }

}  // namespace weft::train
