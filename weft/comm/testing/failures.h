// For ranks of a test that expect a failure. They return 0 for the expected failure, and print any
// other.
#pragma once

#include <ATen/ATen.h>

#include <cstdio>
#include <functional>
#include <string>

#include "weft/base/error.h"
#include "weft/base/testing/in_time.h"
#include "weft/comm/group.h"

namespace weft::comm {

// Returns 0 if `body` throws an Error with this code, 1 for another code, 2 if it does not throw.
// Reports the time until then.
template <class Body>
int ends_with(Errc code, const Group& group, SlowestRank& slowest, const Body& body) {
  const auto start = Deadline::Clock::now();
  try {
    body();
  } catch (const Error& error) {
    slowest.report_since(start);
    const bool good = error.code() == code;
    if (!good) std::fprintf(stderr, "rank %d: %s\n", group.rank(), error.what());
    return good ? 0 : 1;
  }
  return 2;
}

// Ranks make different calls. Returns 0 if the error shows both signatures.
inline int see_mismatch(const Group& group, SlowestRank& slowest, const std::string& one,
                        const std::string& other, const std::function<void()>& call) {
  return ends_with(Errc::kInvalidArgument, group, slowest, [&] {
    try {
      call();
    } catch (const Error& error) {
      const std::string what = error.what();
      const bool both =
          what.find(one) != std::string::npos && what.find(other) != std::string::npos;
      throw both ? error : Error(Errc::kInternal, "does not show both signatures: " + what);
    }
  });
}

// The ranks all-reduce float32 tensors, but rank `odd` a float64 tensor.
inline int see_mismatch(const Group& group, int odd, SlowestRank& slowest) {
  at::Tensor t = group.rank() == odd ? at::ones({4, 2}, at::kDouble) : at::ones({4, 2});
  return see_mismatch(group, slowest, "float32[4, 2]", "float64[4, 2]",
                      [&] { group.all_reduce(t); });
}

}  // namespace weft::comm
