// Writes and reads numbers and texts as bytes, little-endian; a text is its length and its bytes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "weft/base/error.h"

namespace weft::net::internal {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

class ByteWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  // At most 2^32 - 1 bytes. Throws Error(kInvalidArgument).
  void put_text(std::string_view text) {
    WEFT_REQUIRE(text.size() <= 0xffffffffu,
                 "a text of " + std::to_string(text.size()) + " bytes does not fit into a message");
    put(static_cast<std::uint32_t>(text.size()));
    bytes_.append(text);
  }
  // Without their length.
  void put_bytes(std::string_view bytes) { bytes_.append(bytes); }
  std::string take() { return std::move(bytes_); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

// Throws Error(kCorrupt) beyond the end.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
    return value;
  }
  // A number from 0 to `last`, for an enum with these values.
  template <typename Enum>
  Enum take_enum(Enum last) {
    const auto number = take<std::uint8_t>();
    if (number > static_cast<std::uint8_t>(last)) fail();
    return static_cast<Enum>(number);
  }
  std::string_view take_text() { return take_bytes(take<std::uint32_t>()); }
  // The number of elements of at least `bytes_each` bytes, which lie in the rest.
  std::uint32_t take_count(std::size_t bytes_each) {
    const auto count = take<std::uint32_t>();
    if (count > rest_.size() / bytes_each) fail();
    return count;
  }
  // `count` elements of `bytes_each` bytes.
  std::string_view take_view(std::uint64_t count, std::size_t bytes_each) {
    if (count > rest_.size() / bytes_each) fail();
    return take_bytes(static_cast<std::size_t>(count) * bytes_each);
  }
  std::size_t left() const { return rest_.size(); }
  void expect_end() const {
    if (!rest_.empty()) fail();
  }
  [[noreturn]] static void fail() { throw Error(Errc::kCorrupt, "a message is malformed"); }

 private:
  std::string_view take_bytes(std::size_t count) {
    if (count > rest_.size()) fail();
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace weft::net::internal
