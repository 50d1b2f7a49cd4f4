#include "weft/data/internal/own_draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <utility>

namespace weft::data::internal {
namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;  // libtorch never uses it

thread_local at::Generator* current = nullptr;

// Operations on CPU tensors that take a generator get the current one in place of none. Others,
// such as at::rand(), call these in turn.
void draw(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
          torch::jit::Stack* stack) {
  if (current != nullptr && keys.has_backend(c10::BackendComponent::CPUBit)) {
    const auto& arguments = operation.schema().arguments();
    const std::size_t first = stack->size() - arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& given = (*stack)[first + i];
      if (given.isNone() && arguments[i].name() == "generator") given = c10::IValue(*current);
    }
  }
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
                            stack);
}

// False if another copy of this library in the process has registered it.
const bool is_registered = [] {
  try {
    static torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&draw>());
    return true;
  } catch (const c10::Error&) {  // the other copy does the same
    return false;
  }
}();

}  // namespace

OwnDraws::OwnDraws(std::uint64_t seed)
    : generator_(at::detail::createCPUGenerator(seed)),
      outer_(std::exchange(current, &generator_)),
      guard_(is_registered ? c10::DispatchKeySet(kKey) : c10::DispatchKeySet()) {}

OwnDraws::~OwnDraws() { current = outer_; }

}  // namespace weft::data::internal
