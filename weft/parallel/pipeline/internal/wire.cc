#include "weft/parallel/pipeline/internal/wire.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace weft::parallel::internal {

Header header_of(const Tensors& tensors) {
  std::vector<std::int64_t> words{static_cast<std::int64_t>(tensors.size())};
  for (const at::Tensor& tensor : tensors) {
    words.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    words.push_back(tensor.requires_grad() ? 1 : 0);
    words.push_back(tensor.dim());
    for (const std::int64_t size : tensor.sizes()) words.push_back(size);
  }
  WEFT_REQUIRE(static_cast<std::int64_t>(words.size()) <= kHeaderWords,
               "pipeline: a stage returns " + std::to_string(tensors.size()) +
                   " tensors, more than a header can describe (1 plus, for each tensor, 3 plus its "
                   "dimensions must be at most " +
                   std::to_string(kHeaderWords) + "); join some");
  Header header{};
  std::copy(words.begin(), words.end(), header.begin());
  return header;
}

Tensors tensors_of(const Header& header) {
  const std::int64_t* word = header.data();
  Tensors tensors(static_cast<std::size_t>(*word++));
  for (at::Tensor& tensor : tensors) {
    const auto type = static_cast<at::ScalarType>(word[0]);
    const bool needs_gradient = word[1] != 0;
    const std::int64_t dims = word[2];
    tensor =
        at::empty({word + 3, static_cast<std::size_t>(dims)}, type).requires_grad_(needs_gradient);
    word += 3 + dims;
  }
  return tensors;
}

Tensors gradients_of(const Tensors& like) {
  Tensors gradients;
  for (const at::Tensor& one : like) {
    gradients.push_back(one.defined() ? at::empty(one.sizes(), one.options().requires_grad(false))
                                      : one);
  }
  return gradients;
}

std::unique_ptr<Wire> make_wire(const Group& group, int messages) {
  constexpr int kMaxMessages = 4096;  // each takes 1 KiB of shared memory, twice
  const bool in_place = group.size() > 1 && group.host() != nullptr && messages <= kMaxMessages;
  return in_place ? make_host_wire(group, messages) : make_message_wire(group);
}

}  // namespace weft::parallel::internal
