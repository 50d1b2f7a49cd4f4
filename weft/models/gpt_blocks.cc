#include "weft/models/gpt_blocks.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include "weft/base/error.h"
#include "weft/models/internal/gpt_loss.h"

namespace weft::models {
namespace {

using engine::Block;
using engine::Tensors;
using parallel::Contexts;

constexpr const char* kTied = "embedding.tokens.weight";

// A block's tensors are the activations, then the documents [batch, sequence] if given, then while
// training the sum of the auxiliary losses of all experts so far, [1].
bool has_auxiliary(const Tensors& x) { return x.size() > 1 && x.back().dim() == 1; }

// The block transforms the first tensor, passes the documents on unchanged and adds its auxiliary
// loss.
Block block_of(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<GptPart> part) {
  return {.module = std::move(module), .forward = [part = std::move(part)](Tensors x) {
            x[0] = part->forward(x[0], x.size() > 1 && x[1].dim() > 1 ? x[1] : at::Tensor());
            // The part does not keep the loss, whose graph holds the activations of this run.
            const at::Tensor more = part->auxiliary();
            part->set_auxiliary({});
            if (more.defined() && has_auxiliary(x)) {
              x.back() = x.back() + more;
            } else if (more.defined()) {
              x.push_back(more.reshape({1}));
            }
            return x;
          }};
}

Block make_embedding(const GptOptions& options, const Contexts& with) {
  const auto part = std::make_shared<GptEmbedding>(options, with.tp, with.cp);
  Block block = block_of(part, part);
  if (options.tied) block.tied[kTied] = part->tokens->weight;
  return block;
}

// GptHead does not own the weight that it is tied to, but this module does. `tokens` is the
// embedding itself if it is on the same stage, otherwise a copy of it.
struct TiedHead : torch::nn::Module {
  TiedHead(const GptOptions& options, const parallel::Embedding& tokens,
           const parallel::TensorParallel& tp)
      : head(std::make_shared<GptHead>(options, tokens, tp)) {
    register_module("norm", head->norm);
    register_module("tokens", tokens);
  }
  std::shared_ptr<GptHead> head;
};

Block make_head(const GptOptions& options, const Contexts& with) {
  if (!options.tied) {
    const auto part = std::make_shared<GptHead>(options, parallel::Embedding(nullptr), with.tp);
    return block_of(part, part);
  }
  const auto found = with.before.find("embedding");
  const bool here = found != with.before.end();
  const parallel::EmbeddingOptions table{
      .vocabulary = options.vocabulary, .features = options.width, .sequence = options.sequence};
  const parallel::Embedding tokens =
      here ? std::dynamic_pointer_cast<GptEmbedding>(found->second)->tokens
           : parallel::Embedding(table, with.tp);
  const auto tied = std::make_shared<TiedHead>(options, tokens, with.tp);
  Block block = block_of(tied, tied->head);
  block.tied[kTied] = tokens->weight;
  return block;
}

}  // namespace

parallel::BlockModel gpt_blocks(GptOptions options) {
  if (options.hidden == 0) options.hidden = 4 * options.width;
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  WEFT_REQUIRE(options.vocabulary > 0 && options.layers > 0 && options.width > 0 &&
                   options.heads > 0 && options.hidden > 0,
               "gpt_blocks: vocabulary, layers, width, heads and hidden must be at least 1");
  WEFT_REQUIRE(
      options.experts == 0 || options.sequence == parallel::Sequence::kWhole,
      "gpt_blocks: experts need the whole sequence on every rank of tp (sequence = kWhole)");
  parallel::BlockModel model;
  model.blocks.push_back(
      {"embedding", [options](const Contexts& with) { return make_embedding(options, with); }});
  for (std::int64_t i = 0; i < options.layers; ++i) {
    model.blocks.push_back({"blocks." + std::to_string(i), [options](const Contexts& with) {
                              GptOptions asked = options;
                              asked.selective = options.selective || with.selective;
                              const auto part =
                                  std::make_shared<GptBlock>(asked, with.tp, with.cp, with.ep);
                              return block_of(part, part);
                            }});
  }
  model.blocks.push_back(
      {"head", [options](const Contexts& with) { return make_head(options, with); }});
  model.loss = [options](const Tensors& outputs, const Tensors& targets, const Contexts& with) {
    const at::Tensor loss = internal::token_loss(options, outputs[0], targets[0], with.tp, with.cp);
    return has_auxiliary(outputs)
               ? internal::with_auxiliary(loss, outputs.back().squeeze(0), targets[0], with.cp)
               : loss;
  };
  model.selective = true;
  model.splits = {{"heads", options.heads}, {"hidden", options.hidden}};
  model.heads = options.heads;
  model.kv_heads = options.kv_heads;
  model.experts = options.experts;
  model.join = [](Tensors outputs, const Contexts& with) {
    if (with.cp.size() > 1) outputs[0] = with.cp.whole(outputs[0], 1);
    return outputs;
  };
  return model;
}

}  // namespace weft::models
