#include "weft/models/lstm.h"

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "weft/base/error.h"

namespace weft::models {
namespace {

namespace nn = torch::nn;

constexpr double kInitial = 0.1;

LstmOptions checked(const LstmOptions& o) {
  WEFT_REQUIRE(o.vocabulary > 0 && o.width > 0 && o.hidden > 0 && o.layers > 0,
               "Lstm: vocabulary, width, hidden and layers are at least 1");
  WEFT_REQUIRE(o.dropout >= 0 && o.dropout < 1, "Lstm: dropout is in [0, 1)");
  WEFT_REQUIRE(!o.tied || o.width == o.hidden,
               "Lstm: a tied decoder needs a width of " + std::to_string(o.hidden) + ", as hidden, not " + std::to_string(o.width));
  return o;
}

}  // namespace

LstmDecoderImpl::LstmDecoderImpl(LstmOptions given) : options(given) { LstmDecoderImpl::reset(); }

void LstmDecoderImpl::reset() {
  if (!options.tied) {
    weight = register_parameter("weight", torch::empty({options.vocabulary, options.hidden}).uniform_(-kInitial, kInitial));
  }
  bias = register_parameter("bias", torch::zeros({options.vocabulary}));
}

LstmImpl::LstmImpl(LstmOptions given) : options(checked(given)) { LstmImpl::reset(); }

void LstmImpl::reset() {
  encoder = register_module("encoder", nn::Embedding(options.vocabulary, options.width));
  nn::init::uniform_(encoder->weight, -kInitial, kInitial);
  // libtorch warns of dropout after a single layer, where there is nothing between layers.
  nn::LSTMOptions layers = nn::LSTMOptions(options.width, options.hidden).num_layers(options.layers).batch_first(true);
  rnn = register_module("rnn", nn::LSTM(layers.dropout(options.layers > 1 ? options.dropout : 0)));
  dropout = register_module("dropout", nn::Dropout(options.dropout));
  decoder = register_module("decoder", LstmDecoder(options));
}

at::Tensor LstmImpl::forward(const at::Tensor& tokens, LstmState* state) {
  WEFT_REQUIRE(tokens.dim() == 2, "Lstm: tokens are [batch, sequence]");
  const at::Tensor x = dropout->forward(encoder->forward(tokens));
  std::optional<std::tuple<at::Tensor, at::Tensor>> before;
  if (state != nullptr && state->hidden.defined()) {
    const std::vector<std::int64_t> shape = {options.layers, tokens.size(0), options.hidden};
    WEFT_REQUIRE(state->hidden.sizes() == shape && state->cell.defined() && state->cell.sizes() == shape,
                 "Lstm: hidden and cell of a state are [layers, batch, hidden], for a batch of " + std::to_string(tokens.size(0)));
    before = std::make_tuple(state->hidden, state->cell);
  }
  const auto [y, after] = rnn->forward(x, before);
  if (state != nullptr) *state = {std::get<0>(after).detach(), std::get<1>(after).detach()};
  return torch::linear(dropout->forward(y), options.tied ? encoder->weight : decoder->weight, decoder->bias);
}

}  // namespace weft::models
