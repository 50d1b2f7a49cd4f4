// Parts of a shard's state as bytes.
#pragma once

#include <cstring>
#include <vector>

#include "weft/net/stream/bytes.h"

namespace weft::ps::internal {

using net::internal::ByteReader;
using net::internal::ByteWriter;

inline void put_floats(ByteWriter& out, const std::vector<float>& values) {
  out.put(static_cast<std::uint64_t>(values.size()));
  if (!values.empty())
    out.put_bytes({reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()});
}

inline std::vector<float> take_floats(ByteReader& in) {
  const auto count = in.take<std::uint64_t>();
  const std::string_view bytes = in.take_view(count, sizeof(float));
  std::vector<float> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Throws Error(kCorrupt) if the parts do not fit.
inline void require_fit(bool fits) {
  if (!fits) throw Error(Errc::kCorrupt, "the state of a parameter server does not fit together");
}

}  // namespace weft::ps::internal
