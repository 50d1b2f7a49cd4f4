#include "weft/train/generate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/train/internal/text.h"
#include "weft/train/recipe.h"
#include "weft/train/text_trainer.h"

namespace weft::train {
namespace {

namespace text = data::text;

// One token after those given.
text::TokenId draw(models::GptImpl& model, const std::vector<std::int64_t>& context, const GenerateOptions& options,
                   at::Generator generator) {
  const auto length = std::min<std::int64_t>(static_cast<std::int64_t>(context.size()), model.options.sequence_length);
  const at::Tensor last =
      at::tensor(at::ArrayRef<std::int64_t>(context).slice(context.size() - static_cast<std::size_t>(length)), at::kLong);
  at::Tensor logits = model.forward(last.unsqueeze(0)).select(1, -1)[0].narrow(0, 0, model.options.vocabulary);
  if (options.temperature == 0) return static_cast<text::TokenId>(logits.argmax().item<std::int64_t>());
  if (options.top_k > 0 && options.top_k < logits.numel()) {
    const at::Tensor least = std::get<0>(logits.topk(options.top_k)).min();
    logits = logits.masked_fill(logits.lt(least), -std::numeric_limits<float>::infinity());
  }
  return static_cast<text::TokenId>(at::multinomial((logits / options.temperature).softmax(0), 1, false, generator).item<std::int64_t>());
}

models::Gpt load_model(const std::string& run, const Config& config, const text::Tokenizer& tokenizer) {
  const auto latest = checkpoint::latest(run + "/ckpt");
  WEFT_REQUIRE(latest.folder, run + " has no checkpoint yet; train with train.checkpoint_every above 0");
  models::Gpt model(internal::gpt_options(config, tokenizer.vocab_size()), parallel::TensorParallel());
  internal::set_whole_tensors(*model, checkpoint::load(*latest.folder).parts.at("model"));
  model->eval();
  return model;
}

}  // namespace

void generate(const std::string& run, const GenerateOptions& options, const std::function<void(std::string_view)>& piece) {
  WEFT_REQUIRE(options.tokens >= 0 && options.top_k >= 0 && options.temperature >= 0, "tokens, top-k and temperature are not below 0");
  WEFT_REQUIRE(std::filesystem::exists(run + "/config.toml"), run + " is no run folder: it has no config.toml");
  const Config config = Config::load(run + "/config.toml", recipe_schema());
  WEFT_REQUIRE(is_text(config), run + " is no run of a text recipe (its data.name is \"" + config.get_string("data.name") + "\")");
  const std::string kept = run + "/tokenizer.json";
  const auto tokenizer = internal::make_tokenizer(std::filesystem::exists(kept) ? read_file(kept, std::size_t{128} << 20) : "");
  models::Gpt model = load_model(run, config, *tokenizer);
  const auto end = tokenizer->id_of(internal::end_token(*tokenizer));
  const at::NoGradGuard no_grad;
  const at::Generator generator = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int64_t> context;
  for (const auto id : tokenizer->encode(options.prompt)) context.push_back(id);
  if (context.empty()) context.push_back(end.value_or(0));
  std::vector<text::TokenId> made;
  std::size_t shown = 0;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto next = draw(*model, context, options, generator);
    if (next == end) return;
    context.push_back(next);
    made.push_back(next);
    const std::string all = tokenizer->decode(made);
    piece(std::string_view(all).substr(std::min(shown, all.size())));
    shown = all.size();
  }
}

}  // namespace weft::train
