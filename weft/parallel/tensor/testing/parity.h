// Test helpers: compare the results of ranks with those of one process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/observe/trace.h"
#include "weft/parallel/tensor/context.h"

namespace weft::parallel::tensor_parity {

using comm::expect_close;
using comm::wave;

constexpr std::uint64_t kSeed = 11;

inline void on_ranks(int ranks, const std::function<void(const TensorParallel&)>& fn) {
  replicate(ranks, [&](Group group) { fn(TensorParallel(std::move(group), kSeed)); });
}

// Counts the calls and bytes of the calling rank in its group while this lives.
class Counted {
 public:
  struct Sum {
    int calls = 0;
    std::int64_t bytes = 0;
    bool operator==(const Sum&) const = default;
  };
  Counted() : use_(&trace_, "rank") { trace_.record(true); }
  // Since the last take, by collective.
  std::map<std::string, Sum> take() {
    std::map<std::string, Sum> all;
    for (const observe::Span& span : trace_.take().spans) {
      if (span.category != "comm") continue;
      Sum& sum = all[span.name.substr(span.name.find(':') + 1)];  // "weft:all_reduce"
      ++sum.calls;
      sum.bytes += span.bytes;
    }
    return all;
  }

 private:
  observe::Trace trace_;
  observe::Trace::Use use_;
};

inline void PrintTo(const Counted::Sum& sum, std::ostream* out) {
  *out << sum.calls << " calls, " << sum.bytes << " bytes";
}

}  // namespace weft::parallel::tensor_parity
