// Lstm: a language model of LSTM layers (Zaremba, Sutskever, Vinyals: Recurrent Neural Network
// Regularization, 2014), with the parameter names and initialization of PyTorch's
// word_language_model.
//
//   tokens ─ encoder ─ dropout ─ LSTM layers, dropout between them ─ dropout ─ decoder ─ logits
//
//   LstmState state;                              // zeros
//   for (auto& batch : stretches_of_the_text) {   // truncated backpropagation through time
//     const auto logits = model->forward(batch.tokens, &state);
//     cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward();
//
//   auto model = parallel::parallelize(lstm_blocks(options), plan, mesh);   // over dp, fsdp and pp
//   model.train_step({tokens}, {targets});   // each row starts from a state of zeros
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/tensor/dropout.h"

namespace weft::parallel {
struct BlockModel;
}

namespace weft::models {

struct LstmOptions {
  std::int64_t vocabulary = 10000;
  std::int64_t width = 200;   // Width of the embedding.
  std::int64_t hidden = 200;  // Units of a layer.
  std::int64_t layers = 2;
  double dropout = 0;  // Dropout on all but the recurrent connections.
  // The decoder uses the encoder's weight; width and hidden must be equal (Press, Wolf 2017; Inan
  // et al. 2017).
  bool tied = false;
};

// State of the layers between two tokens: [layers, batch, hidden] each. Undefined: zeros.
struct LstmState {
  at::Tensor hidden, cell;
};

// Parameters: weight [vocabulary, hidden], unless tied, and bias [vocabulary].
struct LstmDecoderImpl : torch::nn::Cloneable<LstmDecoderImpl> {
  explicit LstmDecoderImpl(LstmOptions given);
  void reset() override;

  LstmOptions options;
  at::Tensor weight, bias;
};
TORCH_MODULE(LstmDecoder);

// Children: "encoder", "rnn" (weight_ih_l0, …) and "decoder". Weights of encoder and decoder are
// uniform in [-0.1, 0.1], the decoder's bias is 0, and the rest is libtorch's own. Zaremba's medium
// net (650 units, not tied) has 19,780,400 parameters, the large one (1500) has 66,034,000.
struct LstmImpl : torch::nn::Cloneable<LstmImpl> {
  // `draws_.seed_dropout()` sets the seed of dropout (parallel/tensor/context.h). Throws
  // Error(kInvalidArgument) for invalid sizes.
  explicit LstmImpl(LstmOptions given, parallel::TensorParallel draws_ = {});
  void reset() override;
  // int64 [batch, sequence] -> logits [batch, sequence, vocabulary]. Starts from `state`, if given,
  // and stores the final state there, without gradient. Throws Error(kInvalidArgument) for tokens
  // or a state of another shape.
  at::Tensor forward(const at::Tensor& tokens, LstmState* state = nullptr);

  LstmOptions options;
  parallel::TensorParallel draws;
  torch::nn::Embedding encoder{nullptr};
  torch::nn::LSTM rnn{nullptr};
  parallel::Dropout dropout{nullptr};
  LstmDecoder decoder{nullptr};
};
TORCH_MODULE(Lstm);

// Makes an LSTM as the list of blocks that parallel/compose takes: "encoder", "rnn.0" …, "decoder",
// with LstmImpl's parameter names and, in distribution, its initial values. Input: int64 [batch,
// sequence]; output: logits; loss: the mean over all tokens. Every row starts with a state of
// zeros. If a tied decoder and the encoder are on different stages, the decoder has a copy of the
// weight. Layers are whole on every rank of tp. float32, float64, bfloat16. This call makes no
// block yet. Throws Error(kInvalidArgument) for invalid sizes.
parallel::BlockModel lstm_blocks(LstmOptions options);

}  // namespace weft::models
