#include "weft/models/gpt.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <cmath>

#include "weft/base/error.h"
#include "weft/models/internal/gpt_loss.h"
#include "weft/parallel/recompute/discard.h"

namespace weft::models {
namespace {

using parallel::ContextParallel;
using parallel::Sequence;
using parallel::Split;
using parallel::TensorParallel;

void require_sizes(const GptOptions& o) {
  WEFT_REQUIRE(
      o.vocabulary > 0 && o.layers > 0 && o.width > 0 && o.heads > 0 && o.hidden > 0 &&
          o.sequence_length > 0,
      "Gpt: vocabulary, layers, width, heads, hidden and sequence_length must be at least 1");
  WEFT_REQUIRE(o.dropout >= 0 && o.dropout < 1, "Gpt: dropout must be in [0, 1)");
  WEFT_REQUIRE(o.experts == 0 || o.sequence == Sequence::kWhole,
               "Gpt: experts need the whole sequence on every rank of tp (sequence = kWhole)");
  WEFT_REQUIRE(o.initial_std >= 0 && o.norm_eps > 0 && o.rope_theta > 0,
               "Gpt: initial_std is at least 0, norm_eps and rope_theta above");
}

GptOptions complete(GptOptions options) {
  if (options.hidden == 0) options.hidden = 4 * options.width;
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  require_sizes(options);
  return options;
}

// Standard deviation of weights whose output is added to a block's input. It keeps the size of the
// sum of 2 · layers such outputs.
double std_of_added(const GptOptions& o) {
  return o.initial_std / std::sqrt(2.0 * static_cast<double>(o.layers));
}

// Distance of each position from the start of its document.
at::Tensor places(const at::Tensor& documents) {
  const std::int64_t t = documents.size(1);
  const at::Tensor at = torch::arange(t, documents.options());
  at::Tensor starts = torch::zeros_like(documents);
  starts.slice(1, 1).copy_(documents.slice(1, 1).ne(documents.slice(1, 0, t - 1)) * at.slice(0, 1));
  return at - std::get<0>(starts.cummax(1));
}

parallel::Dropout dropout_of(const GptOptions& o, const TensorParallel& tp,
                             const ContextParallel& cp) {
  return parallel::Dropout(parallel::DropoutOptions{.p = o.dropout, .sequence = o.sequence}, tp,
                           cp);
}

at::Tensor activate(const GptOptions& o, const at::Tensor& up) {
  return o.activation == Activation::kGelu ? torch::gelu(up) : torch::gelu(up, "tanh");
}

parallel::AttentionOptions attention_of(const GptOptions& o) {
  parallel::AttentionOptions a{
      .width = o.width, .heads = o.heads, .kv_heads = o.kv_heads, .dropout = o.dropout};
  a.bias = o.bias || o.attention_bias;
  a.head_width = o.head_width;
  a.rope_theta = o.positions == Positions::kRotary ? o.rope_theta : 0;
  a.rope_scaling = o.rope_scaling;
  a.sequence = o.sequence;
  a.chunks = o.chunks;
  a.recompute = o.selective;
  a.normal = o.initial_std;
  a.normal_out = std_of_added(o);
  return a;
}

parallel::MixtureOptions experts_of(const GptOptions& o) {
  parallel::MixtureOptions m{.hidden = o.hidden, .balance = o.experts_balance, .z = o.experts_z};
  m.router = {.width = o.width, .experts = o.experts, .top_k = o.experts_top_k};
  m.router.weights = o.experts_top_k == 1 ? parallel::RouterWeights::kOverAll
                                          : parallel::RouterWeights::kOverChosen;
  m.router.capacity_factor = o.experts_capacity;
  m.router.jitter = o.experts_jitter;
  m.router.normal = o.initial_std;
  m.normal = o.initial_std;
  m.normal_out = std_of_added(o);
  switch (o.activation) {
    case Activation::kGelu: m.activation = parallel::ExpertActivation::kGelu; break;
    case Activation::kGeluTanh: m.activation = parallel::ExpertActivation::kGeluTanh; break;
    case Activation::kSwiglu: m.activation = parallel::ExpertActivation::kSwiglu; break;
  }
  return m;
}

}  // namespace

GptOptions like_llama(GptOptions options) {
  options.norm = Norm::kRmsNorm;
  options.positions = Positions::kRotary;
  options.activation = Activation::kSwiglu;
  options.bias = false;
  options.tied = false;
  return options;
}

GptEmbedding::GptEmbedding(const GptOptions& options, const TensorParallel& tp,
                           const ContextParallel& cp)
    : options_(options),
      tp_(tp),
      cp_(cp),
      dropout_(register_module("dropout", dropout_of(options, tp, cp))) {
  const double std = options.initial_std > 0 ? options.initial_std : 1;
  const parallel::EmbeddingOptions table{.vocabulary = options.vocabulary,
                                         .features = options.width,
                                         .sequence = options.sequence,
                                         .normal = std};
  tokens = register_module("tokens", parallel::Embedding(table, tp));
  if (options.positions == Positions::kRotary) return;
  const at::NoGradGuard no_grad;
  positions = register_parameter(
      "positions",
      torch::empty({options.sequence_length, options.width}).normal_(0, std, tp.generator()));
}

// Returns the position, in the sequence or in its document, of each token of this rank.
at::Tensor GptEmbedding::places_of(std::int64_t sequence, const at::Tensor& documents) const {
  return documents.defined() ? cp_.part(places(documents), 1)
                             : cp_.layout(sequence).positions(cp_.rank());
}

at::Tensor GptEmbedding::forward(const at::Tensor& ids, const at::Tensor& documents) {
  WEFT_REQUIRE(ids.dim() == 2, "Gpt: tokens must be [batch, sequence]");
  WEFT_REQUIRE(!documents.defined() || documents.sizes() == ids.sizes(),
               "Gpt: documents must have the shape of tokens");
  const std::int64_t t = ids.size(1);
  if (options_.sequence == Sequence::kSplit) {
    for (int rank = 0; rank < cp_.size(); ++rank)
      parallel::even_part("Gpt: sequence", cp_.layout(t).length(rank), tp_.size());
  }
  at::Tensor x = tokens->forward(cp_.part(ids, 1));
  if (positions.defined()) {
    WEFT_REQUIRE(t <= options_.sequence_length,
                 "Gpt: " + std::to_string(t) + " tokens, and positions for " +
                     std::to_string(options_.sequence_length) + " (sequence_length)");
    const bool plain = !documents.defined() && cp_.size() == 1;
    const at::Tensor add =
        plain ? positions.narrow(0, 0, t) : torch::embedding(positions, places_of(t, documents));
    x = x + (options_.sequence == Sequence::kSplit ? parallel::scatter_to(add, -2, tp_) : add);
  }
  return dropout_->forward(x);
}

at::Tensor GptEmbedding::extend(const at::Tensor& ids, std::int64_t first) {
  WEFT_REQUIRE(ids.dim() == 2 && ids.size(1) > 0, "Gpt: tokens must be [batch, one or more]");
  const at::Tensor x = tokens->forward(ids);
  if (!positions.defined()) return x;
  const std::int64_t t = first + ids.size(1);
  WEFT_REQUIRE(t <= options_.sequence_length,
               "Gpt: " + std::to_string(t) + " tokens, and positions for " +
                   std::to_string(options_.sequence_length) + " (sequence_length)");
  return x + positions.slice(0, first, t);
}

GptNorm::GptNorm(const GptOptions& options, const TensorParallel& tp) {
  const parallel::NormOptions norm{.features = options.width,
                                   .eps = options.norm_eps,
                                   .bias = options.bias,
                                   .sequence = options.sequence};
  // The parameters are registered here, so that their names are the same for both norms.
  if (options.norm == Norm::kLayerNorm) {
    layer_ = parallel::LayerNorm(norm, tp);
    weight = register_parameter("weight", layer_->weight);
    if (options.bias) bias = register_parameter("bias", layer_->bias);
  } else {
    rms_ = parallel::RMSNorm(norm, tp);
    weight = register_parameter("weight", rms_->weight);
  }
}

at::Tensor GptNorm::forward(const at::Tensor& x) {
  return layer_.is_empty() ? rms_->forward(x) : layer_->forward(x);
}

GptMlp::GptMlp(const GptOptions& options, const TensorParallel& tp) : options_(options), tp_(tp) {
  const parallel::LinearOptions up{.in = options.width,
                                   .out = options.hidden,
                                   .split = Split::kColumn,
                                   .bias = options.bias,
                                   .normal = options.initial_std};
  if (options.activation == Activation::kSwiglu)
    gate_proj = register_module("gate_proj", parallel::Linear(up, tp));
  up_proj = register_module("up_proj", parallel::Linear(up, tp));
  parallel::LinearOptions down{
      .in = options.hidden, .out = options.width, .split = Split::kRow, .bias = options.bias};
  down.sequence = options.sequence;
  down.chunks = options.chunks;
  down.normal = std_of_added(options);
  down_proj = register_module("down_proj", parallel::Linear(down, tp));
}

at::Tensor GptMlp::forward(const at::Tensor& given) {
  const at::Tensor split = parallel::enter_split(given, options_.sequence, tp_);
  const at::Tensor x = gate_proj.is_empty() ? split : parallel::in_product_type(split);
  const at::Tensor up = up_proj->multiply(x);
  if (gate_proj.is_empty()) {
    const auto activation = [options = options_, up] { return activate(options, up); };
    const at::Tensor a = activation(), y = down_proj->forward(a);
    if (options_.selective) parallel::discard(a, activation, y);
    return y;
  }
  const auto open = [gate = gate_proj->multiply(x)] { return torch::silu(gate); };
  const at::Tensor opened = open(), a = opened * up, y = down_proj->forward(a);
  if (options_.selective) {
    parallel::discard(opened, open, y);
    parallel::discard(
        a, [open, up] { return open() * up; }, y);
  }
  return y;
}

GptBlock::GptBlock(const GptOptions& options, const TensorParallel& tp, const ContextParallel& cp,
                   const parallel::ExpertParallel& ep)
    : norm1(register_module("norm1", std::make_shared<GptNorm>(options, tp))),
      norm2(register_module("norm2", std::make_shared<GptNorm>(options, tp))),
      attention(register_module("attention", parallel::Attention(attention_of(options), tp, cp))),
      lets_norms_go_(options.selective && (options.sequence == Sequence::kWhole || tp.size() == 1)),
      dropout_(register_module("dropout", dropout_of(options, tp, cp))) {
  if (options.experts > 0) {
    experts =
        register_module("experts", parallel::MixtureOfExperts(experts_of(options), ep, tp, cp));
  } else {
    mlp = register_module("mlp", std::make_shared<GptMlp>(options, tp));
  }
}

at::Tensor GptBlock::attend(const at::Tensor& x, const at::Tensor& documents) {
  const at::Tensor normed = norm1->forward(x), y = attention->forward(normed, documents);
  if (lets_norms_go_)
    parallel::discard(
        normed, [norm = norm1, x] { return norm->forward(x); }, y);
  return y;
}

at::Tensor GptBlock::feed_forward(const at::Tensor& x) {
  const at::Tensor normed = norm2->forward(x), y = mlp->forward(normed);
  if (lets_norms_go_)
    parallel::discard(
        normed, [norm = norm2, x] { return norm->forward(x); }, y);
  return y;
}

at::Tensor GptBlock::forward(const at::Tensor& x, const at::Tensor& documents) {
  const at::Tensor y = x + dropout_->forward(attend(x, documents));
  if (mlp) return y + dropout_->forward(feed_forward(y));
  const at::Tensor out = y + dropout_->forward(experts->forward(norm2->forward(y)));
  auxiliary_ = experts->take_auxiliary();
  return out;
}

at::Tensor GptBlock::extend(const at::Tensor& x, parallel::AttentionCache& cache) {
  const at::Tensor y = x + attention->extend(norm1->forward(x), cache), normed = norm2->forward(y);
  return y + (mlp ? mlp->forward(normed) : experts->forward(normed));
}

GptHead::GptHead(const GptOptions& options, parallel::Embedding tied, const TensorParallel& tp)
    : norm(register_module("norm", std::make_shared<GptNorm>(options, tp))),
      options_(options),
      tp_(tp),
      tied_(std::move(tied)) {
  if (!tied_.is_empty()) return;
  parallel::LinearOptions linear{
      .in = options.width, .out = options.vocabulary, .split = Split::kColumn, .bias = false};
  linear.pad = true;
  linear.normal = options.initial_std;
  output = register_module("output", parallel::Linear(linear, tp));
}

at::Tensor GptHead::forward(const at::Tensor& x, const at::Tensor&) {
  const at::Tensor whole = parallel::enter_split(norm->forward(x), options_.sequence, tp_);
  return torch::linear(whole, tied_.is_empty() ? output->weight : tied_->weight);
}

GptImpl::GptImpl(const GptOptions& options_, const TensorParallel& tp_, const ContextParallel& cp_,
                 const parallel::ExpertParallel& ep_)
    : options(complete(options_)), tp(tp_), cp(cp_), ep(ep_) {
  parallel::even_part("Gpt: heads", options.heads, tp.size());
  parallel::even_part("Gpt: hidden", options.hidden, tp.size());
  embedding = register_module("embedding", std::make_shared<GptEmbedding>(options, tp, cp));
  parts_.push_back(embedding);
  torch::nn::ModuleList list;
  for (std::int64_t i = 0; i < options.layers; ++i) {
    blocks.push_back(std::make_shared<GptBlock>(options, tp, cp, ep));
    list->push_back(std::static_pointer_cast<torch::nn::Module>(blocks.back()));
    parts_.push_back(blocks.back());
  }
  register_module("blocks", list);
  const parallel::Embedding tied = options.tied ? embedding->tokens : parallel::Embedding(nullptr);
  head = register_module("head", std::make_shared<GptHead>(options, tied, tp));
  parts_.push_back(head);
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, const at::Tensor& documents) {
  at::Tensor x = tokens;
  for (const auto& part : parts_) x = part->forward(x, documents);
  return x;
}

at::Tensor GptImpl::extend(const at::Tensor& tokens, GptCache& cache, Wanted wanted) {
  WEFT_REQUIRE(options.sequence == Sequence::kWhole,
               "Gpt: extend() needs the whole sequence on every rank, not a split one");
  WEFT_REQUIRE(!is_training() || options.dropout == 0,
               "Gpt: extend() does not apply dropout; call eval() on the model first");
  WEFT_REQUIRE(options.experts == 0 || options.experts_capacity == 0,
               "Gpt: extend(), which generates text, does not support experts_capacity, since it "
               "is a share of the whole sequence; train with experts_capacity = 0");
  const at::NoGradGuard no_grad;
  at::Tensor x = embedding->extend(tokens, cache.length());
  cache.blocks.resize(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) x = blocks[i]->extend(x, cache.blocks[i]);
  return head->forward(wanted == Wanted::kLast ? x.narrow(1, x.size(1) - 1, 1) : x);
}

at::Tensor GptImpl::loss(const at::Tensor& logits, const at::Tensor& targets) const {
  at::Tensor auxiliary;
  for (const auto& part : parts_) {
    if (const at::Tensor& more = part->auxiliary(); more.defined())
      auxiliary = auxiliary.defined() ? auxiliary + more : more;
  }
  const at::Tensor loss = internal::token_loss(options, logits, targets, tp, cp);
  return auxiliary.defined() ? internal::with_auxiliary(loss, auxiliary, targets, cp) : loss;
}

}  // namespace weft::models
