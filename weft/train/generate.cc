#include "weft/train/generate.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <limits>

#include "weft/base/error.h"
#include "weft/train/internal/text_model.h"

namespace weft::train {
namespace {

namespace text = data::text;

constexpr double kNever = -std::numeric_limits<double>::infinity();

std::int64_t draw(const at::Tensor& logits, const GenerateOptions& options,
                  const at::Generator& generator) {
  if (options.temperature == 0) return logits.argmax().item<std::int64_t>();
  return at::multinomial(distribution(logits, options), 1, false, generator).item<std::int64_t>();
}

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
    put(all, std::min(stop, safe));
    return stop == std::string::npos;
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
  at::Tensor scaled = logits.to(at::kDouble) / options.temperature;
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
  const at::Generator generator = at::detail::createCPUGenerator(options.seed);
  std::vector<std::int64_t> context = source.begin;
  for (const auto id : source.tokenizer->encode(options.prompt)) context.push_back(id);
  if (context.empty()) context.push_back(source.start);
  Printer printer(options.stop, piece);
  std::vector<text::TokenId> made;
  std::string all;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const std::int64_t next = draw(source.reader->logits(context), options, generator);
    if (std::find(source.ends.begin(), source.ends.end(), next) != source.ends.end()) break;
    context.push_back(next);
    made.push_back(static_cast<text::TokenId>(next));
    all = source.tokenizer->decode(made);
    if (!printer.show(all)) return;
  }
  printer.finish(all);
}

}  // namespace weft::train
