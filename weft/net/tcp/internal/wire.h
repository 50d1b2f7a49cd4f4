// Little-endian integers in byte buffers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace weft::net::internal {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

template <typename T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace weft::net::internal
