// Random numbers of a batch that is being made: while an OwnDraws lives, operations of this thread
// on the CPU that would draw from torch's global generator draw from one of its own, which begins
// with a seed.
//
// The global generator is one for all threads. Without this, a thread that makes batches ahead and
// a model that draws for dropout would get numbers that depend on which of them comes first. Calls
// of the generator itself, such as torch::manual_seed(), still reach the global one. Costs about a
// microsecond for each operation meanwhile.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace weft::data::internal {

class OwnDraws {
 public:
  explicit OwnDraws(std::uint64_t seed);
  ~OwnDraws();
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;

 private:
  at::Generator generator_;
  at::Generator* const outer_;
  const c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace weft::data::internal
