#include "weft/plan/model/activations.h"

#include <algorithm>
#include <utility>

#include "weft/base/error.h"

namespace weft::plan {
namespace {

LayerShape complete(LayerShape layer) {
  WEFT_REQUIRE(layer.batch > 0 && layer.sequence > 0 && layer.width > 0 && layer.heads > 0 &&
                   layer.hidden >= 0 && layer.head_width >= 0,
               "activations: batch, sequence, width and heads must be at least 1");
  if (layer.hidden == 0) layer.hidden = 4 * layer.width;
  if (layer.head_width == 0) layer.head_width = layer.width / layer.heads;
  return layer;
}

// Computes the terms of one layer on one rank.
class Layer {
 public:
  Layer(const LayerShape& shape, const ActivationOptions& options)
      : shape_(complete(shape)), options_(options), keep_(options.keeping) {
    WEFT_REQUIRE(options.tp > 0 && options.cp > 0 && keep_.element > 0 && keep_.mask > 0,
                 "activations: tp, cp and bytes must be at least 1");
    sequence_ = (shape_.sequence + options.cp - 1) / options.cp;
    const bool divides = shape_.heads % options.tp == 0 && shape_.hidden % options.tp == 0;
    WEFT_REQUIRE(divides && (!options.split_sequence || sequence_ % options.tp == 0),
                 "activations: heads, hidden and a split sequence divide by tp = " +
                     std::to_string(options.tp));
    positions_ = shape_.batch * sequence_;
    between_ = positions_ / (options.split_sequence ? options.tp : 1);
    selective_ = options.kept == Kept::kSelective;
  }

  std::vector<ActivationTerm> terms() {
    add("the layer's input", element() * between_ * shape_.width);
    if (options_.kept == Kept::kInput) return std::move(terms_);
    norm("first norm");
    add("q, k and v", 3 * attended());
    core();
    add("attention's result, for o_proj", attended());
    dropped("attention's mask of dropout");
    add("the second norm's input", element() * between_ * shape_.width);
    norm("second norm");
    const std::int64_t hidden = element() * positions_ * shape_.hidden / options_.tp,
                       ways = shape_.gated ? 2 : 1;
    add(shape_.gated ? "gate and up" : "up", ways * hidden);
    if (!lets_go())
      add(shape_.gated ? "silu of the gate, and its product with up" : "the activation",
          ways * hidden);
    dropped("the MLP's mask of dropout");
    return std::move(terms_);
  }

 private:
  std::int64_t element() const { return keep_.element; }
  std::int64_t statistic() const {
    return std::max<std::int64_t>(4, element());
  }  // never narrower than float32
  bool lets_go() const { return selective_ && keep_.lets_go; }
  std::int64_t attended() const {
    return element() * positions_ * shape_.heads * shape_.head_width / options_.tp;
  }
  void add(std::string what, std::int64_t bytes) { terms_.push_back({std::move(what), bytes}); }

  void norm(const std::string& which) {
    if (!lets_go() || options_.split_sequence) {
      const bool part = options_.split_sequence && keep_.gathers_again;
      add("the " + which + "'s result", element() * (part ? between_ : positions_) * shape_.width);
    }
    if (!keep_.details) return;
    if (shape_.rms)
      add("the " + which + "'s input over its root mean square",
          element() * between_ * shape_.width);
    add("the " + which + "'s statistics", (shape_.rms ? 1 : 2) * statistic() * between_);
  }
  void dropped(const char* what) {
    if (options_.dropout) add(what, keep_.mask * between_ * shape_.width);
  }

  // Terms of the core of attention: scores, softmax and its dropout.
  void core() {
    const std::int64_t heads = shape_.batch * shape_.heads / options_.tp;
    const bool over_ranks = options_.cp > 1;
    if (keep_.fused && (!options_.dropout || over_ranks))
      return add("the logarithms of softmax's sums", statistic() * heads * sequence_);
    if (selective_) return;
    const std::int64_t pairs = heads * sequence_ * sequence_;
    add("softmax's result", element() * pairs);
    if (!options_.dropout) return;
    add("its mask of dropout", keep_.mask * pairs);
    add("what is left of it, for the sum of values", element() * pairs);
    if (keep_.details) add("the causal mask", sequence_ * sequence_);
  }

  LayerShape shape_;
  ActivationOptions options_;
  Keeping keep_;
  bool selective_ = false;
  // Positions on a rank: of one sample, of all samples, and between split layers.
  std::int64_t sequence_ = 0, positions_ = 0, between_ = 0;
  std::vector<ActivationTerm> terms_;
};

}  // namespace

std::vector<ActivationTerm> activation_terms(const LayerShape& layer,
                                             const ActivationOptions& options) {
  return Layer(layer, options).terms();
}

std::int64_t activation_bytes(const LayerShape& layer, const ActivationOptions& options) {
  std::int64_t bytes = 0;
  for (const ActivationTerm& term : activation_terms(layer, options)) bytes += term.bytes;
  return bytes;
}

}  // namespace weft::plan
