// The mean of a vector over the workers, as it is or through a codec with memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/compress/reducer.h"
#include "weft/compress/spec.h"
#include "weft/engine/codec/codec_exchange.h"
#include "weft/strategy/internal/flat.h"

namespace weft::strategy::internal {

class Mean {
 public:
  // For vectors of `like`, of which this is number `id`.
  Mean(Group workers, const std::string& codec, const Flat& like, std::uint32_t id);

  // Number of the training step and of the exchange after it. Both count from 0.
  struct Turn {
    std::int64_t step = 0, exchange = 0;
  };
  // Every worker gets the same bits. In place. Collective.
  void operator()(at::Tensor& flat, const Turn& turn);
  // The codec's memory. Valid until the next exchange or restart().
  std::vector<at::Tensor> state();
  // The codec forgets what it has not sent. Not collective.
  void restart();

 private:
  const Group workers_;
  compress::Spec spec_;
  compress::Unit unit_;
  std::unique_ptr<engine::CodecExchange> codec_;  // null: none
};

}  // namespace weft::strategy::internal
