#include "weft/strategy/internal/mean.h"

#include <ATen/ATen.h>

#include <span>
#include <utility>

#include "weft/base/error.h"

namespace weft::strategy::internal {

Mean::Mean(Group workers, const std::string& codec, const Flat& like, std::uint32_t id)
    : workers_(std::move(workers)),
      spec_(compress::parse(codec)),
      unit_{.count = like.count(), .matrices = {}, .id = id} {
  if (spec_.kind == compress::Kind::kNone || workers_.size() == 1) return;
  std::int64_t first = 0;
  for (const at::Tensor& tensor : like.tensors()) {
    WEFT_REQUIRE(tensor.scalar_type() == at::kFloat,
                 "strategy.codec = \"" + codec + "\" is for weights of float32");
    engine::add_matrix(unit_, first, tensor);
    first += tensor.numel();
  }
  codec_ = std::make_unique<engine::CodecExchange>(workers_, spec_, unit_);
}

void Mean::restart() {
  if (!codec_) return;
  codec_.reset();  // before the new one needs memory
  codec_ = std::make_unique<engine::CodecExchange>(workers_, spec_, unit_);
}

// The codec counts exchanges: with the numbers of the steps, randomk could send the same positions
// in every exchange. The warm-up is in steps, and the exchanges after it count from its length.
void Mean::operator()(at::Tensor& flat, const Turn& turn) {
  if (workers_.size() == 1 || flat.numel() == 0) return;
  if (!codec_) return workers_.all_reduce(flat, ReduceOp::kAvg);
  codec_->start(flat, turn.step < spec_.warmup ? turn.step : spec_.warmup + turn.exchange);
  while (codec_->advance()) {
  }
  codec_->finish();
  flat.div_(workers_.size());
}

std::vector<at::Tensor> Mean::state() {
  std::vector<at::Tensor> memory;
  if (!codec_) return memory;
  for (const std::span<float> one : codec_->state())
    memory.push_back(
        at::from_blob(one.data(), {static_cast<std::int64_t>(one.size())}, at::kFloat));
  return memory;
}

}  // namespace weft::strategy::internal
