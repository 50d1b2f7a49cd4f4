// For tests: helpers shared by the tests of all transports.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/net/endpoint.h"

namespace weft::net::internal {

inline Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }

// Returns the error of `body`. If it does not throw, returns an Error(kInternal) with that message.
template <typename F>
Error error_of(const F& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(Errc::kInternal, "no error was thrown");
}

// Bytes that differ for each size, position and seed.
inline std::vector<std::byte> pattern(std::size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] =
        static_cast<std::byte>((i * 31 + (i >> 9) + static_cast<std::size_t>(seed) * 17) & 0xff);
  return bytes;
}

// A label named by a letter. Its mismatch error names both labels.
inline Label label_of(char c) {
  Label label;
  label.bytes.fill(static_cast<std::byte>(c));
  label.mismatch = [](int rank, const Label::Bytes& mine, int peer,
                      const Label::Bytes& theirs) -> std::optional<Error> {
    const auto text = [](const Label::Bytes& bytes) {
      return std::string(1, static_cast<char>(bytes[0]));
    };
    return Error(Errc::kInvalidArgument, "I call " + text(mine) + ", the other " + text(theirs),
                 {"test", rank, peer});
  };
  return label;
}

}  // namespace weft::net::internal
