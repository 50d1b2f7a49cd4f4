#include "weft/parallel/recompute/discard.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>

#include "weft/base/error.h"
#include "weft/parallel/recompute/internal/autocast_state.h"

namespace weft::parallel {
namespace {

// A result without its memory.
struct Gone {
  at::Tensor result;
  std::function<at::Tensor()> again;
  internal::AutocastState autocast = {};

  void bring_back() const {
    const at::NoGradGuard no_grad;
    const internal::AutocastState::Use use(autocast);
    const internal::WithoutCachedCasts no_casts;
    const at::Tensor same = again();
    WEFT_REQUIRE(same.sizes() == result.sizes() && same.strides() == result.strides() &&
                     same.dtype() == result.dtype() &&
                     same.storage().nbytes() == static_cast<std::size_t>(same.nbytes()),
                 "discard: the function returned another shape than the first time");
    at::DataPtr numbers = same.storage().set_data_ptr(at::DataPtr(nullptr, same.device()));
    result.storage().set_data_ptr_noswap(std::move(numbers));
    result.storage().set_nbytes(same.storage().nbytes());
    same.storage().set_nbytes(0);
  }
};

}  // namespace

void discard(const at::Tensor& result, std::function<at::Tensor()> again, const at::Tensor& user) {
  if (!at::GradMode::is_enabled() || !result.requires_grad() || !user.requires_grad()) return;
  WEFT_REQUIRE(result.storage().nbytes() == static_cast<std::size_t>(result.nbytes()),
               "discard: the result is a part of another tensor");
  result.storage().set_data_ptr_noswap(at::DataPtr(nullptr, result.device()));
  result.storage().set_nbytes(0);
  // Runs once. From then on the graph holds the values as if they had never been freed.
  const auto gone = std::make_shared<std::optional<Gone>>(Gone{result, std::move(again)});
  user.register_hook([gone](const at::Tensor&) {
    if (!gone->has_value()) return;
    const Gone now = std::move(**gone);
    gone->reset();
    now.bring_back();
  });
}

}  // namespace weft::parallel
