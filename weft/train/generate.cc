#include "weft/train/generate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "weft/base/error.h"
#include "weft/train/internal/text_model.h"

namespace weft::train {
namespace {

namespace text = data::text;

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Draws tokens from a model's logits. Only tokens of the tokenizer: the model's vocabulary may be
// padded beyond them.
class Sampling {
 public:
  Sampling(const internal::TextModel& source, const GenerateOptions& options, std::string folder)
      : source_(source),
        options_(options),
        folder_(std::move(folder)),
        generator_(at::detail::createCPUGenerator(options.seed)) {}

  std::int64_t next(at::Tensor logits) {
    if (!without_token_) without_token_ = ids_without_token(logits.numel());
    logits = logits.masked_fill(*without_token_, kNever);
    if (!std::isfinite(logits.max().item<double>())) fail_not_finite();
    return draw(logits);
  }

 private:
  at::Tensor ids_without_token(std::int64_t vocabulary) const {
    at::Tensor without = at::zeros({vocabulary}, at::kBool);
    bool* const ids = without.data_ptr<bool>();
    for (std::int64_t id = 0; id < vocabulary; ++id)
      ids[id] = !source_.tokenizer->has_token(static_cast<text::TokenId>(id));
    return without;
  }

  [[noreturn]] void fail_not_finite() const {
    std::string why = "; its weights are finite, so numbers have become too large";
    for (const auto& weight : source_.module->named_parameters()) {
      if (at::isfinite(weight.value()).all().item<bool>()) continue;
      why = ": \"" + weight.key() + "\" has values that are NaN or infinite; use other weights";
      break;
    }
    throw Error(Errc::kCorrupt, folder_ + ": the model gives NaN or infinity for a token" + why);
  }

  std::int64_t draw(const at::Tensor& logits) const {
    if (options_.temperature == 0) return logits.argmax().item<std::int64_t>();
    return at::multinomial(distribution(logits, options_), 1, false, generator_)
        .item<std::int64_t>();
  }

  const internal::TextModel& source_;
  const GenerateOptions& options_;
  const std::string folder_;
  const at::Generator generator_;
  std::optional<at::Tensor> without_token_;  // bool [vocabulary]
};

// Passes text on, but holds back an end that may be the beginning of a stop text.
class Printer {
 public:
  Printer(const std::vector<std::string>& stops, const std::function<void(std::string_view)>& piece)
      : stops_(stops), piece_(piece) {}

  // `all`: the whole text so far. Returns false once it contains a stop text.
  bool show(const std::string& all) {
    std::size_t stop = std::string::npos, safe = all.size();
    for (const std::string& text : stops_) {
      stop = std::min(stop, all.find(text, shown_));
      for (std::size_t held = std::min(text.size(), all.size() - std::min(shown_, all.size()));
           held > 0; --held) {
        if (all.ends_with(std::string_view(text).substr(0, held))) {
          safe = std::min(safe, all.size() - held);
          break;
        }
      }
    }
    const bool ends = stop != std::string::npos;
    put(all, ends ? stop : safe);
    return !ends;
  }
  // Prints the rest; the text is complete.
  void finish(const std::string& all) { put(all, all.size()); }

 private:
  void put(const std::string& all, std::size_t end) {
    if (end <= shown_) return;
    piece_(std::string_view(all).substr(shown_, end - shown_));
    shown_ = end;
  }

  const std::vector<std::string>& stops_;
  const std::function<void(std::string_view)>& piece_;
  std::size_t shown_ = 0;
};

void require_options(const GenerateOptions& o) {
  WEFT_REQUIRE(o.tokens >= 0 && o.top_k >= 0 && o.temperature >= 0,
               "tokens, top-k and temperature must not be below 0");
  WEFT_REQUIRE(o.top_p > 0 && o.top_p <= 1, "top-p must be above 0 and at most 1");
  for (const std::string& stop : o.stop) WEFT_REQUIRE(!stop.empty(), "a text to stop at is empty");
}

}  // namespace

at::Tensor distribution(const at::Tensor& logits, const GenerateOptions& options) {
  // Relative to the largest one, so that a very small temperature gives no infinity for it.
  const at::Tensor all_logits = logits.to(at::kDouble);
  at::Tensor scaled = (all_logits - all_logits.max()) / options.temperature;
  if (options.top_k > 0 && options.top_k < logits.numel()) {
    const at::Tensor least = std::get<0>(scaled.topk(options.top_k)).min();
    scaled = scaled.masked_fill(scaled.lt(least), kNever);
  }
  const at::Tensor all = scaled.softmax(0);
  if (options.top_p >= 1) return all;
  const auto [sorted, order] = all.sort(/*stable=*/true, 0, /*descending=*/true);
  const at::Tensor enough =
      (sorted.cumsum(0) - sorted).ge(options.top_p);  // the likelier tokens already reach top_p
  const at::Tensor kept = at::zeros_like(all).scatter(0, order, sorted.masked_fill(enough, 0));
  return kept / kept.sum();
}

void generate(const std::string& folder, const GenerateOptions& options,
              const std::function<void(std::string_view)>& piece,
              const parallel::TensorParallel& tp) {
  require_options(options);
  internal::TextModel source = internal::load_text_model(folder, tp);
  const at::NoGradGuard no_grad;
  Sampling sampling(source, options, folder);
  std::vector<std::int64_t> context = source.begin;
  const std::vector<text::TokenId> prompt = source.tokenizer->encode(options.prompt);
  context.insert(context.end(), prompt.begin(), prompt.end());
  if (context.empty()) context.push_back(source.start);
  Printer printer(options.stop, piece);
  std::vector<text::TokenId> before, made;
  if (!prompt.empty()) before.push_back(prompt.back());
  std::string all;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const std::int64_t next = sampling.next(source.reader->logits(context));
    if (std::find(source.ends.begin(), source.ends.end(), next) != source.ends.end()) break;
    context.push_back(next);
    made.push_back(static_cast<text::TokenId>(next));
    all = source.tokenizer->decode_after(before, made);
    if (!printer.show(all)) return;
  }
  printer.finish(all);
}

}  // namespace weft::train
