#include "weft/train/internal/text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/data/text/train_bpe.h"
#include "weft/models/gpt_blocks.h"
#include "weft/parallel/tensor/vocabulary.h"
#include "weft/train/internal/pretrained.h"

namespace weft::train::internal {
namespace {

namespace text = data::text;

}  // namespace

models::GptOptions gpt_options(const RecipeSettings& settings, std::int64_t vocabulary) {
  if (const auto given = pretrained(settings)) {
    if (vocabulary > given->options.vocabulary) {
      throw Error(Errc::kBadConfig, settings.where("data.tokenizer") + " has " +
                                        std::to_string(vocabulary) +
                                        " tokens, the model in model.from " +
                                        std::to_string(given->options.vocabulary));
    }
    return given->options;
  }
  const ModelSettings& model = settings.model;
  models::GptOptions options;
  options.vocabulary = vocabulary;
  options.layers = model.layers;
  options.width = model.width;
  options.heads = model.heads;
  options.kv_heads = model.kv_heads;
  options.sequence_length = model.sequence;
  options.dropout = model.dropout;
  options.experts = model.experts;
  options.experts_top_k = model.experts_top_k;
  options.experts_capacity = model.experts_capacity;
  options.experts_balance = model.experts_balance;
  if (options.experts > 0 && options.experts_top_k > options.experts) {
    throw Error(Errc::kBadConfig, "model.experts_top_k = " + std::to_string(options.experts_top_k) +
                                      " is more than the " + std::to_string(options.experts) +
                                      " experts");
  }
  if (options.width % options.heads != 0) {
    throw Error(Errc::kBadConfig,
                "model.width = " + std::to_string(options.width) + " is not a multiple of the " +
                    std::to_string(options.heads) + " heads; use " +
                    std::to_string((options.width / options.heads + 1) * options.heads));
  }
  return model.family == Family::kLlama ? models::like_llama(options) : options;
}

models::LstmOptions lstm_options(const ModelSettings& settings, std::int64_t vocabulary) {
  models::LstmOptions options;
  options.vocabulary = vocabulary;
  options.layers = settings.layers;
  options.width = options.hidden = settings.width;
  options.dropout = settings.dropout;
  options.tied = settings.tied;
  return options;
}

parallel::BlockModel text_blocks(const RecipeSettings& settings, std::int64_t vocabulary,
                                 double targets_per_sample) {
  if (settings.model.name == "lstm")
    return models::lstm_blocks(lstm_options(settings.model, vocabulary));
  models::GptOptions options = gpt_options(settings, vocabulary);
  options.targets_per_sample = targets_per_sample;
  return models::gpt_blocks(options);
}

double gpt_flops_per_token(models::GptOptions o) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.head_width == 0) o.head_width = o.width / o.heads;
  if (o.hidden == 0) o.hidden = 4 * o.width;
  const auto layers = static_cast<double>(o.layers), width = static_cast<double>(o.width),
             queries = static_cast<double>(o.heads * o.head_width),
             keys = static_cast<double>(o.kv_heads * o.head_width),
             experts = static_cast<double>(o.experts);
  const double attention = width * (2 * queries + 2 * keys);  // queries and output, keys and values
  const double matrices = o.activation == models::Activation::kSwiglu ? 3 : 2;
  const double mlp = matrices * width * static_cast<double>(o.hidden);
  const double used =
      o.experts > 0 ? static_cast<double>(o.experts_top_k) * mlp + width * experts : mlp;
  const double weights = layers * (attention + used) + static_cast<double>(o.vocabulary) * width;
  return 6 * weights + 12 * layers * queries * static_cast<double>(o.sequence_length);
}

std::string tokenizer_text(const RecipeSettings& settings, const std::vector<std::string>& files) {
  const std::string& name = settings.data.tokenizer;
  if (name == "bytes") return "";
  if (name.rfind("bpe:", 0) != 0) {
    if (std::filesystem::is_regular_file(name)) {
      std::string json = read_file(name, std::size_t{128} << 20);
      text::parse_tokenizer(json, name);  // here, where the file has its name
      return json;
    }
    throw Error(Errc::kBadConfig,
                settings.where("data.tokenizer") + " = \"" + name +
                    "\": there is no such file; use bytes, bpe:N, or the path of a tokenizer.json");
  }
  std::int64_t size = 0;
  const char *begin = name.data() + 4, *end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(begin, end, size);
  if (error != std::errc() || stopped != end || size < 257) {
    throw Error(Errc::kBadConfig,
                "data.tokenizer = \"" + name +
                    "\": bpe:N learns N tokens, 257 or more; else bytes, or a tokenizer.json");
  }
  return text::train_bpe(files, {.vocab_size = size});
}

std::unique_ptr<text::Tokenizer> make_tokenizer(const std::string& json) {
  return json.empty() ? text::byte_tokenizer() : text::parse_tokenizer(json, "tokenizer.json");
}

std::string end_token(const text::Tokenizer& tokenizer) {
  for (const char* token : {"<|endoftext|>", "</s>", "<|end_of_text|>"}) {
    if (tokenizer.id_of(token)) return token;
  }
  return "";
}

void load_parameters(torch::nn::Module& model, const parallel::TensorParallel& tp,
                     const checkpoint::Reader& saved) {
  const at::NoGradGuard no_grad;
  const auto divided = parallel::slices(model);
  checkpoint::Slices mine;
  for (const auto& parameter : model.named_parameters()) {
    checkpoint::Slice slice = checkpoint::whole_slice(parameter.key(), parameter.value().detach());
    if (const auto found = divided.find(parameter.key()); found != divided.end()) {
      const parallel::Slice& over = found->second;
      const auto dim = static_cast<std::size_t>(over.dim);
      const std::int64_t part = over.part(tp.size()),
                         begin = std::min(over.whole, tp.rank() * part);
      slice.shape[dim] = over.whole;
      slice.offset[dim] = begin;
      slice.tensor.zero_();  // padding beyond the whole tensor
      slice.tensor = slice.tensor.narrow(over.dim, 0, std::min(part, over.whole - begin));
    }
    mine.push_back(std::move(slice));
  }
  try {
    saved.fill("model", mine);
  } catch (const Error& error) {
    if (error.code() != Errc::kInvalidArgument) throw;
    throw Error(Errc::kInvalidArgument, error.message() + "; is the checkpoint of another model?");
  }
}

at::Tensor likeliest(const at::Tensor& logits, std::int64_t vocabulary,
                     const parallel::TensorParallel& tp) {
  // Columns beyond the vocabulary are padding.
  const std::int64_t columns = logits.size(-1), first = tp.rank() * columns;
  const std::int64_t there = std::clamp<std::int64_t>(vocabulary - first, 0, columns);
  if (tp.size() == 1) return std::get<1>(logits.narrow(-1, 0, there).max(-1));
  at::Tensor best = at::full(logits.sizes().slice(0, logits.dim() - 1),
                             -std::numeric_limits<double>::infinity(), at::kDouble);
  at::Tensor place = at::zeros_like(best);
  if (there > 0) {
    const auto [value, index] = logits.narrow(-1, 0, there).max(-1);
    best = value.to(at::kDouble);
    place = (index + first).to(at::kDouble);
  }
  const at::Tensor mine = at::stack({best, place}).unsqueeze(0).contiguous();
  std::vector<std::int64_t> shape = mine.sizes().vec();
  shape[0] = tp.size();
  at::Tensor all = at::empty(shape, at::kDouble);
  tp.group().all_gather(all, mine);
  const at::Tensor winner = std::get<1>(all.select(1, 0).max(0));
  return all.select(1, 1).gather(0, winner.unsqueeze(0)).squeeze(0).to(at::kLong);
}

}  // namespace weft::train::internal
