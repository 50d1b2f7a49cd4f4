// For tests: counts the calls and bytes of the calling rank in its groups while it lives.
#pragma once

#include <cstdint>
#include <map>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "weft/observe/trace.h"

namespace weft::comm {

class CountedCalls {
 public:
  struct Sum {
    int calls = 0;
    std::int64_t bytes = 0;
    bool operator==(const Sum&) const = default;
  };

  CountedCalls() : use_(&trace_, "rank") { trace_.record(true); }

  // The bytes of each call since the last of these three functions, by operation ("all_reduce").
  std::map<std::string, std::vector<std::int64_t>> take_each() {
    std::map<std::string, std::vector<std::int64_t>> all;
    for (const observe::Span& span : trace_.take().spans) {
      if (span.category == "comm")
        all[span.name.substr(span.name.find(':') + 1)].push_back(span.bytes);  // "weft:all_reduce"
    }
    return all;
  }
  std::map<std::string, Sum> take() {
    std::map<std::string, Sum> sums;
    for (const auto& [operation, bytes] : take_each())
      sums[operation] = {static_cast<int>(bytes.size()),
                         std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})};
    return sums;
  }
  std::map<std::string, std::int64_t> take_bytes() {
    std::map<std::string, std::int64_t> bytes;
    for (const auto& [operation, sum] : take()) bytes[operation] = sum.bytes;
    return bytes;
  }

 private:
  observe::Trace trace_;
  observe::Trace::Use use_;
};

inline void PrintTo(const CountedCalls::Sum& sum, std::ostream* out) {
  *out << sum.calls << " calls, " << sum.bytes << " bytes";
}

}  // namespace weft::comm
