#include "weft/train/internal/planned_model.h"

#include <ATen/ATen.h>

#include <charconv>

#include "weft/base/config.h"
#include "weft/data/text/packed_rows.h"
#include "weft/train/internal/pretrained.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/internal/text.h"

namespace weft::train::internal {
namespace {

constexpr std::int64_t kBytes = 257;  // 256 bytes and the end token
constexpr std::int64_t kUsualVocabulary = 50257;

}  // namespace

// "bytes", "bpe:1024", or a file.
std::int64_t vocabulary_of(const Config& config, std::int64_t given) {
  if (given > 0) return given;
  const RecipeSettings settings = recipe_settings_of(config);
  const std::string& tokenizer = settings.data.tokenizer;
  if (const auto model = pretrained(settings)) return model->options.vocabulary;
  if (tokenizer == "bytes") return kBytes;
  std::int64_t size = 0;
  if (tokenizer.rfind("bpe:", 0) == 0) {
    std::from_chars(tokenizer.data() + 4, tokenizer.data() + tokenizer.size(), size);
    if (size > 0) return size;
  }
  return kUsualVocabulary;
}

Task text_profile_task(const Config& config, std::int64_t vocabulary) {
  const RecipeSettings settings = recipe_settings_of(config);
  const std::int64_t length = settings.model.sequence;
  Task task;
  task.model = text_blocks(settings, vocabulary);
  const bool apart = settings.data.pack_documents;
  task.train = {
      1 << 20, [=](const data::Share& share) {
        const auto rows = static_cast<std::int64_t>(share.indices.size());
        const auto some = [&] { return at::randint(0, vocabulary, {rows, length}, at::kLong); };
        const at::Tensor inputs = some();
        const at::Tensor documents = at::zeros_like(inputs);
        return data::Batch{apart ? parallel::Tensors{inputs, documents} : parallel::Tensors{inputs},
                           {some()},
                           share};
      }};
  return task;
}

}  // namespace weft::train::internal
