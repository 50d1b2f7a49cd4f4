#include "weft/models/lstm.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/parallel/compose/model.h"
#include "weft/parallel/tensor/vocabulary.h"

namespace weft::models {
namespace {

namespace nn = torch::nn;
using engine::Block;
using engine::Tensors;
using parallel::Contexts;

constexpr double kInitial = 0.1;

LstmOptions checked(const LstmOptions& o) {
  WEFT_REQUIRE(o.vocabulary > 0 && o.width > 0 && o.hidden > 0 && o.layers > 0,
               "Lstm: vocabulary, width, hidden and layers must be at least 1");
  WEFT_REQUIRE(o.dropout >= 0 && o.dropout < 1, "Lstm: dropout must be in [0, 1)");
  WEFT_REQUIRE(!o.tied || o.width == o.hidden, "Lstm: a tied decoder needs a width of " +
                                                   std::to_string(o.hidden) + ", as hidden, not " +
                                                   std::to_string(o.width));
  return o;
}

// True if libtorch has an LSTM in this type for this processor. It is computed by oneDNN, which has
// none in 16 bits on many processors, such as those without AVX-512.
bool has_lstm_in(at::ScalarType type) {
  const auto asks = [](const char* name) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
    return !op || op->typed<bool()>().call();
  };
  static const bool in_bfloat16 = asks("mkldnn::_is_mkldnn_bf16_supported"),
                    in_half = asks("mkldnn::_is_mkldnn_fp16_supported");
  return type == at::kBFloat16 ? in_bfloat16 : type != at::kHalf || in_half;
}

// The type that libtorch computes in, for x on the CPU.
at::ScalarType type_of(const at::Tensor& x) {
  return at::autocast::is_autocast_enabled(at::kCPU) ? at::autocast::get_autocast_dtype(at::kCPU)
                                                     : x.scalar_type();
}

// Runs one layer with these weights (ih, hh and their biases) on x [batch, sequence, …]. `before`
// is the initial state: hidden and cell, [1, batch, hidden] each. Computes in float32 if the
// processor has no LSTM in 16 bits.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer(const at::Tensor& x, at::TensorList weights,
                                                     at::TensorList before, bool training) {
  if (const at::ScalarType type = type_of(x); x.is_cpu() && !has_lstm_in(type)) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
    const auto whole = [](at::TensorList tensors) {
      std::vector<at::Tensor> converted;
      for (const at::Tensor& tensor : tensors) converted.push_back(tensor.to(at::kFloat));
      return converted;
    };
    const auto [y, hidden, cell] = layer(x.to(at::kFloat), whole(weights), whole(before), training);
    return {y.to(type), hidden.to(type), cell.to(type)};
  }
  return at::lstm(x, before, weights, /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0,
                  training, /*bidirectional=*/false,
                  /*batch_first=*/true);
}

// --- The LSTM as blocks. Parameters are drawn from the context's generator. ---

at::Tensor drawn(at::IntArrayRef sizes, double bound, const parallel::TensorParallel& tp) {
  const at::NoGradGuard no_grad;
  return at::empty(sizes).uniform_(-bound, bound, tp.generator());
}

struct LstmPart : nn::Module {
  LstmPart(const LstmOptions& o, const Contexts& with)
      : options(o),
        dropout(register_module(
            "dropout", parallel::Dropout(parallel::DropoutOptions{.p = o.dropout}, with.tp))) {}
  virtual at::Tensor forward(const at::Tensor& x) = 0;

  const LstmOptions options;
  parallel::Dropout dropout;
};

struct EncoderBlock : LstmPart {
  EncoderBlock(const LstmOptions& o, const Contexts& with)
      : LstmPart(o, with),
        weight(register_parameter("weight", drawn({o.vocabulary, o.width}, kInitial, with.tp))) {}
  at::Tensor forward(const at::Tensor& tokens) override {
    WEFT_REQUIRE(tokens.dim() == 2, "lstm_blocks: tokens must be [batch, sequence]");
    return dropout->forward(torch::embedding(weight, tokens));
  }
  at::Tensor weight;
};

struct LayerBlock : LstmPart {
  LayerBlock(const LstmOptions& o, std::int64_t number, const Contexts& with) : LstmPart(o, with) {
    const std::int64_t in = number == 0 ? o.width : o.hidden, gates = 4 * o.hidden;
    const double bound = 1 / std::sqrt(static_cast<double>(o.hidden));
    const std::string of = "_l" + std::to_string(number);
    weights = {register_parameter("weight_ih" + of, drawn({gates, in}, bound, with.tp)),
               register_parameter("weight_hh" + of, drawn({gates, o.hidden}, bound, with.tp)),
               register_parameter("bias_ih" + of, drawn({gates}, bound, with.tp)),
               register_parameter("bias_hh" + of, drawn({gates}, bound, with.tp))};
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor zeros =
        at::zeros({1, x.size(0), options.hidden}, x.options().requires_grad(false));
    return dropout->forward(std::get<0>(layer(x, weights, {zeros, zeros}, is_training())));
  }
  std::vector<at::Tensor> weights;
};

// If tied, it uses the encoder's weight if the encoder is on the same stage, otherwise a copy.
struct DecoderBlock : LstmPart {
  DecoderBlock(const LstmOptions& o, const Contexts& with) : LstmPart(o, with) {
    const auto found = with.before.find("encoder");
    if (o.tied && found != with.before.end()) {
      encoder = std::dynamic_pointer_cast<EncoderBlock>(found->second);
      register_module("encoder", encoder);
    } else {
      own = register_parameter("weight", drawn({o.vocabulary, o.hidden}, kInitial, with.tp));
    }
    bias = register_parameter("bias", at::zeros({o.vocabulary}));
  }
  const at::Tensor& weight() const { return encoder ? encoder->weight : own; }
  at::Tensor forward(const at::Tensor& x) override { return torch::linear(x, weight(), bias); }

  std::shared_ptr<EncoderBlock> encoder;
  at::Tensor own, bias;
};

Block block_of(std::shared_ptr<LstmPart> part) {
  return {.module = part,
          .forward = [part](const Tensors& x) { return Tensors{part->forward(x[0])}; }};
}

Block make_encoder(const LstmOptions& options, const Contexts& with) {
  const auto part = std::make_shared<EncoderBlock>(options, with);
  Block made = block_of(part);
  if (options.tied) made.tied["encoder.weight"] = part->weight;
  return made;
}

Block make_decoder(const LstmOptions& options, const Contexts& with) {
  const auto part = std::make_shared<DecoderBlock>(options, with);
  Block made = block_of(part);
  if (options.tied) made.tied["encoder.weight"] = part->weight();
  return made;
}

}  // namespace

parallel::BlockModel lstm_blocks(LstmOptions options) {
  checked(options);
  parallel::BlockModel model;
  model.blocks.push_back(
      {"encoder", [options](const Contexts& with) { return make_encoder(options, with); }});
  for (std::int64_t i = 0; i < options.layers; ++i) {
    model.blocks.push_back({"rnn." + std::to_string(i), [options, i](const Contexts& with) {
                              Block made = block_of(std::make_shared<LayerBlock>(options, i, with));
                              made.prefix = "rnn";
                              return made;
                            }});
  }
  model.blocks.push_back(
      {"decoder", [options](const Contexts& with) { return make_decoder(options, with); }});
  model.loss = [](const Tensors& outputs, const Tensors& targets, const Contexts&) {
    return parallel::cross_entropy(outputs[0], targets[0], {}, {});
  };
  return model;
}

LstmDecoderImpl::LstmDecoderImpl(LstmOptions given) : options(given) { LstmDecoderImpl::reset(); }

void LstmDecoderImpl::reset() {
  if (!options.tied) {
    weight = register_parameter(
        "weight", torch::empty({options.vocabulary, options.hidden}).uniform_(-kInitial, kInitial));
  }
  bias = register_parameter("bias", torch::zeros({options.vocabulary}));
}

LstmImpl::LstmImpl(LstmOptions given, parallel::TensorParallel draws_)
    : options(checked(given)), draws(std::move(draws_)) {
  LstmImpl::reset();
}

void LstmImpl::reset() {
  encoder = register_module("encoder", nn::Embedding(options.vocabulary, options.width));
  nn::init::uniform_(encoder->weight, -kInitial, kInitial);
  rnn = register_module("rnn", nn::LSTM(nn::LSTMOptions(options.width, options.hidden)
                                            .num_layers(options.layers)
                                            .batch_first(true)));
  dropout = register_module(
      "dropout", parallel::Dropout(parallel::DropoutOptions{.p = options.dropout}, draws));
  decoder = register_module("decoder", LstmDecoder(options));
}

at::Tensor LstmImpl::forward(const at::Tensor& tokens, LstmState* state) {
  WEFT_REQUIRE(tokens.dim() == 2, "Lstm: tokens must be [batch, sequence]");
  at::Tensor x = dropout->forward(encoder->forward(tokens));
  const std::vector<std::int64_t> shape = {options.layers, tokens.size(0), options.hidden};
  const bool goes_on = state != nullptr && state->hidden.defined();
  WEFT_REQUIRE(!goes_on || (state->hidden.sizes() == shape && state->cell.defined() &&
                            state->cell.sizes() == shape),
               "Lstm: hidden and cell of a state are [layers, batch, hidden], for a batch of " +
                   std::to_string(tokens.size(0)));
  const at::Tensor zeros =
      goes_on ? at::Tensor() : at::zeros(shape, x.options().requires_grad(false));
  std::vector<at::Tensor> hidden, cell;
  const auto weights = rnn->all_weights();
  for (std::int64_t i = 0; i < options.layers; ++i) {
    const Tensors before{(goes_on ? state->hidden : zeros).narrow(0, i, 1),
                         (goes_on ? state->cell : zeros).narrow(0, i, 1)};
    const auto [y, h, c] =
        layer(x, at::TensorList(weights).slice(static_cast<std::size_t>(4 * i), 4), before,
              is_training());
    hidden.push_back(h.detach());
    cell.push_back(c.detach());
    x = dropout->forward(y);
  }
  if (state != nullptr) *state = {at::cat(hidden), at::cat(cell)};
  return torch::linear(x, options.tied ? encoder->weight : decoder->weight, decoder->bias);
}

}  // namespace weft::models
