#include "weft/train/task.h"

#include <ATen/ATen.h>

#include "weft/base/error.h"

namespace weft::train {

data::Source samples(const at::Tensor& x, const at::Tensor& y) {
  WEFT_REQUIRE(x.defined() && y.defined() && x.dim() > 0 && y.dim() > 0,
               "samples: x and y have one entry a sample along the first dimension");
  WEFT_REQUIRE(x.size(0) == y.size(0), "samples: x has " + std::to_string(x.size(0)) +
                                           " samples and y " + std::to_string(y.size(0)) +
                                           " targets");
  return samples(x.size(0), [x, y](const std::vector<std::int64_t>& indices) {
    const at::Tensor which = at::tensor(indices, at::kLong);
    return std::pair(x.index_select(0, which), y.index_select(0, which));
  });
}

data::Source samples(
    std::int64_t size,
    std::function<std::pair<at::Tensor, at::Tensor>(const std::vector<std::int64_t>& indices)>
        make) {
  WEFT_REQUIRE(size > 0, "samples: the data set is empty");
  WEFT_REQUIRE(make != nullptr, "samples: the function that makes the batches is missing");
  const auto checked = [make = std::move(make)](const data::Share& share) {
    // A rank without samples gives tensors of the right shape, with none.
    const bool none = share.indices.empty();
    auto [x, y] = make(none ? std::vector<std::int64_t>{0} : share.indices);
    const auto wanted = static_cast<std::int64_t>(none ? 1 : share.indices.size());
    for (const at::Tensor* const tensor : {&x, &y}) {
      const std::string what = tensor == &x ? "inputs" : "targets";
      WEFT_REQUIRE(tensor->defined() && tensor->dim() > 0,
                   "the data set gives " + what + " without a dimension for the samples");
      WEFT_REQUIRE(tensor->size(0) == wanted, "the data set gives " +
                                                  std::to_string(tensor->size(0)) + " " + what +
                                                  " for " + std::to_string(wanted) + " samples");
    }
    return data::Batch{{none ? x.narrow(0, 0, 0) : x}, {none ? y.narrow(0, 0, 0) : y}, {}};
  };
  return {size, checked};
}

}  // namespace weft::train
