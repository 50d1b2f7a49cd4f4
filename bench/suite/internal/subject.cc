#include "bench/suite/internal/subject.h"

#include <torch/nn/functional.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/comm/backend.h"
#include "weft/models/registry.h"
#include "weft/models/vision/resnet.h"

namespace weft::cli::bench_internal {
namespace {

constexpr std::int64_t kVocabulary = 96, kSequence = 128;

bool is_gpt(const std::string& model) { return model.rfind("gpt", 0) == 0; }

Subject make_gpt(const std::string& model, const parallel::TensorParallel& tp) {
  models::Gpt gpt(gpt_options(model), tp);
  Subject subject{gpt.ptr(),
                  [gpt](const at::Tensor& tokens) mutable { return gpt->forward(tokens); },
                  [gpt](const at::Tensor& logits, const at::Tensor& labels) {
                    return gpt->loss(logits, labels);
                  },
                  {}};
  for (const auto& part : gpt->parts()) {
    subject.parts.push_back({part, [part](const at::Tensor& x) { return part->forward(x); }});
  }
  return subject;
}

std::vector<Part> parts_of(const models::ResNetImpl& net) {
  std::vector<Part> parts;
  for (const parallel::Block& part : net.parts()) {
    parts.push_back(
        {part.module, [forward = part.forward](const at::Tensor& x) { return forward({x})[0]; }});
  }
  return parts;
}

}  // namespace

models::GptOptions gpt_options(const std::string& model) {
  models::GptOptions options{.vocabulary = kVocabulary,
                             .layers = 4,
                             .width = 128,
                             .heads = 4,
                             .sequence_length = kSequence};
  options.tied = false;
  if (model == "gpt-384") {
    options.layers = 6;
    options.width = 384;
    options.heads = 6;
  }
  options.hidden = 4 * options.width;
  return options;
}

Subject make_subject(const std::string& model, const parallel::TensorParallel& tp) {
  torch::manual_seed(1);
  if (is_gpt(model)) return make_gpt(model, tp);
  const models::Model made = models::make_model({.name = model});
  const auto net = std::dynamic_pointer_cast<models::ResNetImpl>(made.module);
  return {made.module, made.forward,
          [](const at::Tensor& logits, const at::Tensor& labels) {
            return torch::nn::functional::cross_entropy(logits, labels);
          },
          net ? parts_of(*net) : std::vector<Part>()};
}

Batch fixed_batch(const std::string& model, int size, int rank) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + rank));
  if (!is_gpt(model))
    return {torch::randn({size, 1, 28, 28}, generator),
            torch::randint(0, 10, {size}, generator, torch::kLong)};
  const at::Tensor text =
      torch::randint(0, kVocabulary, {size, kSequence + 1}, generator, torch::kLong);
  return {text.narrow(1, 0, kSequence).contiguous(), text.narrow(1, 1, kSequence).contiguous()};
}

Batch joined_batch(const std::string& model, int size, int ranks) {
  std::vector<at::Tensor> inputs, labels;
  for (int rank = 0; rank < ranks; ++rank) {
    const Batch one = fixed_batch(model, size, rank);
    inputs.push_back(one.inputs);
    labels.push_back(one.labels);
  }
  return {torch::cat(inputs), torch::cat(labels)};
}

comm::Group group_of_one() { return {comm::make_backend(nullptr, 0, 1), "alone"}; }

}  // namespace weft::cli::bench_internal
