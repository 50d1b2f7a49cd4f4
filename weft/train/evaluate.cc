#include "weft/train/evaluate.h"

#include <torch/nn/module.h>

#include "weft/base/error.h"
#include "weft/data/loader.h"
#include "weft/train/internal/step.h"

namespace weft::train {
namespace {

// In evaluation mode while it lives.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) { module_.eval(); }
  ~EvaluationMode() { module_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

}  // namespace

Evaluation evaluate(const models::Model& model, const Group& world, const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  const EvaluationMode mode(*model.module);
  const auto size = options.set->size();
  data::SamplerOptions sampling{size, options.batch, 0, data::Order::kSequential, world.rank(), world.size()};
  data::Loader loader(data::image_source(options.set, options.normalise), data::Sampler(sampling), 1);
  // By block: samples, correct ones, loss. Zero where another rank has it, so that the sum over ranks is exact.
  auto blocks = at::zeros({(size + options.batch - 1) / options.batch, 3}, at::kDouble);
  auto block = blocks.accessor<double, 2>();
  while (auto batch = loader.next(Deadline::in(world.timeout()))) {
    const internal::Autocast autocast(options.bf16);
    const auto output = model.forward(batch->images);
    const auto at = batch->share.first / options.batch;
    block[at][0] = static_cast<double>(batch->images.size(0));
    block[at][1] = output.argmax(1).eq(batch->targets).sum().item<double>();
    block[at][2] = models::loss(output, batch->targets, options.loss, models::Reduction::kSum).item<double>();
  }
  world.all_reduce(blocks);
  Evaluation result;
  double correct = 0, loss = 0;
  for (std::int64_t i = 0; i < blocks.size(0); ++i) {
    result.samples += static_cast<std::int64_t>(block[i][0]);
    correct += block[i][1];
    loss += block[i][2];
  }
  WEFT_CHECK(result.samples == size, "evaluation counted " + std::to_string(result.samples) + " of " + std::to_string(size) + " samples");
  result.accuracy = correct / static_cast<double>(size);
  result.loss = loss / static_cast<double>(size);
  return result;
}

}  // namespace weft::train
