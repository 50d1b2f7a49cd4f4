// Task of text recipes: token batches for GPT and LSTM models.
//
//   data.file ─ tokenizer ─> tokens.bin (rank 0, in the run folder) ─ windows ─> batches of rows
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text/numbers.h"
#include "weft/comm/texts.h"
#include "weft/data/text/packed_rows.h"
#include "weft/data/text/tokenize_file.h"
#include "weft/data/text/windows.h"
#include "weft/parallel/tensor/vocabulary.h"
#include "weft/train/internal/pretrained.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/internal/text.h"
#include "weft/train/internal/text_files.h"
#include "weft/train/options.h"

namespace weft::train::internal {
namespace {

namespace text = data::text;
using parallel::Contexts;
using parallel::Tensors;

constexpr std::int64_t kAnyVocabulary = 1;
// A file is a document. Tokenizers take texts below 2 GiB.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

// Holds out whole documents at the end of the text. If these are too short, or have less than half
// of the part, holds out the end of the text instead.
text::TokenSplit held_out(const text::TokenFile& file, double part, std::int64_t length) {
  const auto whole = text::split_tokens(file, part);
  const auto size = static_cast<double>(file.size()),
             held = static_cast<double>(whole.validation.size());
  if (whole.validation.size() > length && 2 * held >= size * part) return whole;
  const auto cut = std::min(static_cast<std::int64_t>(size * (1 - part)), file.size() - length - 1);
  WEFT_REQUIRE(cut > 0, "the text has " + std::to_string(file.size()) +
                            " tokens, too few to hold out a window of " + std::to_string(length));
  return {{0, cut}, {cut, file.size()}};
}

// Inputs and targets are int64 [rows, length]. `apart` adds a second input: the document number of
// each position.
data::Source rows_of(std::shared_ptr<const text::Rows> rows, bool apart) {
  const std::int64_t size = rows->size();
  return {size, [rows = std::move(rows), apart](const data::Share& share) {
            const auto count = static_cast<std::int64_t>(share.indices.size()),
                       length = rows->length();
            at::Tensor inputs = at::empty({count, length}, at::kLong),
                       targets = at::empty_like(inputs), documents = at::empty_like(inputs);
            std::vector<std::int64_t> positions(static_cast<std::size_t>(length));
            for (std::int64_t i = 0; i < count; ++i) {
              const auto row = [&](const at::Tensor& all) {
                return std::span(all.data_ptr<std::int64_t>() + i * length,
                                 static_cast<std::size_t>(length));
              };
              rows->read(share.indices[static_cast<std::size_t>(i)], share.epoch,
                         {row(inputs), row(targets), positions, row(documents)});
            }
            return data::Batch{apart ? Tensors{inputs, documents} : Tensors{inputs}, {targets}, {}};
          }};
}

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& counted) {
  return at::stack({sum.to(at::kDouble), counted.sum().to(at::kDouble)});
}

// Means over tokens: the loss in nats, and the accuracy as a share.
std::vector<Metric> metrics_of(std::int64_t vocabulary) {
  const auto loss = [vocabulary](const Tensors& outputs, const Tensors& targets,
                                 const Contexts& with) {
    const parallel::CrossEntropyOptions summed{.vocabulary = vocabulary,
                                               .reduction = parallel::LossReduction::kSum};
    return sum_of(parallel::cross_entropy(outputs[0], targets[0], summed, with.tp),
                  targets[0].ne(text::kNoTarget));
  };
  const auto accuracy = [vocabulary](const Tensors& outputs, const Tensors& targets,
                                     const Contexts& with) {
    const at::Tensor counted = targets[0].ne(text::kNoTarget);
    return sum_of(
        likeliest(outputs[0], vocabulary, with.tp).eq(targets[0]).logical_and(counted).sum(),
        counted);
  };
  return {{"loss", loss}, {"accuracy", accuracy}};
}

class TextTask final : public RecipeTask {
 public:
  TextTask(const Config& config, const Group& world, Begin begin)
      : settings_(recipe_settings_of(config)),
        seed_(options_of(config).plan.seed),
        world_(world),
        begin_(begin) {
    model_ = text_blocks(settings_, kAnyVocabulary);
    if (starts_from_weights() && begin_ == Begin::kNew) pretrained_weights(settings_);
    if (world_.rank() != 0) return;
    files_ = text_files(settings_.data.file);
    if (begin_ != Begin::kNew) return;
    json_ = tokenizer_text(settings_, files_);
    if (!settings_.data.pack_documents || !end_token(*make_tokenizer(json_)).empty()) return;
    throw Error(Errc::kBadConfig,
                "data.pack_documents needs a tokenizer with an end token, <|endoftext|> or </s>; "
                "data.tokenizer = \"" +
                    settings_.data.tokenizer + "\" has none");
  }

  parallel::BlockModel outline() const override { return model_; }
  Task make(const std::string& folder) override;

  std::vector<LogField> about() const override { return {{"vocabulary", vocabulary_}}; }
  Throughput throughput() const override {
    return {"tokens/s", static_cast<double>(settings_.model.sequence)};
  }
  std::vector<LogField> epoch_fields(const Evaluation& evaluation,
                                     double samples_per_s) const override {
    std::vector<LogField> fields;
    if (evaluation.samples > 0)
      fields.emplace_back("perplexity", rounded(std::exp(evaluation.loss), 2));
    fields.emplace_back("tokens_per_s",
                        rounded(samples_per_s * static_cast<double>(settings_.model.sequence), 0));
    return fields;
  }

 private:
  bool starts_from_weights() const { return !settings_.model.from.empty(); }
  // Tokenizes the text and returns the path of tokens.bin. Rank 0 only.
  std::string write_tokens(const std::string& folder);
  void replace_tokens(const std::string& tokens, const std::string& made) const;
  std::shared_ptr<const text::PackedRows> packed(const text::TokenFile& file,
                                                 const data::Range& range, const char* what) const;

  const RecipeSettings settings_;
  const std::uint64_t seed_;
  const Group world_;
  const Begin begin_;
  parallel::BlockModel model_;
  // The text files and the contents of the recipe's tokenizer.json. Rank 0 only.
  std::vector<std::string> files_;
  std::string json_;
  std::int64_t vocabulary_ = 0;
};

std::string TextTask::write_tokens(const std::string& folder) {
  const std::string tokens = std::filesystem::absolute(folder + "/tokens.bin").string(),
                    kept = folder + "/tokenizer.json";
  const bool goes_on = begin_ != Begin::kNew && std::filesystem::exists(tokens);
  // The run may have ended before it wrote the file.
  if (begin_ != Begin::kNew) {
    json_ = std::filesystem::exists(kept) ? read_file(kept, std::size_t{128} << 20)
                                          : tokenizer_text(settings_, files_);
  }
  // The other ranks still have the file of tokens mapped, so it stays as it is.
  if (begin_ == Begin::kAgain && goes_on) return tokens;
  if (!json_.empty()) write_file_atomic(kept, json_);
  const auto tokenizer = make_tokenizer(json_);
  const std::string made = goes_on ? tokens + ".new" : tokens;
  const auto report = text::tokenize_files(
      files_, made, *tokenizer,
      {.end_token = end_token(*tokenizer), .max_document_bytes = kMaxTextBytes});
  if (goes_on) replace_tokens(tokens, made);
  log_info("text",
           {{"files", report.documents}, {"bytes", report.bytes}, {"tokens", report.tokens}});
  return tokens;
}

// The position in the data, and what is held out, hold for the text that the run began with.
void TextTask::replace_tokens(const std::string& tokens, const std::string& made) const {
  const auto now = text::TokenFile::open(made);
  std::optional<text::TokenFile> before;
  try {
    before = text::TokenFile::open(tokens);
  } catch (const Error&) {
    // It is damaged, and `made` takes its place.
  }
  if (before && !before->is_same(now)) {
    std::filesystem::remove(made);
    throw Error(Errc::kBadConfig,
                "data.file = \"" + settings_.data.file +
                    "\" has another text than the run began with: " + std::to_string(now.size()) +
                    " tokens, and " + std::to_string(before->size()) +
                    " before; give it the same files, or begin a new run");
  }
  std::filesystem::rename(made, tokens);
}

std::shared_ptr<const text::PackedRows> TextTask::packed(const text::TokenFile& file,
                                                         const data::Range& range,
                                                         const char* what) const {
  const auto length = settings_.model.sequence;
  auto rows = std::make_shared<const text::PackedRows>(
      file, text::PackOptions{.length = length, .range = range});
  const text::PackStats& stats = rows->stats();
  if (world_.rank() == 0)
    log_info(
        what,
        {{"documents", stats.documents}, {"rows", stats.rows}, {"padding", stats.waste(length)}});
  return rows;
}

// Rank 0 tokenizes the text. All ranks then map the file of tokens.
Task TextTask::make(const std::string& folder) {
  std::string tokens;
  comm::together(world_, [&] { tokens = folder.empty() ? "" : write_tokens(folder); });
  vocabulary_ = make_tokenizer(comm::broadcast_text(world_, json_))->vocab_size();
  tokens = comm::broadcast_text(world_, tokens);
  std::optional<text::TokenFile> mapped;
  comm::together(world_, [&] { mapped.emplace(text::TokenFile::open(tokens)); });
  const text::TokenFile& file = *mapped;
  const auto length = settings_.model.sequence;
  const auto split = held_out(file, settings_.data.validation, length);
  if (!folder.empty())
    log_info("tokens", {{"training", split.train.size()}, {"validation", split.validation.size()}});
  const bool packs = settings_.data.pack_documents;
  const auto packed_rows = packs ? packed(file, split.train, "packed for training") : nullptr;
  Task task;
  // A mean over the targets of a part of a batch would depend on how the batch is divided.
  task.model = text_blocks(settings_, vocabulary_, packs ? packed_rows->stats().used_per_row() : 0);
  std::int64_t columns = vocabulary_;  // of the logits
  if (settings_.model.name == "gpt") {
    models::GptOptions options = gpt_options(settings_, vocabulary_);
    columns = options.vocabulary;
    options.sequence_length = length;
    task.flops_per_sample = gpt_flops_per_token(options) * static_cast<double>(length);
  }
  task.metrics = metrics_of(columns);
  if (starts_from_weights())
    task.start = [settings = settings_] { return pretrained_weights(settings); };
  if (packs) {
    task.train = rows_of(packed_rows, true);
    task.test = rows_of(packed(file, split.validation, "packed for validation"), true);
    return task;
  }
  const text::WindowOptions shifted{.length = length,
                                    .range = split.train,
                                    .start = text::WindowOptions::Start::kShifted,
                                    .seed = seed_};
  task.train = rows_of(std::make_shared<const text::Windows>(file, shifted), false);
  task.test = rows_of(std::make_shared<const text::Windows>(
                          file, text::WindowOptions{.length = length, .range = split.validation}),
                      false);
  return task;
}

}  // namespace

std::unique_ptr<RecipeTask> text_task(const Config& config, const Group& world, Begin begin) {
  return std::make_unique<TextTask>(config, world, begin);
}

}  // namespace weft::train::internal
